"""What pointwise ops share: right-aligned broadcasting, dtype kinds, default samples, and the small constructors that make one-line definitions.

`triton` texts work on values widened to the compute dtype (`triton_dtype`): 16-bit and 8-bit floats are fp32 inside a kernel, everything else
keeps its dtype. Operands are names in the text, so repeating one costs nothing. No libdevice, which Triton's interpreter lacks; where Triton
itself has no such function (atan, …) `triton` is None and the op stays outside kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from dmlc.ir.attributes import AttrDict
from dmlc.ir.types import FLOATS, INTEGERS, TensorType, Type
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample

KINDS = {"float": FLOATS, "integer": INTEGERS, "number": (*FLOATS, *INTEGERS), "bool": ("i1",), "bits": (*INTEGERS, "i1"), "any": (*FLOATS, *INTEGERS, "i1")}

Maker = Callable[..., Any]  # (numpy generator, shape, numpy dtype name) -> array


class Pointwise(OpDef):
    """Elementwise with right-aligned broadcasting of size-1 dims; operands share one dtype of the given kind."""

    arity: ClassVar[int] = 1
    kind: ClassVar[str] = "float"

    @classmethod
    def result_types(cls, operand_types: Sequence[Type], attrs: dict[str, Any]) -> list[Type] | None:
        if len(operand_types) != cls.arity:
            raise InferError(f"'{cls.name}' takes {cls.arity} operands, not {len(operand_types)}")
        for t in operand_types:
            if not isinstance(t, TensorType) or t.dtype not in KINDS[cls.kind]:
                raise InferError(f"'{cls.name}' takes tensors of {cls.kind} dtype, not {t}")
        return super().result_types(operand_types, attrs)


def triton_dtype(dtype: str) -> str:
    """The dtype a value of `dtype` has inside a generated kernel, as Triton text."""
    wide = "f32" if dtype in ("bf16", "f16", "f8E4M3FN", "f8E5M2") else dtype
    return {"f64": "tl.float64", "f32": "tl.float32", "i64": "tl.int64", "i32": "tl.int32", "i16": "tl.int16", "i8": "tl.int8", "ui8": "tl.uint8", "i1": "tl.int1"}[wide]


# ---------------------------------------------------------------- samples

SHAPES_1 = (((5, 3),), ((1,),), ((0, 4),), ((),))
SHAPES_2 = (((5, 3), (5, 3)), ((2, 5, 3), (5, 1)), ((1,), (1,)), ((0, 4), (0, 4)), ((7,), ()), ((1, 3), (0, 1)))
SHAPES_3 = (((5, 3), (5, 3), (5, 3)), ((5, 1), (2, 1, 3), ()), ((1,), (1,), (1,)), ((0, 4), (4,), (0, 4)))


def between(low: float, high: float) -> Maker:
    """Uniform values of an open interval: the domain of log, asin, …"""
    return lambda rng, shape, dtype: rng.uniform(low, high, shape)


def integers(low: int, high: int) -> Maker:
    """Integers of [low, high)."""
    return lambda rng, shape, dtype: rng.integers(low, high, shape)


def away_from_zero(rng: Any, shape: Any, dtype: str) -> Any:
    """Divisors: magnitude in [1, 4), either sign."""
    sign = rng.integers(0, 2, shape) * 2 - 1
    return sign * (rng.uniform(1, 4, shape) if dtype.startswith("float") else rng.integers(1, 4, shape))


def default_dtypes(kind: str) -> tuple[str, ...]:
    return {"float": ("f32",), "integer": ("i64",), "number": ("f32", "i64"), "bool": ("i1",), "bits": ("i32", "i1"), "any": ("f32", "i64", "i1")}[kind]


def family_samples(shapes: Sequence[Any], dtypes: Sequence[str], values: dict[str, Maker], attrs: Sequence[dict[str, Any]] = ({},)) -> Callable[[], list[Sample]]:
    """All shapes in the first dtype and with the first attributes; the first shape in every dtype and with all attributes."""

    def make(operands: Any, dtype: str, own: dict[str, Any]) -> Sample:
        return Sample(tuple(TensorType(s, dtype) for s in operands), AttrDict(own), values=AttrDict(values))

    def samples() -> list[Sample]:
        all_shapes = [make(s, dtypes[0], attrs[0]) for s in shapes]
        return all_shapes + [make(shapes[0], d, a) for d in dtypes for a in attrs if (d, a) != (dtypes[0], attrs[0])]

    return samples


# ---------------------------------------------------------------- constructors


def pointwise(short: str, arity: int, shapes: Sequence[Any], doc: str, facets: dict[str, Any]) -> type[Pointwise]:
    """Make and register the class of `dmlc.<short>`. Beyond facets: `domain` (a maker for operand values, or one an operand), `variants`
    (attributes its samples go through), `dtypes` (those its samples go through) and `extra` samples."""
    domain = facets.pop("domain", None)
    makers = domain if isinstance(domain, dict) else {str(i): domain for i in range(arity)} if domain else {}
    kind = facets.setdefault("kind", "float")
    usual, extra = family_samples(shapes, facets.pop("dtypes", default_dtypes(kind)), makers, facets.pop("variants", ({},))), facets.pop("extra", ())
    rule = ", ".join(["..."] * arity) + " -> ..."
    title = "".join(part.capitalize() for part in short.split("_"))
    body = {"name": f"dmlc.{short}", "__doc__": doc, "__module__": __name__, "arity": arity, "rule": rule, "samples": staticmethod(lambda: [*usual(), *extra])}
    return type(title, (Pointwise,), body | {key: staticmethod(v) if callable(v) else v for key, v in facets.items()})


FAR_AND_NEAR = (-90.0, -21.0, -5.0, -0.05, -1e-3, -1e-6, 0.0, 1e-5, 1e-3, 0.02, 0.3, 5.0, 15.0, 25.0, 100.0)


def far_and_near() -> Sample:
    """Where functions overflow, and where they cancel."""
    values = AttrDict({"0": lambda rng, shape, dtype: list(FAR_AND_NEAR)})
    return Sample((TensorType((len(FAR_AND_NEAR),), "f32"),), values=values, vjp=False, why="finite differences lose their digits far from zero")


def unary(short: str, doc: str, **facets: Any) -> type[Pointwise]:
    """An op of one operand; float ones that are defined everywhere have a sample of extreme values."""
    if facets.get("kind", "float") == "float" and not facets.get("domain") and REQUIRED not in facets.get("attributes", {}).values():
        facets["extra"] = (*facets.get("extra", ()), far_and_near())
    return pointwise(short, 1, SHAPES_1, doc, facets)


def binary(short: str, doc: str, **facets: Any) -> type[Pointwise]:
    return pointwise(short, 2, SHAPES_2, doc, facets)


def predicate(types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
    """The dtype facet of comparisons and tests."""
    return "i1"
