"""Partition under random legal plans: whole models, axes of 2 to 5, uneven splits, NaN in every pad, all in float64 (1e-9 of scale)."""

from __future__ import annotations

import random
from functools import cache

import pytest

from dmlc.driver import Options, load
from dmlc.interpret.run import run
from dmlc.ir.sharding import Mesh
from dmlc.passes.mask_elim import MaskElim
from dmlc.passes.partition import Partition
from dmlc.passmanager.check import relative_error, seeded_inputs
from dmlc.passmanager.context import Context
from dmlc.passmanager.manager import PassManager
from dmlc.passmanager.pipeline import parse_pipeline
from dmlc.pipelines import PIPELINES
from dmlc.tools.random_plans import place_randomly

MESHES = (Mesh.make(a=2, b=2), Mesh.make(a=3), Mesh.make(a=2, b=3), Mesh.make(a=5), Mesh.make(a=2, b=2, c=2), Mesh.make(a=4, b=2))
BEFORE_PLAN = "simplify,raise-composites,unflatten,unfuse-projections,dce"


@cache
def simplified(source: str):
    loaded = load(source, Options())
    context = Context(loaded.weights)
    PassManager(parse_pipeline(BEFORE_PLAN, PIPELINES)).run(loaded.module, context)
    return loaded.module, context


def check_random_plans(module, context, count: int, seed: int) -> int:
    """Run `count` random plans; gives how many places were used in all."""
    inputs = seeded_inputs(module, seed)
    expected = run(module, inputs, promote="f64", weights=context.weights)
    rng, known, used = random.Random(seed), {}, 0
    for number in range(count):
        planned = module.clone()
        mesh = MESHES[number % len(MESHES)]
        used += place_randomly(planned, mesh, rng, known)
        PassManager((Partition(), MaskElim())).run(planned, Context(context.weights))
        actual = run(planned, inputs, promote="f64", weights=context.weights, poison_pads=True)
        for name, want in expected.items():
            error = relative_error(want, actual[name])
            assert error < 1e-9, f"plan {number} of seed {seed} on {mesh.sizes}: {name} is off by {error:.2e}"
    return used


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("model", ["dmlc.models.gpt2:tiny", "dmlc.models.llama:tiny"])
def test_random_plans_keep_the_meaning(model, seed):
    module, context = simplified(model)
    assert check_random_plans(module, context, 20, seed) > 400
