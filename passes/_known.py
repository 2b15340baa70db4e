"""Values that depend on no input: masks and positions, evaluated when a pass asks.

Arrays are kept small: a dim along which all elements are equal has size 1, so that a causal mask of a large batch is one [1, 1, t, t] array.
Evaluation goes through the ops' own `fold`, which is exact; what does not fold is not known.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import DenseResource, SymbolRef
from dmlc.ir.core import BlockArgument, Function, Module, Op, Value
from dmlc.ir.dims import Dim
from dmlc.ir.types import TensorType
from dmlc.ops.base import attribute, definition
from dmlc.ops.pointwise import Pointwise
from dmlc.passes._derive import is_stored
from dmlc.passmanager.context import Context

if TYPE_CHECKING:
    from numpy import ndarray

LIMIT = 1 << 24  # elements of the largest array made on the way


class Known:
    """Answers `array(value)`: an array that broadcasts to the value, or None. `limit` bounds the elements of every array."""

    def __init__(self, module: Module, context: Context, limit: int = LIMIT):
        self.limit, self.weights = limit, context.weights
        self.recipes: dict[str, Function] = {f.name: f for f in module.functions}
        self.roles = ("const",) if "dmlc.mode" in module.attrs else ("const", "buffer", "param")
        self._arrays: dict[Value, ndarray | None] = {}

    def array(self, value: Value) -> ndarray | None:
        if value not in self._arrays:
            for v in self._cone(value):
                self._arrays[v] = self._evaluate(v)
        return self._arrays[value]

    def _cone(self, value: Value) -> list[Value]:
        """What `value` is made from and is not evaluated yet, operands first; `value` alone if an input is among it."""
        order: dict[Value, None] = {}
        todo = [(value, False)]
        while todo:
            v, ready = todo.pop()
            if ready:
                order[v] = None
            elif v not in order and v not in self._arrays:
                operands = v.op.operands if v.op is not None else ()
                if (v.op is None and not self._readable(v)) or any(o in self._arrays and self._arrays[o] is None for o in operands):
                    self._arrays[v] = None
                    return [value]
                todo += [(v, True), *((o, False) for o in operands)]
        return list(order)

    def whole(self, value: Value) -> ndarray | None:
        """The array in its full shape."""
        import numpy as np

        array = self.array(value)
        return None if array is None or value.tensor.numel > self.limit else np.broadcast_to(array, value.shape)

    def _evaluate(self, value: Value) -> ndarray | None:
        if not isinstance(value.type, TensorType) or not value.type.is_static or value.type.dtype == "bf16":
            return None
        if isinstance(value, BlockArgument):
            return self._argument(value)
        op = value.op
        assert op is not None
        operands = [self._arrays.get(v) for v in op.operands]
        if any(a is None for a in operands) or op.dialect != "dmlc" or definition(op).effects:
            return None
        found = _small(op, operands)
        if found is None:
            found = self._folded(op, value)
        return None if found is None else _compressed(found)

    def _readable(self, arg: Value) -> bool:
        """Whether an argument is a stored constant, or one with a recipe, that nobody overrides or replaces."""
        if not is_stored(arg, self.roles):
            return False
        assert isinstance(arg, BlockArgument)
        stored, recipe = arg.attrs.get("dmlc.value"), arg.attrs.get("dmlc.derived")
        known = isinstance(recipe, SymbolRef) and recipe.name in self.recipes
        return arg.tensor.numel <= self.limit and (known or (isinstance(stored, DenseResource) and stored.key in self.weights))

    def _argument(self, arg: BlockArgument) -> ndarray | None:
        if not self._readable(arg):
            return None
        if "dmlc.derived" in arg.attrs:
            return self.array(self.recipes[arg.attrs["dmlc.derived"].name].results[0])
        return _compressed(self.weights.get(arg.attrs["dmlc.value"].key))

    def _folded(self, op: Op, value: Value) -> ndarray | None:
        """Evaluate in full size."""
        fold, results = definition(op).fold, op.results
        sizes = [v.tensor.numel for v in (*op.operands, *results)]
        if fold is None or max(sizes, default=0) > self.limit:
            return None
        arrays = fold(op, [self.whole(v) for v in op.operands])
        return None if arrays is None else arrays[results.index(value)]  # type: ignore[arg-type]


def _compressed(array: ndarray) -> ndarray:
    """Keep one element of every dim along which all are equal."""
    for d, n in enumerate(array.shape):
        first = array[(slice(None),) * d + (slice(0, 1),)]
        if n > 1 and bool((array == first).all()):
            array = first
    return array


def _small(op: Op, operands: list[Any]) -> ndarray | None:
    """The result on compressed operands, for ops that allow it; None for the others."""
    import numpy as np

    shape = op.results[0].shape
    if 0 in shape:
        return None
    kind = op.name.removeprefix("dmlc.")
    if kind == "full":
        return np.full((1,) * len(shape), op.attrs["value"], NUMPY[op.result.dtype]) if op.result.dtype in NUMPY and not isinstance(op.attrs["value"], Dim) else None
    if kind == "broadcast":
        return operands[0].reshape((1,) * (len(shape) - operands[0].ndim) + operands[0].shape)
    if kind == "transpose":
        return operands[0].transpose(op.attrs["perm"])
    if kind == "reshape":
        return _reshaped(op, operands[0])
    if kind == "index":
        return _indexed(op, operands)
    return _pointwise(op, operands) if issubclass(definition(op), Pointwise) else None


NUMPY = {"f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "ui8": "uint8", "i1": "bool"}


def _reshaped(op: Op, array: ndarray) -> ndarray | None:
    """A reshape that only adds or removes dims of size 1."""
    source, target = op.operands[0].shape, op.result.shape
    if [n for n in source if n != 1] != [n for n in target if n != 1]:
        return None
    sizes = iter(a for a, n in zip(array.shape, source) if n != 1)
    return array.reshape([1 if n == 1 else next(sizes) for n in target])


def _indexed(op: Op, operands: list[Any]) -> ndarray | None:
    """x[i0, i1, …] over compressed indices; a dim of x that is compressed takes any index."""
    x, indices = operands[0], operands[1:]
    if any(n == 1 != m for n, m in zip(x.shape[len(indices) :], op.operands[0].shape[len(indices) :])):
        return None
    return x[tuple(i * 0 if n == 1 else i for i, n in zip(indices, x.shape))]


def _pointwise(op: Op, operands: list[Any]) -> ndarray | None:
    """The fold of the same op on smaller types."""
    fold, rank = definition(op).fold, len(op.result.shape)
    if fold is None:
        return None
    padded = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in operands]
    shape = tuple(max((a.shape[d] for a in padded), default=1) for d in range(rank))
    if math.prod(shape) > LIMIT:
        return None
    own = {k: attribute(op, k) for k in definition(op).attributes if k in op.attrs}
    values = [Value(TensorType(a.shape, v.dtype)) for a, v in zip(padded, op.operands)]
    small = Op(op.name, values, [TensorType(shape, op.result.dtype)], own)
    arrays = fold(small, padded)
    return None if arrays is None else arrays[0]
