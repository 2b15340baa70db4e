"""Values that other tools got wrong (reported in public trackers), at the level of single ops; and that the generic tests notice wrong facets."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import facets
from facets import agree, build, cases, operands

from dmlc.interpret.evaluate import NAMES, evaluate, promoted
from dmlc.ir import registry
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, Op
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.base import definition
from dmlc.ops.rule import parse_rule

NAN, INF = float("nan"), float("inf")


def op_on(name: str, *tensors: torch.Tensor, results: Any = None, **attrs: Any) -> Op:
    block = Block([TensorType(tuple(x.shape), NAMES[x.dtype]) for x in tensors])
    return Builder(block).op(f"dmlc.{name}", block.args, attrs, results)


def value(name: str, *tensors: torch.Tensor, **attrs: Any) -> torch.Tensor:
    return evaluate(op_on(name, *tensors, **attrs), tensors)[0]


def folded(name: str, *tensors: torch.Tensor, **attrs: Any) -> Any:
    op = op_on(name, *tensors, **attrs)
    return definition(op).fold(op, [x.numpy() for x in tensors])


# ---------------------------------------------------------------- division of negative integers


A, B = torch.tensor([8, -8, 7, -7]), torch.tensor([-3, 3, -2, 2])
DIVISIONS = [
    ("div", {"rounding": "trunc"}, [-2, -2, -3, -3]), ("div", {"rounding": "floor"}, [-3, -3, -4, -4]),
    ("rem", {"sign": "divisor"}, [-1, 1, -1, 1]), ("rem", {"sign": "dividend"}, [2, -2, 1, -1]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "attrs", "wanted"), DIVISIONS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_division_of_negative_integers(name: str, attrs: dict[str, Any], wanted: list[int], dtype: torch.dtype) -> None:
    a, b = A.to(dtype), B.to(dtype)
    assert value(name, a, b, **attrs).tolist() == wanted
    assert folded(name, a, b, **attrs)[0].tolist() == wanted


def test_zero_divisor_does_not_trap() -> None:
    """Padding may hold zeros."""
    a, zero = torch.tensor([7, -7]), torch.tensor([0, 0])
    assert value("div", a, zero, rounding="trunc").tolist() == [7, -7] == folded("div", a, zero, rounding="floor")[0].tolist()
    assert value("rem", a, zero).tolist() == [0, 0] == folded("rem", a, zero)[0].tolist()


def test_integer_division_must_say_how() -> None:
    with pytest.raises(DmlcError, match="rounding"):
        op_on("div", A, B)


# ---------------------------------------------------------------- NaN

X = torch.tensor([-5.0, 0.5, 9.0, NAN])


def same(actual: torch.Tensor, wanted: list[float]) -> None:
    agree(actual, torch.tensor(wanted), 0.0)


def test_nan_through_extrema() -> None:
    zero = torch.tensor(0.0)
    for pair in ((X, zero), (zero, X)):
        same(value("maximum", *pair), [0, 0.5, 9, NAN])
        same(value("minimum", *pair), [-5, 0, 0, NAN])
    same(value("clamp", X, min=0.5, max=None), [0.5, 0.5, 9, NAN])
    same(value("clamp", X, min=2, max=-1), [-1, -1, -1, NAN])
    same(value("relu", X), [0, 0.5, 9, NAN])


def test_nan_through_row_extrema() -> None:
    rows = torch.stack([X, torch.tensor([1.0, 2.0, 0.0, 1.0])])
    same(value("reduce_max", rows, dims=(1,)), [NAN, 2])
    same(value("reduce_min", rows, dims=(1,)), [NAN, 0])
    assert value("argmax", rows, dim=1).tolist() == [3, 1] == folded("argmax", rows, dim=1)[0].tolist()


# ---------------------------------------------------------------- what folding must not change


def test_cast_out_of_range_does_not_fold() -> None:
    """Only the machine knows what it makes of NaN, infinities and 300 as int8."""
    for x in (300.0, NAN, INF, -INF, -129.0):
        assert folded("cast", torch.tensor([x]), to="i8") is None
    assert folded("cast", torch.tensor([50.0, -50.0, -128.5, 127.9]), to="i8")[0].tolist() == [50, -50, -128, 127]
    assert folded("cast", torch.tensor([9.3e18]), to="i64") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert folded("cast", torch.tensor([3.0, -INF], dtype=torch.float16), to="i64") is None


def test_folds_keep_signs_and_nan() -> None:
    assert str(folded("add", torch.tensor([-0.0]), torch.tensor([0.0]))[0][0]) == "0.0"
    times_zero = folded("mul", torch.tensor([INF, NAN]), torch.tensor([0.0, 0.0]))[0]
    assert (times_zero != times_zero).all()
    assert (folded("sub", torch.tensor([INF]), torch.tensor([INF]))[0] != 0).all()


def test_dtypes_do_not_mix() -> None:
    with pytest.raises(DmlcError, match="different dtypes"):
        op = op_on("add", torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16))
        definition(op).verify(op)


# ---------------------------------------------------------------- strides and nothing to do


def test_strided_operands() -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).t().contiguous().t()
    mean = value("reduce_sum", x, dims=(1,)) / 6
    assert int(value("argmax", mean, dim=0)) == int(x.contiguous().mean(-1).argmax()) == 2
    windows = torch.arange(12.0).reshape(1, 12).unfold(1, 2, 2)
    agree(value("reduce_sum", windows, dims=(2,)), windows.contiguous().sum(-1), 0.0)
    agree(value("reshape", x[:, ::2], results=[TensorType((12,), "f32")]), x[:, ::2].reshape(12), 0.0)


def test_nothing_to_do() -> None:
    empty = torch.zeros(0, 64)
    assert value("reduce_sum", empty, dims=(0,)).abs().sum() == 0
    assert value("reduce_prod", empty, dims=(0,)).tolist() == [1.0] * 64
    assert value("reduce_max", empty, dims=(0,)).tolist() == [-INF] * 64
    assert value("reduce_min", torch.zeros(0, dtype=torch.int64), dims=(0,)).item() == 2**63 - 1
    assert value("logsumexp", empty, dims=(0,)).tolist() == [-INF] * 64
    assert value("cumsum", empty, dim=0, exclusive=True, reverse=True).shape == (0, 64)
    with pytest.raises(DmlcError, match="size 0"):
        op_on("argmax", empty, dim=0)


def test_equal_elements_keep_their_order() -> None:
    x = torch.tensor([[1, 3, 3, 0, 3]])
    assert evaluate(op_on("topk", x, k=3, dim=1), [x])[1].tolist() == [[1, 2, 4]]
    assert evaluate(op_on("sort", x, dim=1, descending=True), [x])[1].tolist() == [[1, 2, 4, 0, 3]]


# ---------------------------------------------------------------- the generic tests can fail

WRONG_RULES = [
    ("dmlc.cumsum", "... -> ..."), ("dmlc.flip", "... -> ..."), ("dmlc.sort", "... -> ..., ..."), ("dmlc.softmax", "... -> ..."),
    ("dmlc.tril", "... r c! -> ... r c!"), ("dmlc.embedding", "v d, ... -> ... d"), ("dmlc.concat", "c ..., c ... -> c ..."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), WRONG_RULES)
def test_wrong_rules_are_noticed(name: str, text: str) -> None:
    with pytest.raises((AssertionError, DmlcError, RuntimeError, IndexError, ValueError)):
        for case in cases(lambda d: d is registry.lookup(name)):
            op, xs = build(case), operands(case, wide=True)
            rule = parse_rule(text, [v.shape for v in op.operands], [r.shape for r in op.results], combiner=definition(op).combiner)
            for split in facets.legal_splits(rule):
                for actual, wanted in zip(facets.run_split(op, split, xs), evaluate(op, xs, promoted)):
                    agree(actual, wanted)


def test_wrong_combiner_is_noticed() -> None:
    case = cases(lambda d: d is registry.lookup("dmlc.reduce_max"))[0]
    op, xs = build(case), operands(case, wide=True)
    rule = parse_rule("d0 d1 -> d0", [v.shape for v in op.operands], [r.shape for r in op.results], combiner="sum")
    actual = [facets.run_split(op, s, xs)[0] for s in facets.legal_splits(rule)]
    assert any(not torch.allclose(a, evaluate(op, xs, promoted)[0]) for a in actual)


# ---------------------------------------------------------------- operands that are slices


def test_gradients_of_a_norm_read_statistics_that_are_a_slice():
    """A rank that holds some of the rows slices the statistics; the library takes them for contiguous without looking."""
    x, g, w = (torch.randn(4, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3))
    mean, rstd = x.mean(-1), 1 / (x.var(-1, correction=0) + 1e-5).sqrt()
    part = [t[:, 2:4] for t in (g, x, mean, rstd)]
    for name, sliced in (("layer_norm_grad", [*part[:2], w[0, 0], *part[2:]]), ("layer_norm_weight_grad", part)):
        torch.testing.assert_close(value(name, *sliced), value(name, *(t.contiguous() for t in sliced)))
