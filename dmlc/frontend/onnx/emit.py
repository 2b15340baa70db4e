"""Building ops during import: where they go (the program, or a scratch block that is evaluated at once), and short forms for common ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Union

import numpy as np
import torch

from dmlc.frontend.onnx.open_values import is_open, joined_shape
from dmlc.frontend.onnx.tensors import from_torch, to_torch
from dmlc.frontend.onnx.values import FOLD_LIMIT, Known, Tensor, Weight
from dmlc.interpret.evaluate import evaluate
from dmlc.ir.builder import infer_types
from dmlc.ir.core import Block, Op, Value
from dmlc.ir.dims import Dim
from dmlc.ir.location import UNKNOWN, DmlcError, Loc
from dmlc.ir.open_sizes import SizesDiffer
from dmlc.ir.registry import lookup
from dmlc.ir.types import FLOATS, TensorType, Type

Operand = Union[Tensor, int, float, bool, Dim]


class Emitter(Protocol):
    """Where ops go. `loc` is the place given to new ops."""

    loc: Loc

    def op(self, name: str, operands: Sequence[Value], attrs: dict[str, Any], types: Sequence[Type] | None) -> Op: ...

    def constant(self, known: Known) -> Value: ...

    def weight(self, weight: Weight, role: str) -> Value: ...

    def mark(self, value: Value, role: str) -> None:
        """Weights that reach the value through views and copies have this role too."""
        ...


class Scratch:
    """Ops on known operands, evaluated through the same text as the program's, so a folded constant and a kernel agree."""

    def __init__(self, loc: Loc = UNKNOWN):
        self.loc, self.block = loc, Block()
        self.arrays: dict[Value, tuple[np.ndarray, str]] = {}

    def op(self, name: str, operands: Sequence[Value], attrs: dict[str, Any], types: Sequence[Type] | None) -> Op:
        types = infer_types(name, operands, attrs, self.loc) if types is None else types
        return self.block.append(Op(name, operands, types, attrs, loc=self.loc))

    def constant(self, known: Known) -> Value:
        value = self.block.add_arg(TensorType(known.shape, known.dtype))
        self.arrays[value] = known.array, known.dtype
        return value

    def weight(self, weight: Weight, role: str) -> Value:
        return self.constant(weight.read())

    def mark(self, value: Value, role: str) -> None:
        """Nothing here is a weight."""

    def evaluate(self, results: Sequence[Tensor]) -> list[Known] | None:
        """The results as arrays; None when a value on the way is too large, or a cast's result is not specified (NaN or out of range to integer)."""
        if any(r.tensor.numel > FOLD_LIMIT for op in self.block for r in op.results):
            return None
        env = {value: to_torch(array, dtype) for value, (array, dtype) in self.arrays.items()}
        for op in self.block:
            operands = [env[v] for v in op.operands]
            if op.name == "dmlc.cast" and not _cast_is_specified(operands[0], op.result.dtype):
                return None
            env.update(zip(op.results, evaluate(op, operands)))
        return [_known(r, env) for r in results]


def _known(result: Tensor, env: dict[Value, torch.Tensor]) -> Known:
    if isinstance(result, Known):
        return result
    if isinstance(result, Weight):
        return result.read()
    return Known(from_torch(env[result], result.dtype), result.dtype)


