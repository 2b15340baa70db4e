"""Whole models: compiled for eight devices, run on eight ranks, compared with the original; and interpreted rank by rank in float64."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import PLANS, TRANSFORMERS, compile_copy, difference, emit, in_double, inputs_of, loaded
from onnx_models import CASES as ONNX_CASES
from onnx_models import Unavailable
from rank_pool import RankError, RankPool, shared_pool

from dmlc.cli._check import refuse_vacuous

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("warm")

NAMES = (*TRANSFORMERS, "resnet")


def tiny(name: str):
    return loaded(f"dmlc.models.{name}:tiny")


@functools.cache
def expected_of(name: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Inputs, eager's outputs, and the imported module's outputs in float64."""
    model = tiny(name)
    inputs = dict(model.examples)
    assert model.reference is not None
    return inputs, model.reference(inputs), in_double(model.module, model.weights, inputs)


# ---------------------------------------------------------------- float32


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_on_eight_ranks(name, plan, tmp_path):
    inputs, eager, exact = expected_of(name)
    compiled = compile_copy(tiny(name), plan=plan)
    assert difference(exact, in_double(compiled.module, compiled.weights, inputs)) < 1e-9
    assert difference(eager, shared_pool().run(emit(compiled, tmp_path / "out"), inputs).results) < 1e-4


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tmp_path_factory.mktemp("onnx")


def onnx_model(name, folder):
    """Skips the test where a published model cannot be had."""
    try:
        return loaded(str(ONNX_CASES[name].source(folder)), ONNX_CASES[name].shapes)
    except Unavailable as e:
        pytest.skip(str(e))


@pytest.mark.parametrize(("name", "plan"), [(name, plan) for name, case in ONNX_CASES.items() for plan in case.plans])
def test_an_onnx_model_on_eight_ranks(name, plan, files, tmp_path):
    model = onnx_model(name, files)
    compiled = compile_copy(model, plan=plan)
    inputs, other = inputs_of(model, compiled), inputs_of(model, compiled, seed=1)
    assert model.reference is not None
    expected = model.reference(inputs)
    refuse_vacuous(expected, model.reference(other), model.source)
    assert difference(in_double(model.module, model.weights, inputs), in_double(compiled.module, compiled.weights, inputs)) < 1e-9
    assert difference(expected, shared_pool().run(emit(compiled, tmp_path / "out"), inputs).results) < 1e-4


@pytest.mark.parametrize("devices", [3, 7])
@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_devices_that_divide_nothing(name, devices):
    inputs, _, exact = expected_of(name)
    compiled = compile_copy(tiny(name), devices=devices)
    assert difference(exact, in_double(compiled.module, compiled.weights, inputs)) < 1e-9


@pytest.mark.parametrize("devices", [3, 7])
@pytest.mark.parametrize("name", ONNX_CASES)
def test_onnx_models_on_numbers_of_devices_that_divide_nothing(name, devices, files):
    model = onnx_model(name, files)
    compiled = compile_copy(model, devices=devices)
    inputs = inputs_of(model, compiled)
    assert difference(in_double(model.module, model.weights, inputs), in_double(compiled.module, compiled.weights, inputs)) < 1e-9


# ---------------------------------------------------------------- bfloat16


@pytest.mark.parametrize("plan", ["auto", "tp=8"])
@pytest.mark.parametrize("name", NAMES)
def test_bf16_is_as_exact_as_autocast_and_multiplies_in_bf16(name, plan, tmp_path):
    inputs, _, exact = expected_of(name)
    model = tiny(name)
    assert model.reference is not None
    with torch.autocast("cpu", torch.bfloat16):
        autocast = model.reference(inputs)
    outcome = shared_pool().run(emit(compile_copy(model, plan=plan, precision="bf16"), tmp_path / "out"), inputs)
    assert difference(exact, outcome.results) <= 2 * difference(exact, autocast)
    low = [op for op, dtypes in outcome.products if set(dtypes) == {"bfloat16"}]
    assert len(low) > len(outcome.products) / 2, f"most products should be in bf16: {outcome.products}"


# ---------------------------------------------------------------- commands


def dmlc(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "dmlc.cli.main", *arguments], capture_output=True, text=True, env=environment)


COMMANDS = {"mlp": (1e-4, ["--devices", "3"]), "llama": (5e-2, ["--devices", "4", "--plan", "dp=2,tp=2", "--precision", "bf16"])}


@pytest.mark.parametrize("name", COMMANDS)
def test_under_torchrun(name, tmp_path):
    tolerance, options = COMMANDS[name]
    out = str(tmp_path / "out")
    done = dmlc("compile", f"dmlc.models.{name}:tiny", *options, "--check", "--no-kernel-report", "-o", out)
    assert done.returncode == 0, done.stdout + done.stderr
    done = dmlc("run", out, "--check", "--repeat", "1", "--save", str(tmp_path / "y.npz"))
    assert done.returncode == 0 and "check passed" in done.stdout, done.stdout + done.stderr
    saved, stored = np.load(tmp_path / "y.npz"), np.load(tmp_path / "out" / "check_outputs.npz")
    assert difference(dict(stored), dict(saved)) < tolerance
    np.savez(tmp_path / "out" / "check_outputs.npz", **{n: -x for n, x in stored.items()})
    assert dmlc("run", out, "--check", "--repeat", "0").returncode == 1


# ---------------------------------------------------------------- the pool itself


def test_the_pool_reports_a_failing_rank_and_recovers(tmp_path):
    """One rank of two stops before a collective that the other waits in."""
    model = loaded("dmlc.models.mlp:tiny")
    folder = emit(compile_copy(model, devices=2, plan="tp=2"), tmp_path / "out")
    text = (folder / "model.py").read_text()
    line = "        mesh, device, comm = self.mesh, self.device, self.comm\n"
    (folder / "model.py").write_text(text.replace(line, line + "        assert mesh.rank == 0, 'this rank stops'\n"))
    pool = RankPool(2)
    try:
        with pytest.raises(RankError, match="this rank stops"):
            pool.run(folder, model.examples, seconds=30)
        (folder / "model.py").write_text(text)
        assert model.reference is not None
        assert difference(model.reference(model.examples), pool.run(folder, model.examples, seconds=60).results) < 1e-4
    finally:
        pool.close()
