"""Pools, resizing, convolutions and norms against known answers and against other implementations."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dmlc.ops  # noqa: F401
from dmlc.interpret import prelude_windows as helpers
from dmlc.interpret.evaluate import NAMES, evaluate
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.base import definition, flops_of

torch.set_num_threads(1)


def build(name: str, xs: tuple[torch.Tensor, ...], shape: tuple[int, ...] | None = None, **attrs: Any) -> Any:
    block = Block([TensorType(tuple(x.shape), NAMES[x.dtype]) for x in xs])
    op = Builder(block).op(name, block.args, attrs, None if shape is None else [block.args[0].tensor.with_shape(shape)])
    definition(op).verify(op)
    return op


def run(name: str, *xs: torch.Tensor, shape: tuple[int, ...] | None = None, **attrs: Any) -> torch.Tensor:
    return evaluate(build(name, xs, shape, **attrs), list(xs))[0]


def seeded(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# ---------------------------------------------------------------- resize


def test_nearest_half_pixel_prefers_floor() -> None:
    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    y = run("dmlc.resize", x, shape=(1, 1, 4, 4), scales=(1.0, 1.0, 1.5, 1.5))
    assert y[0, 0].tolist() == [[0, 0, 1, 2], [0, 0, 1, 2], [3, 3, 4, 5], [6, 6, 7, 8]]


@pytest.mark.parametrize(("coordinate", "first", "fourth"), [("half_pixel", [0, 0, 0, 1, 1, 2, 2, 3], [4, 4, 4, 5, 5, 6, 6, 7]), ("asymmetric", [0, 0, 1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6, 7, 7])])
def test_nearest_floor_is_clamped(coordinate: str, first: list[float], fourth: list[float]) -> None:
    """(0 + 0.5) / 2 - 0.5 floors to -1 and reads cell 0."""
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    y = run("dmlc.resize", x, shape=(1, 1, 8, 8), coordinate=coordinate, nearest_mode="floor")[0, 0]
    assert y[0].tolist() == first and y[3].tolist() == fourth


def resize_by_onnxruntime(x: torch.Tensor, sizes: tuple[int, ...], scales: tuple[float, ...], attrs: dict[str, Any]) -> torch.Tensor:
    import onnx
    import onnxruntime

    names = {"coordinate": "coordinate_transformation_mode", "cubic_coeff_a": "cubic_coeff_a", "mode": "mode", "nearest_mode": "nearest_mode", "exclude_outside": "exclude_outside", "antialias": "antialias"}
    given = {names[k]: int(v) if isinstance(v, bool) else v for k, v in attrs.items()}
    values = onnx.helper.make_tensor("s", 1, [4], scales) if scales else onnx.helper.make_tensor("s", 7, [4], sizes)
    node = onnx.helper.make_node("Resize", ["x", "", "s"] if scales else ["x", "", "", "s"], ["y"], **given)
    graph = onnx.helper.make_graph([node], "g", [onnx.helper.make_tensor_value_info("x", 1, x.shape)], [onnx.helper.make_tensor_value_info("y", 1, sizes)], [values])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


MODES: list[dict[str, Any]] = [
    *({"mode": "nearest", "nearest_mode": r, "coordinate": c} for r in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil") for c in ("half_pixel", "asymmetric", "align_corners")),
    *({"mode": m, "coordinate": c} for m in ("linear", "cubic") for c in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners")),
    {"mode": "cubic", "coordinate": "half_pixel", "cubic_coeff_a": -0.5, "exclude_outside": True},
    {"mode": "linear", "coordinate": "half_pixel", "antialias": True},
]


@pytest.mark.parametrize("attrs", MODES, ids=lambda a: "-".join(map(str, a.values())))
@pytest.mark.parametrize("sizes", [(1, 2, 7, 9), (1, 2, 3, 2), (1, 2, 10, 1)])
def test_resize_agrees_with_onnxruntime(attrs: dict[str, Any], sizes: tuple[int, ...]) -> None:
    x = seeded(1, 2, 5, 4).float()
    if attrs["mode"] == "nearest":  # a position halfway between cells rounds as the last bit of a float says: take scales exact in binary
        sizes = {(1, 2, 7, 9): (1, 2, 10, 8), (1, 2, 3, 2): (1, 2, 5, 2), (1, 2, 10, 1): (1, 2, 20, 1)}[sizes]
    torch.testing.assert_close(run("dmlc.resize", x, shape=sizes, **attrs), resize_by_onnxruntime(x, sizes, (), attrs), atol=2e-5, rtol=1e-5)


def test_resize_by_scales_that_are_no_ratio_of_sizes() -> None:
    x = seeded(1, 2, 5, 4).float()
    attrs = {"mode": "linear", "coordinate": "half_pixel"}
    scales = (1.0, 1.0, 1.5, 0.6)
    wanted = resize_by_onnxruntime(x, (1, 2, 7, 2), scales, attrs)
    torch.testing.assert_close(run("dmlc.resize", x, shape=(1, 2, 7, 2), scales=scales, **attrs), wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("attrs", "shape"), [({"mode": "linear"}, (2, 3, 7, 3)), ({"coordinate": "asymmetric", "nearest_mode": "floor"}, (2, 3, 8, 10))])
def test_native_interpolation_means_the_same(attrs: dict[str, Any], shape: tuple[int, ...]) -> None:
    x = seeded(2, 3, 4, 5)
    op = build("dmlc.resize", (x,), shape, **attrs)
    assert "F.interpolate" in definition(op).torch(op)
    options = {**definition(op).attributes, **attrs}
    general = helpers.resize(x, shape, (), *(options[k] for k in ("mode", "coordinate", "nearest_mode", "cubic_coeff_a", "exclude_outside", "antialias")))
    torch.testing.assert_close(evaluate(op, [x])[0], general)


def test_nearest_keeps_integers_and_nan_apart() -> None:
    assert run("dmlc.resize", torch.tensor([[[1, 2]]]), shape=(1, 1, 4)).tolist() == [[[1, 1, 2, 2]]]
    y = run("dmlc.resize", torch.tensor([[[1.0, 2.0, float("nan")]]]), shape=(1, 1, 5), mode="linear", coordinate="align_corners")
    assert y[0, 0, :3].tolist() == [1.0, 1.5, 2.0]


# ---------------------------------------------------------------- pools


def test_average_divides_by_real_and_explicit_cells() -> None:
    """Cells that ceil_mode invents past the padding do not count."""
    x = torch.arange(1.0, 17.0).reshape(1, 1, 4, 4)
    attrs = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": True}
    wanted = torch.tensor([[14 / 9, 10 / 3, 2.0], [19 / 3, 11.0, 6.0], [4.5, 7.5, 4.0]])
    torch.testing.assert_close(run("dmlc.avg_pool", x, **attrs)[0, 0], wanted)
    torch.testing.assert_close(helpers.avg_pool(x, (3, 3), (3, 3), (2, 2), (1, 1, 1, 1), True)[0, 0], wanted)


def test_window_that_starts_in_the_high_padding_is_dropped() -> None:
    x = torch.ones(1, 3, 2, 2)
    for name in ("dmlc.avg_pool", "dmlc.max_pool"):
        assert run(name, x, kernel=(3, 3), stride=(3, 3), padding=(1, 1, 1, 1), ceil_mode=True).shape == (1, 3, 1, 1)


@pytest.mark.parametrize(("kernel", "stride", "pad", "ceil"), [(3, 2, 1, False), (3, 2, 1, True), (2, 2, 0, True), (2, 1, 1, False), (3, 3, 1, True)])
@pytest.mark.parametrize("count", [True, False])
def test_general_pools_agree_with_the_library(kernel: int, stride: int, pad: int, ceil: bool, count: bool) -> None:
    """The helpers for any padding, where the library can do the same."""
    x, k, s, p = seeded(2, 3, 7, 6), (kernel,) * 2, (stride,) * 2, (pad,) * 4
    wanted = F.avg_pool2d(x, k, s, (pad, pad), ceil, count)
    torch.testing.assert_close(helpers.avg_pool(x, wanted.shape[2:], k, s, p, count), wanted)
    largest = F.max_pool2d(x, k, s, (pad, pad), 1, ceil)
    torch.testing.assert_close(helpers.max_pool(x, largest.shape[2:], k, s, p, (1, 1)), largest)


def test_max_pool_keeps_nan_and_integers() -> None:
    x = torch.tensor([[[1.0, float("nan"), 0.0, 2.0]]])
    for padding in ((0, 0), (0, 1)):
        y = run("dmlc.max_pool", x, kernel=(2,), stride=(2,), padding=padding)
        assert y.isnan().tolist() == [[[True, False]]]
    assert run("dmlc.max_pool", torch.tensor([[[-5, -7, -3]]]), kernel=(3,), padding=(2, 0)).tolist() == [[[-5, -5, -3]]]


POOLED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9), {"kernel": (3,), "stride": (2,), "padding": (1, 1), "ceil_mode": True}),
    ((2, 3, 7, 6), {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1, 1, 1), "dilation": (1, 2)}),
    ((1, 2, 5, 4, 6), {"kernel": (3, 2, 3), "stride": (2, 2, 2), "padding": (1, 1, 0, 0, 1, 1), "ceil_mode": True}),
    ((2, 3, 7, 6), {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 0, 0, 1)}),  # the library has no such windows
]


def _pool_gradient(x: torch.Tensor, g: torch.Tensor | None, attrs: dict[str, Any]) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The pool after its gradient was asked for, its result, and the gradient that was emitted."""
    op = build("dmlc.max_pool", (x,), **attrs)
    arg = op.block.add_arg(op.result.type)
    (made,) = definition(op).vjp(Builder(op.block), op, [arg])
    definition(op).verify(op)
    results = dict(zip(op.results, evaluate(op, [x])))
    found = {op.operands[0]: x, arg: torch.ones_like(results[op.results[0]]) if g is None else g, **results}
    return op, results[op.results[0]], evaluate(made.op, [found[v] for v in made.op.operands])[0]