def _cast_is_specified(x: torch.Tensor, dtype: str) -> bool:
    if not x.is_floating_point() or dtype in FLOATS or dtype == "i1" or not x.numel():
        return True
    limits = torch.iinfo(getattr(torch, {"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "ui8": "uint8"}[dtype]))
    wide = x.double().trunc()
    return bool(torch.isfinite(wide).all()) and wide.min().item() >= limits.min and wide.max().item() <= limits.max


def type_of(t: Tensor) -> TensorType:
    return t.tensor if isinstance(t, Value) else TensorType(tuple(t.shape), t.dtype)


def concrete(t: Tensor) -> tuple[int, ...]:
    """The shape; every size is known during import."""
    return type_of(t).shape  # type: ignore[return-value]


class Emit:
    """Short forms for building ops. Steps that change nothing (a reshape to the same shape, …) return their operand."""

    def __init__(self, emitter: Emitter):
        self.emitter = emitter

    def value(self, t: Tensor, role: str = "const") -> Value:
        """The tensor as an operand of an op: an argument for a weight or an array, a `dmlc.full` for an array of one repeated value."""
        if isinstance(t, Value):
            self.emitter.mark(t, role)
            return t
        if isinstance(t, Weight):
            if role == "const" and t.constant_like:
                return self.value(t.read())
            return self.emitter.weight(t, role)
        if t.literal and role != "const" and t.array.size > 1:
            return self.emitter.weight(t.weight, role)
        if is_open(t.array):
            return self.sizes_value(t)
        uniform = t.uniform
        return self.emitter.constant(t) if uniform is None else self.full(uniform, t.dtype, t.shape)

    def sizes_value(self, t: Known) -> Value:
        """Integers with open sizes among them, as a value of the program."""
        parts = [self.emit_as((), "i64", "dmlc.full", value=n) for n in t.array.reshape(-1).tolist()]
        if t.shape == ():
            return self.value(self.cast(parts[0], t.dtype))
        return self.value(self.cast(self.reshape(self.concat([self.reshape(p, (1,)) for p in parts], 0), t.shape), t.dtype))

    def op(self, name: str, operands: Sequence[Tensor], types: Sequence[Type] | None = None, **attrs: Any) -> Op:
        """An op; attributes that have their default value are left out."""
        defaults = getattr(lookup(name), "attributes", {})
        own = {k: v for k, v in attrs.items() if k not in defaults or type(v) is not type(defaults[k]) or v != defaults[k]}
        return self.emitter.op(name, [self.value(t) for t in operands], own, types)

    def emit(self, name: str, *operands: Tensor, **attrs: Any) -> Value:
        """A one-result op whose type follows from its operands."""
        return self.op(name, operands, **attrs).result

    def emit_as(self, shape: Sequence[int], dtype: str, name: str, *operands: Tensor, **attrs: Any) -> Value:
        """A one-result op whose type is given."""
        return self.op(name, operands, [TensorType(tuple(shape), dtype)], **attrs).result

    def full(self, value: bool | int | float, dtype: str, shape: Sequence[int] = ()) -> Value:
        number = float(value) if dtype in FLOATS else bool(value) if dtype == "i1" else int(value)
        return self.emit_as(shape, dtype, "dmlc.full", value=number)

    def pointwise(self, name: str, *operands: Operand, **attrs: Any) -> Value:
        """A pointwise op. Python numbers take the dtype of the other operands; repeated values shrink to a scalar where the shape allows."""
        dtype = next(type_of(t).dtype for t in operands if not isinstance(t, (int, float, Dim)))
        return self.emit(name, *self._shrunk([Known.of(t, dtype) if isinstance(t, (int, float, Dim)) else t for t in operands]), **attrs)

    def select(self, condition: Tensor, a: Operand, b: Operand) -> Value:
        dtype = next(type_of(t).dtype for t in (a, b) if not isinstance(t, (int, float, Dim)))
        branches = [Known.of(t, dtype) if isinstance(t, (int, float, Dim)) else t for t in (a, b)]
        return self.emit("dmlc.select", *self._shrunk([condition, *branches]))

    def _shrunk(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """Known arrays without the dims along which they only repeat, as far as the result keeps its shape."""
        result = [t.read() if isinstance(t, Weight) and t.constant_like else t for t in operands]
        for i, t in enumerate(result):
            if isinstance(t, Known) and is_open(t.array):
                continue
            if isinstance(t, Known) and t.array.size > 1:
                others = [type_of(other).shape for k, other in enumerate(result) if k != i]
                result[i] = _unrepeated(t, broadcast_shape([*others, ()]))
            elif isinstance(t, Known) and t.array.size == 1 and len(t.shape) <= max(len(type_of(other).shape) for k, other in enumerate(result) if k != i):
                result[i] = Known(t.array.reshape(()), t.dtype, t.name)
        return result

    def reshape(self, t: Tensor, shape: Sequence[int]) -> Tensor:
        shape = tuple(shape)
        source = type_of(t)
        if source.shape == shape:
            return t
        if math.prod(shape) != source.numel:
            if not isinstance(source.numel, int) or not isinstance(math.prod(shape), int):
                raise SizesDiffer.between(math.prod(shape), source.numel, f"a tensor of shape {as_list(source.shape)} cannot take the shape {as_list(shape)}")
            raise DmlcError(f"a tensor of shape {list(source.shape)} cannot take the shape {list(shape)}")
        return self.emit_as(shape, source.dtype, "dmlc.reshape", t)

    def transpose(self, t: Tensor, perm: Sequence[int]) -> Tensor:
        return t if tuple(perm) == tuple(range(len(perm))) else self.emit("dmlc.transpose", t, perm=tuple(perm))

    def broadcast(self, t: Tensor, shape: Sequence[int]) -> Tensor:
        source = type_of(t)
        if source.shape == tuple(shape):
            return t
        if broadcast_shape([source.shape, shape]) != tuple(shape):
            raise DmlcError(f"a tensor of shape {list(source.shape)} does not expand to {list(shape)}")
        if isinstance(t, Known) and t.uniform is not None:
            return Known(np.broadcast_to(t.array, tuple(shape)), t.dtype)
        return self.emit_as(shape, source.dtype, "dmlc.broadcast", t)

    def slice(self, t: Tensor, dim: int, start: int, stop: int, step: int = 1) -> Tensor:
        if (start, stop, step) == (0, type_of(t).shape[dim], 1):
            return t
        return self.emit("dmlc.slice", t, dim=dim, start=start, stop=stop, step=step)

    def pick(self, t: Tensor, dim: int, index: int) -> Tensor:
        """One place of a dim, which goes away."""
        shape = list(type_of(t).shape)
        return self.reshape(self.slice(t, dim, index, index + 1), shape[:dim] + shape[dim + 1 :])

    def concat(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        return parts[0] if len(parts) == 1 else self.emit("dmlc.concat", *parts, dim=dim)

    def cast(self, t: Tensor, dtype: str) -> Tensor:
        return t if type_of(t).dtype == dtype else self.emit("dmlc.cast", t, to=dtype)

    def iota(self, shape: Sequence[int], dim: int = 0, dtype: str = "i64") -> Value:
        return self.emit_as(shape, dtype, "dmlc.iota", dim=dim)

    def reduce(self, kind: str, t: Tensor, dims: Sequence[int], keepdim: bool = True) -> Tensor:
        return self.emit(f"dmlc.reduce_{kind}", t, dims=tuple(dims), keepdim=keepdim) if dims else t

    def mean(self, t: Tensor, dims: Sequence[int], keepdim: bool = True) -> Value:
        """Sum times 1/n; over no elements that is 0 * inf = NaN, as a mean of nothing is. Over an open size, sum over n."""
        count = math.prod(concrete(t)[d] for d in dims)
        if isinstance(count, Dim):
            return self.pointwise("dmlc.div", self.reduce("sum", t, dims, keepdim), self.cast(self.emit_as((), "i64", "dmlc.full", value=count), type_of(t).dtype))
        return self.pointwise("dmlc.mul", self.reduce("sum", t, dims, keepdim), 1.0 / count if count else math.inf)

    def chain(self, t: Tensor, *steps: Callable[[Tensor], Tensor]) -> Tensor:
        for step in steps:
            t = step(t)
        return t


def _unrepeated(known: Known, rest: Sequence[int]) -> Known:
    """The array with size 1 along dims that only repeat and that the other operands' shape `rest` has anyway; rank 0 when nothing is left."""
    array = known.array
    for d in range(array.ndim):
        place = len(rest) - array.ndim + d
        if array.shape[d] > 1 and place >= 0 and rest[place] == array.shape[d]:
            first = array[(slice(None),) * d + (slice(0, 1),)]
            array = first if array.strides[d] == 0 or _same_bits(array, first) else array
    if array.size == 1 and array.ndim <= len(rest):
        array = array.reshape(())
    return known if array is known.array or array.shape == known.shape else Known(array, known.dtype, known.name)


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return bool((a.view(bits) == b.view(bits)).all())


def broadcast_shape(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    found = joined_shape(shapes)
    if found is None:
        raise DmlcError(f"shapes {', '.join(str(as_list(s)) for s in shapes)} do not broadcast together")
    return found  # type: ignore[return-value]


def as_list(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
