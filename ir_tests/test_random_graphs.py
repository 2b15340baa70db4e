"""Random programs through the whole inference pipeline on 1, 2 and 4 ranks, in float64 with NaN in all padding (`tools/fuzz_graphs.py` runs more)."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from model_cases import compile_copy, emit
from rank_pool import shared_pool

from dmlc.driver import Compiled, Loaded
from dmlc.interpret.run import run
from dmlc.ir.location import DmlcError
from dmlc.ir.printer import print_module
from dmlc.ir.sharding import Mesh
from dmlc.ir.verifier import verify
from dmlc.ir.weights import WeightStore
from dmlc.passmanager.check import seeded_inputs
from dmlc.passmanager.context import Context
from dmlc.passmanager.manager import PassManager
from dmlc.tools.fuzz_graphs import compiled, difference, pipeline, plans_for
from dmlc.tools.random_graphs import random_graph
from dmlc.tools.random_plans import place_randomly

torch.set_num_threads(1)
SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_pipeline_keeps_the_meaning(seed: int) -> None:
    module = random_graph(seed)
    verify(module)
    expected = run(module, seeded_inputs(module), promote="f64")
    for devices in (1, 2, 4):
        plan = plans_for(seed, devices)
        wrong = difference(module, devices, plan, verify_each=False, expected=expected)
        assert wrong is None, f"{wrong}\nmake it smaller: tools/fuzz_graphs.py --seed {seed} --devices {devices} --plan {plan}"


def test_graphs_are_what_they_should_be() -> None:
    """All kinds of ops occur, sizes are irregular, values are shared, and some are both returned and read."""
    graphs = [random_graph(seed) for seed in SEEDS]
    ops = Counter(op.name for m in graphs for op in m.main.body)
    for name in ("matmul", "linear", "contract", "reshape", "transpose", "slice", "concat", "softmax", "layer_norm", "embedding", "take", "attention", "reduce_sum", "reduce_max"):
        assert ops[f"dmlc.{name}"], name
    assert all(10 <= len(m.main.body) <= 40 for m in graphs)
    shared = [sum(len(r.users) > 1 for op in m.main.body for r in op.results) for m in graphs]
    assert sum(n > 1 for n in shared) > 40
    assert sum(len(m.main.results) > 1 for m in graphs) > 40
    assert sum(any(len(v.users) > 1 for v in m.main.results) for m in graphs) > 15


def test_plans_split_the_work() -> None:
    """A pipeline that replicates everything would pass the test above."""
    split = 0
    for seed in range(0, 60, 6):
        text = print_module(compiled(random_graph(seed), 4, plans_for(seed, 4), verify_each=False)[0])
        split += "comm.a" in text or "comm.reduce_scatter" in text
    assert split >= 6


def test_graphs_are_reproducible_and_grow() -> None:
    assert print_module(random_graph(3)) == print_module(random_graph(3)) != print_module(random_graph(4))
    short, long = ([op.name for op in random_graph(5, n).main.body][:-1] for n in (6, 12))
    assert long[: len(short)] == short


def test_a_wrong_result_is_noticed() -> None:
    module = random_graph(0)
    expected = run(module, seeded_inputs(module), promote="f64")
    first = next(iter(expected))
    wrong = difference(module, 2, "auto", expected={**expected, first: expected[first] * (1 + 1e-8)})
    assert wrong is not None and first in wrong


MESHES = (Mesh.make(a=2, b=2), Mesh.make(a=3), Mesh.make(a=2, b=3), Mesh.make(a=5), Mesh.make(a=4))


@pytest.mark.parametrize("seed", range(100, 120))
def test_random_places_keep_the_meaning(seed: int) -> None:
    """What no planner would choose: every op placed anywhere it may be."""
    module = random_graph(seed)
    inputs = seeded_inputs(module)
    expected = run(module, inputs, promote="f64")
    mesh = MESHES[seed % len(MESHES)]
    place_randomly(module, mesh, random.Random(seed))
    PassManager(pipeline("partition,mask-elim,canonicalize,cse,dce")).run(module, Context())
    actual = run(module, inputs, promote="f64", poison_pads=True)
    for name, wanted in expected.items():
        np.testing.assert_allclose(actual[name], wanted, atol=1e-9 * max(np.abs(wanted).max(initial=0), 1e-3), err_msg=f"{name} on {mesh.sizes}")


@pytest.mark.parametrize("seed", range(200, 206))
def test_emitted_programs_of_random_graphs(seed: int, tmp_path: Path) -> None:
    """The output folder on two ranks, in float32."""
    module = random_graph(seed)
    inputs = seeded_inputs(module)
    expected = run(module, inputs, promote="f64")
    model = Loaded("graph.mlir", module, WeightStore(), None, [], [])
    compiled_model = compile_or_replicate(model, plans_for(seed, 2))
    found = shared_pool().run(emit(compiled_model, tmp_path / "out"), inputs).results
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name], wanted, atol=1e-4 * max(np.abs(wanted).max(initial=0), 1e-3), err_msg=name)


def compile_or_replicate(model: Loaded, plan: str) -> Compiled:
    try:
        return compile_copy(model, devices=2, plan=plan, target="h100")
    except DmlcError as e:
        if "no op of this model can use" not in e.message:
            raise
        return compile_copy(model, devices=2, target="h100")