@pytest.mark.parametrize(("order", "shape", "attrs"), [*((torch.contiguous_format, *p) for p in POOLED), (torch.channels_last, *POOLED[1])])
def test_max_pool_gradient_agrees_with_autograd(shape: tuple[int, ...], attrs: dict[str, Any], order: torch.memory_format) -> None:
    """By the positions that the forward pool keeps, where paddings are equal; by comparing again, where they are not."""
    x = seeded(*shape).contiguous(memory_format=order).requires_grad_()
    low, high = (attrs.get("padding", (0,) * 2 * len(shape))[i::2] for i in (0, 1))
    padded = x if low == high else F.pad(x, [p for pair in reversed(list(zip(low, high))) for p in pair], value=float("-inf"))
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(shape) - 3]
    y = pool(padded, attrs["kernel"], attrs["stride"], low if low == high else 0, attrs.get("dilation", 1), attrs.get("ceil_mode", False))
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).contiguous(memory_format=order)
    op, result, gradient = _pool_gradient(x.detach(), g, attrs)
    assert len(op.results) == (2 if low == high else 1)
    torch.testing.assert_close(result, y.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(y, x, g)[0])


def test_max_pool_gradient_goes_to_the_first_of_equals_and_to_nan() -> None:
    """Both ways of the gradient, as PyTorch has it."""
    x = torch.tensor([[[1.0, 1.0, 0.0, float("nan"), 2.0, 2.0]]])
    for padding in ((0, 0), (0, 1)):
        _, _, gradient = _pool_gradient(x, None, {"kernel": (2,), "stride": (2,), "padding": padding})
        assert gradient.tolist() == [[[1, 0, 0, 1, 1, 0]]]


