"""What a training program consists of, counted in its text: matrix products, collectives of every plan, gathers of parameters."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from training_cases import OPTIMIZERS, PARTITIONED, STEP, loaded, partitioned, passed

from dmlc import driver
from dmlc.ir.core import Module, Op
from dmlc.ops.comm import base_name, is_collective

torch.set_num_threads(1)
PRODUCTS = ("dmlc.matmul", "dmlc.linear", "dmlc.contract", "dmlc.conv", "dmlc.attention")
MODELS = ("perceptron", "transformer")
both = pytest.mark.parametrize("model", MODELS)


def products(module: Module) -> int:
    return sum(op.name in PRODUCTS for op in module.walk())


def times(op: Op) -> int:
    """How often a step runs an op: the iterations of its loop."""
    return op.parent.attrs["count"] if op.parent is not None and op.parent.name == "dmlc.microbatch" else 1


def collectives(module: Module, axis: str = "data") -> Counter[tuple[str, bool]]:
    """(kind, whether of a scalar) -> how often a step runs them, one an operand."""
    found: Counter[tuple[str, bool]] = Counter()
    for op in module.walk():
        if is_collective(op) and axis in op.attrs["axes"]:
            for v in op.operands:
                found[base_name(op).removeprefix("comm."), v.tensor.rank == 0] += times(op)
    return found


def trained(module: Module) -> list[Any]:
    return [a for a in module.main.args if a.attrs.get("dmlc.role") == "param" and "dmlc.frozen" not in a.attrs]


# ---------------------------------------------------------------- products


@pytest.mark.parametrize("model", [*MODELS, "cnn"])
def test_clipping_adds_no_matrix_product(model: str) -> None:
    """The gradients alone have as many products as the whole step with norm, clipping and update."""
    options = driver.Options(train=OPTIMIZERS["adamw"])
    gradients, _ = passed(loaded(model), STEP.partition(",optimizer")[0], options)
    step, _ = passed(loaded(model), STEP, options)
    clipped = [op for op in step.walk() if step.main.arg("max_norm") in op.operands]
    assert clipped and products(gradients) == products(step) > 0


def test_products_of_a_perceptron() -> None:
    """Two in the forward pass; the backward pass has two for weights and one for the hidden layer, none for the input."""
    assert products(passed(loaded("perceptron"), STEP, driver.Options(train=OPTIMIZERS["adamw"]))[0]) == 5


# ---------------------------------------------------------------- collectives


@both
@pytest.mark.parametrize("microbatches", [1, 2, 3])
def test_collectives_of_data_parallelism(model: str, microbatches: int) -> None:
    """One all-reduce a gradient, whatever the number of microbatches, one for the count of targets and one for the loss."""
    module, _ = partitioned(model, "dp=4", 4, microbatches)
    assert collectives(module) == {("all_reduce", False): len(trained(module)), ("all_reduce", True): 2}


@both
def test_collectives_of_zero_1(model: str) -> None:
    """A gradient is reduced and scattered once, its parameter gathered once; a third scalar is the norm."""
    module, _ = partitioned(model, "dp=4,zero=1", 4, 2)
    n = len(trained(module))
    assert collectives(module) == {("reduce_scatter", False): n, ("all_gather", False): n, ("all_reduce", True): 3}


@both
@pytest.mark.parametrize("microbatches", [1, 2, 3])
def test_collectives_of_zero_2(model: str, microbatches: int) -> None:
    """Gradients are reduced and scattered in each microbatch."""
    module, _ = partitioned(model, "dp=4,zero=2", 4, microbatches)
    n = len(trained(module))
    assert collectives(module) == {("reduce_scatter", False): n * microbatches, ("all_gather", False): n, ("all_reduce", True): 3}


@pytest.mark.parametrize("recompute", ["none", "all"])
@both
def test_collectives_of_zero_3(model: str, recompute: str) -> None:
    """A parameter is gathered at most twice a microbatch, with recomputation too, and never after the update. The tied table of words belongs
    to the first block and to the last: in each once for the forward pass."""
    options = driver.Options(train=replace(OPTIMIZERS["adamw"], recompute=recompute), devices=4, plan="dp=4,zero=3", microbatches=2)
    module, _ = passed(loaded(model), PARTITIONED, options)
    n, found = len(trained(module)), collectives(module)
    assert found["reduce_scatter", False] == 2 * n and not found["all_reduce", False]
    assert 3 <= found["all_reduce", True] <= (4 if recompute == "all" else 3)  # the count of targets may be recomputed, too
    assert 2 * n <= found["all_gather", False] <= 4 * n + 2
    per = Counter(_gathered(op) for op in module.walk() if is_collective(op) and base_name(op) == "comm.all_gather" and op.id.endswith("#peel"))
    assert per.pop("words_weight", 0) <= 3 and max(per.values()) <= 2, per


def _gathered(op: Op) -> str:
    """The parameter that a gather of the last microbatch is of."""
    (value,) = op.operands
    while value.op is not None:
        value = value.op.operands[0]
    return value.name  # type: ignore[attr-defined]


def test_tensor_parallelism_adds_nothing_over_data() -> None:
    """The collectives over "data" of dp=2 x tp=2 are those of dp=2."""
    module, _ = partitioned("transformer", "dp=2,tp=2", 4, 2)
    assert collectives(module) == {("all_reduce", False): len(trained(module)), ("all_reduce", True): 2}
    assert collectives(module, "model")


@both
def test_all_collectives_of_a_peeled_iteration_say_so(model: str) -> None:
    module, _ = partitioned(model, "dp=4,zero=3", 4, 2)
    inside = [op for op in module.walk() if is_collective(op) and op.id.endswith("#peel")]
    assert inside and all(op.attrs["dmlc.iteration"] == "peel" for op in inside)
    loops = [op for op in module.walk() if op.name == "dmlc.microbatch"]
    assert loops and all(len(op.operands) == 1 for op in loops)  # the number of iterations is known at run time only
