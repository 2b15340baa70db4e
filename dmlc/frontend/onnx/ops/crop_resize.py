"""Resize that cuts out a region first (coordinate_transformation_mode tf_crop_and_resize): the region may depend on the data."""

from __future__ import annotations

from collections.abc import Sequence

from dmlc.frontend.onnx.emit import concrete, type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.sampling import cubic_weights
from dmlc.frontend.onnx.table import Unsupported
from dmlc.frontend.onnx.values import Tensor, Weight
from dmlc.ir.core import Value
from dmlc.ir.location import DmlcError

CROP = "tf_crop_and_resize"
SHIFTS = {"linear": (0, 1), "cubic": (-1, 0, 1, 2)}


def cropped(n: Node, axes: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """One dim after another. The region (operand 1) is [start of each of `axes`, end of each], in parts of a dim. A cell outside the tensor gets
    the extrapolation value."""
    if not n.has(1) or n.shape(1) != (2 * len(axes),):
        raise DmlcError(f"a region of {2 * len(axes)} numbers is needed")
    if n.attr("antialias", 0):
        raise Unsupported("antialias = 1 of a region")
    if type_of(n[0]).dtype not in ("f16", "bf16", "f32", "f64"):
        raise Unsupported(f"a region of {type_of(n[0]).dtype}")
    x, inside = n[0], None
    region, whole = n.cast(n[1], "f64"), _whole(n, axes, sizes)
    for i, dim in enumerate(axes):
        if dim in whole:
            continue
        at = _places(n, n.slice(region, 0, i, i + 1), n.slice(region, 0, len(axes) + i, len(axes) + i + 1), n.shape(0)[dim], sizes[dim])
        x = _read(n, x, dim, at)
        here = n.pointwise("dmlc.logical_and", n.pointwise("dmlc.ge", at, 0.0), n.pointwise("dmlc.le", at, float(n.shape(0)[dim] - 1)))
        here = n.reshape(here, [sizes[dim] if d == dim else 1 for d in range(n.rank(0))])
        inside = here if inside is None else n.pointwise("dmlc.logical_and", inside, here)
    return x if inside is None else n.select(inside, x, float(n.attr("extrapolation_value", 0.0)))


def _whole(n: Node, axes: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Dims that are taken as they are, as far as the region is known."""
    if isinstance(n[1], Value) or (isinstance(n[1], Weight) and n[1].overridable):  # type: ignore[attr-defined]
        return []
    region = n.known(1, "the region")
    return [d for i, d in enumerate(axes) if (region[i], region[len(axes) + i]) == (0, 1) and sizes[d] == n.shape(0)[d]]


def _places(n: Node, start: Tensor, end: Tensor, size: int, count: int) -> Tensor:
    """Where each result cell lies among `size` cells, [count]."""
    if count == 1:
        return n.pointwise("dmlc.mul", n.pointwise("dmlc.add", start, end), 0.5 * (size - 1))
    steps = n.cast(n.iota((count,)), "f64")
    extent = n.pointwise("dmlc.mul", n.pointwise("dmlc.sub", end, start), (size - 1) / max(count - 1, 1))
    return n.pointwise("dmlc.add", n.pointwise("dmlc.mul", start, float(size - 1)), n.pointwise("dmlc.mul", steps, extent))


def _read(n: Node, x: Tensor, dim: int, at: Tensor) -> Tensor:
    """x between its cells along one dim."""
    mode, size = n.attr("mode", "nearest"), concrete(x)[dim]
    if mode == "nearest":
        return _cells(n, x, dim, _rounded(n, at))
    if mode not in SHIFTS:
        raise DmlcError(f"mode '{mode}' is not known")
    low = n.emit("dmlc.floor", at)
    part, rest = n.pointwise("dmlc.sub", at, low), [1] * len(concrete(x))
    weights = [n.pointwise("dmlc.sub", 1.0, part), part] if mode == "linear" else cubic_weights(n, part, n.attr("cubic_coeff_a", -0.75))
    cells = [n.pointwise("dmlc.add", low, float(s)) for s in SHIFTS[mode]]
    if n.attr("exclude_outside", 0):
        weights = _inside_only(n, cells, weights, size)
    rest[dim] = concrete(at)[0]
    total: Tensor | None = None
    for cell, weight in zip(cells, weights):
        term = n.pointwise("dmlc.mul", _cells(n, x, dim, cell), n.reshape(n.cast(weight, type_of(x).dtype), rest))
        total = term if total is None else n.pointwise("dmlc.add", total, term)
    assert total is not None
    return total


def _cells(n: Node, x: Tensor, dim: int, at: Tensor) -> Tensor:
    """Whole places of a dim; those outside are the nearest inside."""
    return n.emit("dmlc.take", x, n.cast(n.emit("dmlc.clamp", at, min=0.0, max=float(concrete(x)[dim] - 1)), "i64"), dim=dim)


def _rounded(n: Node, at: Tensor) -> Tensor:
    how = n.attr("nearest_mode", "round_prefer_floor")
    if how not in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        raise DmlcError(f"nearest_mode '{how}' is not known")
    shift = {"round_prefer_floor": -0.5, "round_prefer_ceil": 0.5}.get(how, 0.0)
    return n.emit("dmlc.ceil" if how in ("ceil", "round_prefer_floor") else "dmlc.floor", n.pointwise("dmlc.add", at, shift) if shift else at)


def _inside_only(n: Node, cells: Sequence[Tensor], weights: Sequence[Tensor], size: int) -> list[Tensor]:
    """Cells outside have no weight; the others share it all."""
    own = [n.pointwise("dmlc.logical_and", n.pointwise("dmlc.ge", c, 0.0), n.pointwise("dmlc.le", c, float(size - 1))) for c in cells]
    left: list[Tensor] = [n.select(inside, w, 0.0) for inside, w in zip(own, weights)]
    total = left[0]
    for w in left[1:]:
        total = n.pointwise("dmlc.add", total, w)
    return [n.pointwise("dmlc.div", w, total) for w in left]