def test_max_pool_keeps_positions_only_of_windows_that_the_library_takes() -> None:
    x = seeded(1, 1, 4, 4)
    for attrs in ({"padding": (0, 1, 0, 1), "residuals": ("indices",)}, {"residuals": ("lse",)}):
        with pytest.raises(DmlcError, match="residual indices"):
            build("dmlc.max_pool", (x,), kernel=(2, 2), **attrs)
    with pytest.raises(DmlcError, match="as many positions"):
        build("dmlc.max_pool_index_grad", (x, torch.zeros(1, 1, 4, 3, dtype=torch.int64)), (1, 1, 8, 8), kernel=(2, 2), stride=(2, 2))


def test_adaptive_grad_is_the_adjoint() -> None:
    x, g = seeded(2, 3, 7, 5), seeded(2, 3, 3, 4)
    y = run("dmlc.adaptive_avg_pool", x, shape=(2, 3, 3, 4))
    dx = run("dmlc.adaptive_avg_pool_grad", g, shape=(2, 3, 7, 5))
    torch.testing.assert_close((y * g).sum(), (x * dx).sum())


# ---------------------------------------------------------------- convolutions


@pytest.mark.parametrize(("stride", "pad", "dilation", "groups"), list(itertools.product((1, 2), (0, 1), (1, 2), (1, 2))))
def test_convolution_gradients_agree_with_autograd(stride: int, pad: int, dilation: int, groups: int) -> None:
    x, w = seeded(2, 4, 7, 6).requires_grad_(), seeded(6, 4 // groups, 3, 2).requires_grad_()
    y = F.conv2d(x, w, None, stride, pad, dilation, groups)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    dx, dw = torch.autograd.grad(y, (x, w), g)
    attrs = {"stride": (stride,) * 2, "padding": (pad,) * 4, "dilation": (dilation,) * 2, "groups": groups}
    torch.testing.assert_close(run("dmlc.conv", x.detach(), w.detach(), **attrs), y)
    torch.testing.assert_close(run("dmlc.conv_input_grad", g, w.detach(), shape=tuple(x.shape), **attrs), dx)
    torch.testing.assert_close(run("dmlc.conv_weight_grad", x.detach(), g, shape=tuple(w.shape), **attrs), dw)


def test_transposed_convolution_with_uneven_padding() -> None:
    """Padding on one side only is what cropping the full result gives."""
    x, w = seeded(1, 3, 4, 4), seeded(3, 2, 3, 3)
    full = F.conv_transpose2d(x, w, None, 2)
    torch.testing.assert_close(run("dmlc.conv_transpose", x, w, stride=(2, 2), padding=(0, 1, 2, 0)), full[:, :, : full.shape[2] - 1, 2:])


def test_work() -> None:
    """Multiply-adds of a convolution: results times channels of a group times kernel."""
    x, w = seeded(2, 4, 7, 6), seeded(6, 2, 3, 2)
    op = build("dmlc.conv", (x, w), groups=2)
    assert flops_of(op) == 2 * 6 * 5 * 5 * 2 * 3 * 2


def test_ill_formed() -> None:
    x, w = seeded(2, 4, 7, 6), seeded(6, 4, 3, 2)
    for attrs, message in [({"groups": 2}, "do not fit"), ({"stride": (0, 1)}, "must be positive"), ({"padding": (1, 1)}, "do not fit 2 spatial dims"), ({"dilation": (4, 1)}, "does not fit a dim")]:
        with pytest.raises(DmlcError, match=message):
            run("dmlc.conv", x, w, **attrs)
    with pytest.raises(DmlcError, match="windows"):
        run("dmlc.conv_input_grad", seeded(2, 6, 4, 5), w, shape=(2, 4, 7, 6))


# ---------------------------------------------------------------- norms


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_squares_in_half_precision(dtype: torch.dtype) -> None:
    """Mean of squares of eight 1000s is infinite in f16; the norm and its parts work in f32."""
    x, w = torch.full((1, 8), 1000.0, dtype=dtype), torch.ones(8, dtype=dtype)
    op = build("dmlc.rms_norm", (x, w), eps=1e-6)
    assert evaluate(op, [x, w])[0].tolist() == [[1.0] * 8]
    value = definition(op).decompose(Builder(op.block), op)[0]
    env: dict[Any, torch.Tensor] = dict(zip(op.operands, (x, w)))
    for part in op.block:
        env.update(zip(part.results, evaluate(part, [env[v] for v in part.operands])))
    assert env[value].tolist() == [[1.0] * 8] and env[value].dtype == dtype
