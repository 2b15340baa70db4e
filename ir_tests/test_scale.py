"""Deep models and models on the meta device: repeated layers are found and decided once, few of them tell what all take, weights need no values."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch

from dmlc import deep, driver
from dmlc.cli.compile import main as compile_command
from dmlc.cost import CostModel
from dmlc.frontend.torch_export import import_program
from dmlc.ir.location import DmlcError
from dmlc.simulate.depth import extended, further
from dmlc.simulate.repeats import TIMES, find_repeats, shortened
from dmlc.simulate.step import Traffic, simulate_step
from dmlc.training import Training

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[1]

MODELS = """
from dmlc.models import decoder, llama

def six():
    return decoder.tiny(6, "meta")

def two():
    return decoder.tiny(2, "meta")

def there():
    return decoder.tiny(2)

def wide():
    return decoder.build(512, 6, 8, 8, 1024, 1000, 128, 16)

def library():
    return llama.build(64, 2, 8, 2, 100, 257, 12, 6, device="meta")

def library_there():
    return llama.build(64, 2, 8, 2, 100, 257, 12, 6)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(MODELS)
    return str(path)


def loaded(source: str, plan: str, devices: int) -> tuple[driver.Loaded, driver.Options]:
    options = driver.Options(devices, plan, target="h100", train=Training())
    found = driver.load(source, options)
    found.evaluation = None
    return found, options


# ---------------------------------------------------------------- repeated layers


def test_layers_are_found(models):
    module = import_program(f"{models}:six").module
    repeats = find_repeats(module.main)
    assert repeats is not None and repeats.count == 6
    ops = module.main.body.ops
    for layer in range(6):
        inside = ops[repeats.start + layer * repeats.length : repeats.start + (layer + 1) * repeats.length]
        assert [op.name for op in inside].count("dmlc.linear") == 7 and [op.name for op in inside].count("dmlc.attention") == 1
    assert find_repeats(import_program(f"{models}:two").module.main) is None, "two layers do not make a row"


def test_a_shorter_program_has_fewer_layers_and_says_so(models):
    module = import_program(f"{models}:six").module
    repeats = find_repeats(module.main)
    assert repeats is not None
    short = shortened(module, repeats, 4)
    assert short is not None and find_repeats(short.main) == type(repeats)(repeats.start, repeats.length, 4)
    assert len(module.main.body) - len(short.main.body) == 2 * repeats.length
    assert len(module.main.args) - len(short.main.args) == 2 * 9, "nine weights a layer"
    times = [op.attrs[TIMES] for op in short.main.body if TIMES in op.attrs]
    assert times == [3] * repeats.length, "one layer stands for three"
    assert sum(a.tensor.bytes * a.attrs.get(TIMES, 1) for a in short.main.args) == sum(a.tensor.bytes for a in module.main.args)


def test_figures_go_on_in_a_straight_line():
    assert dict(further({"a": 3, "b": Traffic(1, 10, 100)}, {"a": 5, "b": Traffic(2, 20, 250), "c": 4}, 3)) == {"a": 11, "b": Traffic(5, 50, 700), "c": 16}
    assert further(("x",), ("y",), 3) == ("y",)


@pytest.mark.parametrize("plan", ["dp=8,zero=3", "dp=8,zero=1"])
def test_few_layers_tell_what_all_take(models, plan):
    """To the picosecond, the byte and the collective: the pipeline for deep models treats equal layers alike."""
    model, options = loaded(f"{models}:wide", plan, 8)
    layers = deep.layers_of(model, options, many=6)
    assert layers is not None and layers.left_out == 1
    cost = CostModel.of(layers.more)
    fewer, more = simulate_step(layers.fewer, cost), simulate_step(layers.more, cost)
    found = extended(fewer, more, layers.left_out)
    whole = model.module.clone()
    deep._run(model, options, whole, deep.Names(frozenset()))
    real = simulate_step(whole, cost)
    assert found.traffic == real.traffic and found.computation == real.computation and found.flops == real.flops
    assert found.time == pytest.approx(real.time, rel=1e-3) and found.peak == pytest.approx(real.peak, rel=1e-2)
    assert fewer.time < more.time < real.time, "a layer takes time, so the comparison could fail"
    assert layers.more.attrs["dmlc.work"] == whole.attrs["dmlc.work"]


def test_the_equal_layers_of_a_training_step_are_planned_once(models):
    """Each layer's gradients go to updates and results of their own; still the programme does not grow with depth."""
    from dmlc.planner.request import Request
    from dmlc.planner.search import decide

    def variables(keep: int) -> int:
        model, options = loaded(f"{models}:wide", "dp=2,tp=4", 8)
        repeats = find_repeats(model.module.main)
        assert repeats is not None
        module = shortened(model.module, repeats, keep) or model.module
        driver.annotate(module, options)
        before = deep.pipelines_of(module)[0].removesuffix(",plan")
        driver.run_pipeline(replace(model, module=module), replace(options, pipeline=before), lambda p: None)
        return decide(module, Request.of(module), CostModel.of(module))[0].solution.variables

    assert variables(6) <= 1.1 * variables(4)


def test_what_is_not_deep_or_asked_for_exactly_goes_the_usual_way(models):
    model, options = loaded(f"{models}:six", "dp=2", 2)
    assert deep.layers_of(model, options) is None, "six layers are not many"
    assert deep.layers_of(model, replace(options, schedule="passes"), many=6) is None


# ---------------------------------------------------------------- weights without values


@pytest.mark.parametrize("without, there", [("two", "there"), ("library", "library_there")])
def test_tables_that_the_code_computes_have_values(models, without, there):
    meta, real = import_program(f"{models}:{without}"), import_program(f"{models}:{there}")
    tables = [a.attrs["dmlc.value"].key for a in meta.module.main.args if a.attrs["dmlc.role"] == "const"]
    assert tables and all(numpy.array_equal(meta.weights.get(k), real.weights.get(k)) for k in tables)
    parameters = [a.attrs["dmlc.value"].key for a in meta.module.main.args if a.attrs["dmlc.role"] == "param"]
    assert sorted(meta.weights.without_values) == sorted(parameters) and not real.weights.without_values
    with pytest.raises(DmlcError, match="meta device: it has a shape but no values"):
        meta.weights.get(parameters[0])


def test_a_folder_needs_values(models, tmp_path):
    with pytest.raises(DmlcError, match=r"the weights have shapes but no values \('tokens.weight' and 20 more\)") as refusal:
        compile_command([f"{models}:two", "--devices", "2", "-o", str(tmp_path / "out")])
    assert "dmlc simulate takes such a model" in str(refusal.value.notes)
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- the real size


def test_seven_billion_on_64_devices():
    """32 layers in a process of their own: private memory below 2 GB. (tools/bench_simulation.py measures the time: 5 s on an idle core.)"""
    done = subprocess.run([sys.executable, "-m", "dmlc.tools.bench_simulation", "--one", "7b"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["layers"] == 32 and found["RssAnon MB"] < 2000
    assert found["after import"] < 60, "a loaded machine takes longer than an idle one, but not ten times"
    ideal = 6 * 6.7e9 * 64 * 2048 / (64 * 67e12)  # forward and backward products of 131,072 tokens at the fp32 peak
    assert ideal < found["step s"] < 4 * ideal and 10 < found["peak GB"] < 200
