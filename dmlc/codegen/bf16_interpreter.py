"""bfloat16 for Triton's interpreter. An output folder holds a copy of this file: it needs numpy and triton alone.

The interpreter keeps bf16 values as 16-bit integers and applies numpy to the integers: sums, comparisons and reductions come out as nonsense
and a narrowing cast truncates. `install` makes every operation of the interpreter's builder widen bf16 to fp32 first and round the result
to the nearest, ties to even. It also gives reductions by this project's combine functions numpy's speed, and silences numpy's
complaints about lanes that a mask throws away (a GPU does not trap either).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

QUIET_NAN = np.uint16(0x7FC0)
FAST_REDUCTIONS = {"nan_max": np.max, "nan_min": np.min, "times": np.prod}


def widen(bits: Any) -> np.ndarray:
    """fp32 values of bf16 bit patterns (the upper half of fp32's)."""
    bits = np.asarray(bits)
    return np.left_shift(bits.astype(np.uint32), 16, dtype=np.uint32).reshape(-1).view(np.float32).reshape(bits.shape)


def narrow(values: Any) -> np.ndarray:
    """bf16 bit patterns of fp32 values, rounded to nearest, ties to even; NaN stays NaN with its sign."""
    values = np.asarray(values, dtype=np.float32)
    bits = values.reshape(-1).view(np.uint32).reshape(values.shape).astype(np.uint64)
    tie_to_even = np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))
    rounded = ((bits + tie_to_even) >> np.uint64(16)).astype(np.uint16)
    sign = (bits >> np.uint64(16)).astype(np.uint16) & np.uint16(0x8000)
    return np.where(np.isnan(values), QUIET_NAN | sign, rounded)


def install() -> None:
    """Patch the interpreter of this process, once."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    if getattr(builder, "bf16_is_right", False):
        return
    setattr(builder, "bf16_is_right", True)  # noqa: B010  (a mark of ours on a class that has no such field)
    np.seterr(all="ignore")
    _patch_arithmetic(interpreter, builder)
    _patch_casts(interpreter, builder)
    _patch_reductions(interpreter)


def _is_bf16(handle: Any) -> bool:
    import triton.language as tl

    return handle.dtype.scalar == tl.bfloat16


class _Handles:
    """Turns the interpreter's handles from bf16 to fp32 and back."""

    def __init__(self, interpreter: Any):
        import triton.language as tl

        self.tl, self.make = tl, interpreter.TensorHandle

    def wide(self, handle: Any) -> Any:
        if not hasattr(handle, "dtype") or not _is_bf16(handle):
            return handle
        return self.make(widen(handle.data), self.tl.float32)

    def bf16(self, handle: Any) -> Any:
        return self.make(narrow(handle.data), self.tl.bfloat16)

    def through_fp32(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A builder method whose result has the dtype of its first operand."""

        def patched(builder: Any, first: Any, *others: Any) -> Any:
            if not _is_bf16(first):
                return method(builder, first, *others)
            return self.bf16(method(builder, self.wide(first), *map(self.wide, others)))

        return patched


def _patch_arithmetic(interpreter: Any, builder: Any) -> None:
    handles = _Handles(interpreter)
    tl, plain = handles.tl, builder.binary_op
    on_bits = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if op in on_bits or not (_is_bf16(lhs) or _is_bf16(rhs)):
            return plain(self, lhs, rhs, op)
        value = op(handles.wide(lhs).data, handles.wide(rhs).data)
        if value.dtype == np.bool_:
            return handles.make(value, tl.int1)
        return handles.make(narrow(value), tl.bfloat16)

    def accumulating(method: Callable[..., Any]) -> Callable[..., Any]:
        """The third operand decides the dtype of a multiply-add."""

        def patched(self: Any, a: Any, b: Any, c: Any, *rest: Any) -> Any:
            value = method(self, handles.wide(a), handles.wide(b), handles.wide(c), *rest)
            return handles.bf16(value) if _is_bf16(c) else value

        return patched

    builder.binary_op = binary_op
    for name in ("create_fma", "create_dot"):
        setattr(builder, name, accumulating(getattr(builder, name)))
    for name in ("unary_op", "create_erf", "create_rsqrt", "create_clampf"):
        setattr(builder, name, handles.through_fp32(getattr(builder, name)))


def _patch_casts(interpreter: Any, builder: Any) -> None:
    handles = _Handles(interpreter)
    tl, plain_cast, plain_floats = handles.tl, builder.cast_impl, builder.create_fp_to_fp

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        to = target.scalar
        if _is_bf16(source) == (to == tl.bfloat16):
            return plain_cast(self, source, target)
        if to == tl.bfloat16:
            return handles.make(narrow(source.data.astype(np.float32)), to)
        return handles.make(widen(source.data).astype(interpreter._get_np_dtype(target)), to)

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        narrowest = min(source.dtype.scalar.primitive_bitwidth, target.scalar.primitive_bitwidth)
        if tl.bfloat16 in (source.dtype.scalar, target.scalar) and narrowest >= 16:
            return cast_impl(self, source, target)
        return plain_floats(self, source, target, rounding)

    builder.cast_impl, builder.create_fp_to_fp = cast_impl, create_fp_to_fp


def _patch_reductions(interpreter: Any) -> None:
    reductions = interpreter.ReduceOps
    plain = reductions.apply_impl

    def whole(self: Any, inputs: tuple) -> Any:
        """numpy's own reduction where the combine function is a known one; it propagates NaN."""
        function = FAST_REDUCTIONS.get(getattr(getattr(self.combine_fn, "fn", None), "__name__", ""))
        if function is None or len(inputs) != 1 or self.axis is None:
            return plain(self, inputs)
        return (self.to_tensor(function(inputs[0].handle.data, axis=self.axis, keepdims=self.keep_dims), inputs[0].dtype),)

    def apply_impl(self: Any, inputs: tuple) -> Any:
        import triton.language as tl

        narrowed = [_is_bf16(x.handle) for x in inputs]
        if not any(narrowed):
            return whole(self, inputs)
        values = whole(self, tuple(self.to_tensor(widen(x.handle.data), tl.float32) if bf16 else x for x, bf16 in zip(inputs, narrowed)))
        single = not isinstance(values, (tuple, list))
        values = [values] if single else list(values)
        values = [_narrow_tensor(self, v) if i < len(narrowed) and narrowed[i] and v.dtype.scalar == tl.float32 else v for i, v in enumerate(values)]
        return values[0] if single else tuple(values)

    reductions.apply_impl = apply_impl


def _narrow_tensor(reduction: Any, value: Any) -> Any:
    """A reduction's fp32 result as bf16, scalars staying scalars."""
    import triton.language as tl

    bits = narrow(value.handle.data)
    return reduction.to_tensor(bits if value.type.is_block() else bits.reshape(-1)[0], tl.bfloat16)
