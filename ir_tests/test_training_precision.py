"""A training step in bf16 and f16: what computes in which precision, and that it learns what the f32 step learns."""

from __future__ import annotations

import functools

import pytest
import torch
from training_cases import OPTIMIZERS, STEP, interpreted, loaded, passed

from dmlc import driver
from dmlc.ir.core import Module, Op
from dmlc.ir.verifier import verify
from dmlc.ops.base import definition

torch.set_num_threads(1)
LOW = {"bf16": "bf16", "fp16": "f16"}


@functools.cache
def mixed(model: str, precision: str) -> tuple[Module, object]:
    options = driver.Options(train=OPTIMIZERS["adamw"], precision=precision)
    module, weights = passed(loaded(model), STEP + ",mixed-precision,canonicalize,cse,dce", options)
    verify(module)
    return module, weights


def floats(op: Op) -> set[str]:
    return {v.dtype for v in (*op.operands, *op.results) if v.tensor.is_float}


@pytest.mark.parametrize("precision", list(LOW))
@pytest.mark.parametrize("model", ["transformer", "cnn"])
def test_products_are_low_and_what_lasts_is_not(model: str, precision: str) -> None:
    module, _ = mixed(model, precision)
    by_id = {op.id: op for op in module.main.ops()}
    products = [op for op in module.main.ops() if definition(op).precision == "low"]
    assert len([op for op in products if "dmlc.of" in op.attrs]) >= len([op for op in products if "dmlc.of" not in op.attrs]) >= 3
    for op in products:
        assert floats(op) == {LOW[precision]}, op.id
    for op in module.main.ops():
        if op.attrs.get("dmlc.phase") == "update" or op.name == "dmlc.gradient":
            assert floats(op) <= {"f32", "f64"}, op.id
        of = by_id.get(op.attrs.get("dmlc.of", ""))
        if of is not None and definition(of).precision == "high" and op.name not in ("dmlc.cast", "dmlc.full", "dmlc.reshape", "dmlc.transpose"):
            assert LOW[precision] not in floats(op), (op.id, of.name)
    assert all(a.dtype in ("f32", "i64") for a in module.main.args)
    assert module.main.results[0].dtype == "f32"


def test_a_parameter_is_cast_in_the_step() -> None:
    """Its cast is an op that every step runs: no argument has a recipe."""
    module, _ = mixed("transformer", "bf16")
    weight = next(a for a in module.main.args if a.name.endswith("up_weight"))
    assert [u.name for u in weight.users if u.attrs.get("dmlc.phase") != "update"].count("dmlc.cast") == 1
    assert not any("dmlc.derived" in a.attrs for a in module.main.args)


@pytest.mark.parametrize("precision", list(LOW))
@pytest.mark.parametrize("model", ["transformer", "perceptron"])
def test_it_learns_what_the_f32_step_learns(model: str, precision: str) -> None:
    exact = interpreted(*passed(loaded(model), STEP, driver.Options(train=OPTIMIZERS["adamw"])), model, 4)
    found = interpreted(*mixed(model, precision), model, 4)
    for a, b in zip(found[0], exact[0], strict=True):
        assert abs(a - b) < 0.02 * abs(b)
    for a, b in zip(found[1], exact[1], strict=True):
        assert abs(a - b) < 0.05 * abs(b)
    assert found[0] != exact[0]
