"""Integers known at import up to open sizes: what exporters compute from shapes. Such arrays hold Python integers and `Dim`s (numpy's dtype object).

The operators of `TABLE` are computed on them; what another operator reads becomes a value of the program, made of `dmlc.full`s.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dmlc.ir.dims import Dim, Size, bounds
from dmlc.ir.open_sizes import SizesDiffer, UnknownSize, current, larger, smaller

if TYPE_CHECKING:
    from dmlc.frontend.onnx.node import Node

INTEGERS = ("i64", "i32")
LONGEST = 64  # elements of an array that is still a list of sizes and not a table
STEERED = (
    "Gather",
    "Unsqueeze",
    "Squeeze",
    "Slice",
    "Reshape",
    "Expand",
    "ReduceProd",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
)  # by operands that must be numbers


def is_open(array: np.ndarray) -> bool:
    return array.dtype == object


def of_sizes(sizes: Sequence[Size] | Size) -> np.ndarray:
    """An array of sizes: of int64 where all are numbers."""
    listed = list(sizes) if isinstance(sizes, Sequence) else [sizes]
    if not any(isinstance(n, Dim) for n in listed):
        made = np.asarray(listed, np.int64)
    else:
        made = np.empty(len(listed), object)
        made[:] = listed
    return made if isinstance(sizes, Sequence) else made.reshape(())


def settled(array: np.ndarray) -> np.ndarray:
    """The array as int64, or bool, where no open size is left in it."""
    elements = array.reshape(-1).tolist()
    if any(isinstance(n, Dim) for n in elements):
        return array
    return array.astype(bool if elements and all(isinstance(n, bool) for n in elements) else np.int64)


def equal(a: Size, b: Size) -> bool:
    """Whether two sizes are the same for all values: answered by the ranges. Raises `UnknownSize` where that depends."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a == b
    if a == b:
        return True
    sizes = current()
    low, high = bounds(a - b, sizes.ranges() if sizes is not None else None)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    raise UnknownSize.of(a - b, f"whether {a} equals {b} depends on the sizes")


def _quotient(a: Size, b: Size) -> Size:
    """ONNX's division of integers truncates; sizes are not negative."""
    if isinstance(a, int) and isinstance(b, int):
        return math.trunc(a / b) if abs(a) < 1 << 50 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if a < 0 or b < 0:
        raise UnknownSize.of(a, f"{a} / {b} of negative sizes")
    return a // b


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Node, list[np.ndarray]], np.ndarray]:
    made = np.frompyfunc(function, 2, 1)
    return lambda n, given: np.asarray(made(*given), object)


def _folded(function: Callable[[Any, Any], Any]) -> Callable[[Node, list[np.ndarray]], np.ndarray]:
    made = np.frompyfunc(function, 2, 1)

    def run(n: Node, given: list[np.ndarray]) -> np.ndarray:
        total = given[0]
        for array in given[1:]:
            total = made(total, array)
        return np.asarray(total, object)

    return run


def _axes(n: Node, given: list[np.ndarray]) -> tuple[int, ...] | None:
    axes = n.attr("axes", None)
    if axes is None and len(given) > 1:
        axes = tuple(int(a) for a in given[1].reshape(-1))
    return tuple(axes) if axes is not None else None


def _unsqueeze(n: Node, given: list[np.ndarray]) -> np.ndarray:
    axes = _axes(n, given) or ()
    rank = given[0].ndim + len(axes)
    new, rest = {a % rank for a in axes}, iter(given[0].shape)
    return given[0].reshape([1 if d in new else next(rest) for d in range(rank)])


def _squeeze(n: Node, given: list[np.ndarray]) -> np.ndarray:
    axes = _axes(n, given)
    gone = {a % given[0].ndim for a in axes} if axes is not None else {d for d, s in enumerate(given[0].shape) if s == 1}
    return given[0].reshape([s for d, s in enumerate(given[0].shape) if d not in gone])


