"""Random numbers by definition: Philox4x32-10 with key = seed and counter = (64-bit element index, step, stream).

The index is the element's in the global, unpadded tensor (`shape`), so what is drawn does not depend on how a program is split, and drawing
again gives the same. A rank that holds a part gets operands after `step` that say where it starts along each dim.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample, attribute, own_attrs
from dmlc.ops.emit import cast, f32, scalar
from dmlc.ops.terms import Term

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder

SCALAR = TensorType((), "i64")
INDEX = "({0} + tl.full([], 0, tl.int64))"  # in a kernel an index may be a bare number


class Random(OpDef):
    """Base. Operands: `first` others, then seed and step (i64, rank 0), then nothing or one start a dim."""

    given = True
    same_dtype = False
    effects = "random"
    starts = "all"
    attributes = {"shape": REQUIRED, "stream": REQUIRED}
    no_vjp = "made from integers"
    first = 0
    dtypes: tuple[str, ...] = ("f64", "f32", "f16", "bf16")

    @classmethod
    def rule(cls, op: Any) -> str:
        scalars = ["()"] * (len(op.operands) - cls.first)
        return ", ".join(["..."] * cls.first + scalars) + " -> ..."

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        rank = op.result.tensor.rank
        scalars = [v.type for v in op.operands[cls.first :]]
        if scalars not in ([SCALAR] * 2, [SCALAR] * (2 + rank)) or len(global_shape(op)) != rank:
            raise DmlcError(f"'{op.name}' takes a seed and a step (tensor<i64>), and one start a dim of its shape or none", op.loc)
        if len(scalars) == 2 and global_shape(op) != op.result.shape:
            raise DmlcError(f"'{op.name}' is a part {op.result.shape} of {global_shape(op)} but has no starts", op.loc)
        if op.result.dtype not in cls.dtypes:
            raise DmlcError(f"'{op.name}' gives one of {', '.join(cls.dtypes)}, not {op.result.dtype}", op.loc)
        if math.prod(n for n in global_shape(op) if isinstance(n, int)) >= 2**63:
            raise DmlcError(f"'{op.name}' has more elements than a 64-bit index counts", op.loc)

    @classmethod
    def counter(cls, op: Op) -> str:
        """Text of seed, step, stream, local shape, global shape and starts, as the helpers take them."""
        seed, step, *starts = (f"{{{i}}}" for i in range(cls.first, len(op.operands)))
        listed = "(" + "".join(s + ", " for s in starts) + ")"
        return f"{seed}, {step}, {{stream}}, {{r0.shape}}, {global_shape(op)!r}, {listed}"

    @classmethod
    def samples(cls) -> list[Sample]:
        shapes: list[tuple[int, ...]] = [(5, 3), (7,), (2, 3, 4), (1,), (0, 4), ()]
        dtype = "f32" if "f32" in cls.dtypes else "i1"
        return [Sample((SCALAR, SCALAR), AttrDict(shape=s, stream=3, **cls.extra()), (TensorType(s, dtype),)) for s in shapes]

    @classmethod
    def extra(cls) -> dict[str, Any]:
        return {}


class Philox(OpDef):
    """The first word (0 to 2^32 - 1) of Philox4x32-10 for each element index: what a draw inside a kernel comes down to."""

    name = "dmlc.philox"
    attributes = {"stream": REQUIRED}
    rule = "..., (), () -> ..."
    torch = "philox_word({0}, {1}, {2}, {stream})"
    triton = "tl.philox({1}, (INDEX & 0xFFFFFFFF).to(tl.uint32), (INDEX >> 32).to(tl.uint32), (INDEX * 0 + {2}).to(tl.uint32), (INDEX * 0 + {stream}).to(tl.uint32), 10)[0].to(tl.int64)".replace("INDEX", INDEX)
    no_vjp = "integer valued"

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        if [v.dtype for v in op.operands] != ["i64"] * 3:
            raise DmlcError(f"'{op.name}' takes an index, a seed and a step, all i64", op.loc)

    @staticmethod
    def samples() -> list[Sample]:
        def any_index(rng: Any, shape: Any, dtype: str) -> Any:
            return rng.integers(0, 2**62, shape)

        values = AttrDict({"0": any_index, "1": any_index})
        return [Sample((TensorType(s, "i64"), SCALAR, SCALAR), AttrDict(stream=n), values=values) for n, s in enumerate(((5, 7), (1,), (0, 4), (), (130,)))]


def word_of(b: Builder, op: Op, first: int) -> Term:
    """The first word of each element of a random op: iotas make its index in the global shape."""
    (seed, step, *starts), shape, rank = op.operands[first:], global_shape(op), op.result.tensor.rank
    index = None
    for d, n in enumerate(op.result.shape):
        line = TensorType(tuple(n if i == d else 1 for i in range(rank)), "i64")
        at = Term(b, b.emit("dmlc.iota", types=[line], dim=d))
        at = at + Term(b, starts[d]) if starts else at
        index = at if index is None else index * shape[d] + at
    position = scalar(b, 0, "i64") if index is None else index.value
    return Term(b, b.emit("dmlc.philox", position, seed, step, stream=attribute(op, "stream")))


def is_kept(b: Builder, op: Op, first: int) -> Term:
    """Whether each element is kept: 24 bits of its word against p."""
    return word_of(b, op, first).shift_right(8) >= round(attribute(op, "p") * 2**24)


def global_shape(op: Op) -> tuple[int, ...]:
    """The shape that indices count in."""
    return tuple(attribute(op, "shape")) if attribute(op, "shape") is not None else op.result.shape


class RandomUniform(Random):
    """Uniform on [0, 1): multiples of 2^-24 (f16: 2^-11, bf16: 2^-8)."""

    name = "dmlc.random_uniform"

    @staticmethod
    def torch(op: Op) -> str:
        return f"random_uniform({RandomUniform.counter(op)}, {{r0.dtype}})"

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        dtype = op.result.dtype
        bits = {"f16": 11, "bf16": 8}.get(dtype, 24)
        return [(Term(b, cast(b, word_of(b, op, 0).shift_right(32 - bits).value, dtype)) * 2.0**-bits).value]


class RandomNormal(Random):
    """Standard normal (Box-Muller)."""

    name = "dmlc.random_normal"

    @staticmethod
    def torch(op: Op) -> str:
        return f"random_normal({RandomNormal.counter(op)}, {{r0.dtype}})"


class DropoutMask(Random):
    """Whether each element is kept: true with probability 1 - p."""

    name = "dmlc.dropout_mask"
    attributes = {"p": REQUIRED, **Random.attributes}
    dtypes = ("i1",)

    @staticmethod
    def torch(op: Op) -> str:
        return f"dropout_mask({DropoutMask.counter(op)}, {{p}})"

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        return [is_kept(b, op, 0).value]

    @classmethod
    def extra(cls) -> dict[str, Any]:
        return {"p": 0.3}


class Dropout(Random):
    """x * 1 / (1 - p) where an element is kept, else 0; kept as `dmlc.dropout_mask` of the same seed, step and stream says."""

    name = "dmlc.dropout"
    attributes = {"p": REQUIRED, "stream": REQUIRED, "shape": None}
    first = 1
    given = False
    no_vjp = ""
    linear = [{0}]

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) < 3 or not 0 <= attrs["p"] <= 1:
            raise InferError("'dmlc.dropout' takes x, a seed and a step, and a p from 0 to 1")
        return [types[0]]

    @staticmethod
    def local(env: Any, op: Op, axes: Any) -> dict[str, Any]:
        """Indices go on counting in the global shape."""
        return {"shape": global_shape(op)}

    @staticmethod
    def torch(op: Op) -> str:
        seed, step, *starts = (f"{{{i}}}" for i in range(1, len(op.operands)))
        listed = "(" + "".join(s + ", " for s in starts) + ")"
        return f"dropout({{0}}, {seed}, {step}, {{stream}}, {global_shape(op)!r}, {listed}, {{p}})"

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        attrs = own_attrs(op)
        return [b.op("dmlc.dropout", [grads[0], *op.operands[1:]], attrs).result, *[None] * (len(op.operands) - 1)]

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        """Index, word, comparison, select: all of it fits a kernel, where the mask is never stored."""
        x, p = Term(b, op.operands[0]), attribute(op, "p")
        return [is_kept(b, op, 1).select(x * (1 / (1 - p) if p < 1 else 0.0), 0).value]

    @classmethod
    def samples(cls) -> list[Sample]:
        cases: list[tuple[tuple[int, ...], float]] = [((5, 3), 0.5), ((2, 3, 4), 0.1), ((7,), 0.0), ((3,), 1.0), ((1,), 0.5), ((0, 4), 0.5)]
        return [Sample((f32(*s), SCALAR, SCALAR), AttrDict(p=p, stream=2)) for s, p in cases]