def _slice(n: Node, given: list[np.ndarray]) -> np.ndarray:
    starts, ends, *more = (tuple(map(int, a.reshape(-1))) for a in given[1:]) if len(given) > 1 else (n.attr("starts"), n.attr("ends"))
    axes = more[0] if more else n.attr("axes", tuple(range(len(starts))))
    steps = more[1] if len(more) > 1 else (1,) * len(starts)
    x = given[0]
    for start, end, axis, step in zip(starts, ends, axes, steps):
        x = x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]
    return x


def _reduce(function: Callable[[Any, Any], Any], initial: int | None) -> Callable[[Node, list[np.ndarray]], np.ndarray]:
    def run(n: Node, given: list[np.ndarray]) -> np.ndarray:
        x, axes = given[0], _axes(n, given)
        if axes is not None and {a % x.ndim for a in axes} != set(range(x.ndim)):
            raise UnknownSize.of(next(e for e in x.reshape(-1) if isinstance(e, Dim)), "a reduction of sizes along some of their dims")
        total = initial
        for element in x.reshape(-1).tolist():
            total = element if total is None else function(total, element)
        made = np.empty((), object)
        made[()] = total
        return made.reshape((1,) * x.ndim) if n.attr("keepdims", 1) else made

    return run


def _cast(n: Node, given: list[np.ndarray]) -> np.ndarray | None:
    return given[0] if n.attr("to") in (6, 7) else None  # int32, int64


def _where(n: Node, given: list[np.ndarray]) -> np.ndarray:
    return np.where(given[0].astype(bool), given[1], given[2])


TABLE: dict[str, Callable[[Any, list[np.ndarray]], np.ndarray | None]] = {
    "Identity": lambda n, given: given[0],
    "Cast": _cast,
    "Gather": lambda n, given: np.asarray(np.take(given[0], given[1].astype(np.int64), n.attr("axis", 0)), object),
    "Concat": lambda n, given: np.concatenate(given, n.attr("axis")),
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Reshape": lambda n, given: given[0].reshape(tuple(map(int, given[1]))),
    "Expand": lambda n, given: np.asarray(np.broadcast_to(given[0], np.broadcast_shapes(given[0].shape, tuple(map(int, given[1]))))),
    "Transpose": lambda n, given: np.transpose(given[0], n.attr("perm", None)),
    "Add": _binary(operator.add),
    "Sub": _binary(operator.sub),
    "Mul": _binary(operator.mul),
    "Div": _binary(_quotient),
    "Mod": _binary(operator.mod),
    "Neg": lambda n, given: np.asarray(-given[0], object),
    "Max": _folded(larger),
    "Min": _folded(smaller),
    "Equal": _binary(equal),
    "Less": _binary(operator.lt),
    "LessOrEqual": _binary(operator.le),
    "Greater": _binary(operator.gt),
    "GreaterOrEqual": _binary(operator.ge),
    "Where": _where,
    "ReduceProd": _reduce(operator.mul, 1),
    "ReduceSum": _reduce(operator.add, 0),
    "ReduceMax": _reduce(larger, None),
    "ReduceMin": _reduce(smaller, None),
}


def computed(node: Node, given: Sequence[np.ndarray]) -> np.ndarray | None:
    """A node's result on arrays of sizes; None for an operator that works on them in the program only."""
    run = TABLE.get(node.proto.op_type)
    if any(a.size > LONGEST for a in given) or (node.proto.op_type in STEERED and any(map(is_open, given[1:]))):
        return None
    found = run(node, list(given)) if run is not None else None
    return None if found is None else settled(np.asarray(found, object))


def joined_shape(shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...] | None:
    """numpy's broadcasting of shapes with open sizes: an open size is no 1 that stretches. None where the ranks or numbers do not go together."""
    rank = max(map(len, shapes), default=0)
    out: list[Size] = [1] * rank
    for shape in shapes:
        for d, n in enumerate(shape, rank - len(shape)):
            if n == 1 or n == out[d]:
                continue
            if out[d] != 1:
                if isinstance(n, int) and isinstance(out[d], int):
                    return None
                raise SizesDiffer.between(out[d], n, f"sizes {out[d]} and {n} have to agree")
            out[d] = n
    return tuple(out)
