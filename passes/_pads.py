"""What is known of padding: zeros, other constants, or only that it is finite, dim by dim through a per-rank program.

Facts begin at masks (their identity), at arguments and slices (whose padding is made of zeros), at the inputs of a training step (whose
rows past the batch hold samples) and at constants; ops hand them on along the factors of their rules. A fact says where its padding
begins: `extent` is the computation that counts the valid elements, so that facts about a dim that is cut evenly and about a batch that
is not full are never mixed up; None means everywhere. Zeros go through ops that are linear in what is zero where all else is finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from dmlc.ir.core import Block, BlockArgument, Function, Op, Value
from dmlc.ir.dims import Dim
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType
from dmlc.ops.base import definition, linear_of, own_key, rule_of
from dmlc.ops.rule import Rule
from dmlc.passes._finite import finite_sign

Extent = tuple | None
Source = Any  # BlockArgument or Op whose padding is relied on

KEEP_ZERO = frozenset(
    f"dmlc.{n}"
    for n in ("gelu", "silu", "tanh", "sin", "tan", "erf", "asin", "atan", "sinh", "asinh", "expm1", "log1p", "mish", "hardswish", "elu", "leaky_relu")
)


@dataclass(frozen=True)
class Pad:
    """Every element of a dim's padding is `value` (None: any finite number, of the `sign` that `_finite` defines), provided that the padding
    of `sources` is what they say: zeros of an argument or slice, samples in a batch input. Integers stay such: a float does not hold them all."""

    value: float | None
    extent: Extent = None
    sources: frozenset[Source] = frozenset()
    sign: int = 0

    @property
    def is_zero(self) -> bool:
        return self.value == 0.0

    @property
    def is_finite(self) -> bool:
        return self.value is None or math.isfinite(self.value)


OUTSIDE = Pad(None)  # an operand without the factor: its elements meet valid ones too, so they are as finite as the program is

Facts = MutableMapping[tuple[Value, int], Pad]


def identity_value(identity: Any, dtype: str) -> float | None:
    """A mask's identity as a number; None where it depends on the integer type."""
    if not isinstance(identity, str):
        return identity if isinstance(identity, int) else float(identity)
    if identity in ("sum", "or"):
        return 0.0
    if identity in ("prod", "and"):
        return 1.0
    if dtype.startswith(("f", "bf")):
        return float("-inf") if identity == "max" else float("inf")
    return None


# ---------------------------------------------------------------- extents


def extent_of(valid: Value) -> tuple:
    """A number of valid elements by how it is computed: equal computations are equal."""
    op = valid.op
    if op is None:
        return ("argument", valid)
    attrs = own_key(op)
    return (op.name, attrs, op.results.index(valid), tuple(map(extent_of, op.operands)))  # type: ignore[arg-type]


def window_extent(n: int, axes: Iterable[str], mesh: Mesh, grain: int) -> tuple:
    """The extent of a dim of n elements split by `axes`, as `partition` computes it."""
    axes = tuple(axes)
    counts = tuple(mesh.sizes[a] for a in axes)
    indices = tuple(("comm.axis_index", (("axis", a),), 0, ()) for a in axes)
    whole = ("dmlc.full", (("value", n),), 0, ())
    return ("dmlc.window", (("counts", counts), ("grain", grain)), 1, (whole, *indices))


def _names(extent: Any) -> Iterable[Any]:
    """Axes that an extent depends on, and the values from outside that it is computed from."""
    if extent[0] == "argument":
        yield extent[1]
        return
    if extent[0] == "comm.axis_index":
        yield dict(extent[1])["axis"]
    for operand in extent[3]:
        yield from _names(operand)


# ---------------------------------------------------------------- analysis


@dataclass
class Padding:
    """The facts of a function, blocks inside included. `assumed` facts are taken for granted where no better one follows."""

    function: Function
    mesh: Mesh
    assumed: Facts = field(default_factory=dict)
    known: Facts = field(default_factory=dict)

    def run(self) -> Facts:
        for arg in self.function.args:
            self._argument(arg)
        self._block(self.function.body)
        return self.known

    def _argument(self, arg: BlockArgument) -> None:
        if "dmlc.micro" in arg.attrs and arg.tensor.is_float:
            self.known.update({(arg, d): Pad(None, None, frozenset([arg])) for d in range(arg.tensor.rank)})
            return
        sharding = arg.attrs.get("dmlc.storage") or arg.attrs.get("dmlc.sharding")
        shape = arg.attrs.get("dmlc.global", arg.shape)
        for d in range(arg.tensor.rank):
            if sharding is not None and sharding.dims[d] and not self.mesh.is_even(shape[d], sharding.dims[d], sharding.grain(d)):
                self.known[arg, d] = Pad(0.0, window_extent(shape[d], sharding.dims[d], self.mesh, sharding.grain(d)), frozenset([arg]), 1)

    def _block(self, block: Block) -> None:
        for op in block:
            if op.name == "dmlc.mask_pad":
                self._mask(op)
            elif op.name == "dmlc.shard_slice":
                self._slice(op)
            elif op.dialect == "comm":
                self._collective(op)
            elif op.regions:
                self._regions(op)
            elif op.dialect == "dmlc" and op.results:
                self._through(op)
            for r in op.results:
                for d in range(getattr(r.type, "rank", 0)):
                    if (r, d) in self.assumed:
                        self.known[r, d] = self.assumed[r, d]

    def _copy(self, source: Value, result: Value, dims: Iterable[int]) -> None:
        for d in dims:
            if (source, d) in self.known:
                self.known[result, d] = self.known[source, d]

    def _mask(self, op: Op) -> None:
        source, result, dim = op.operands[0], op.results[0], op.attrs["dim"]
        before = self.known.get((source, dim))
        self._copy(source, result, (d for d in range(result.tensor.rank) if d != dim))
        value = identity_value(op.attrs["identity"], source.dtype)
        if value is not None:
            self.known[result, dim] = Pad(value, extent_of(op.operands[1]), sign=_sign_of(value))
        elif before is not None:
            self.known[result, dim] = before

    def _slice(self, op: Op) -> None:
        """What lies past the end of the sliced dim is zero."""
        source, result, dim = op.operands[0], op.results[0], op.attrs["dim"]
        self._copy(source, result, (d for d in range(result.tensor.rank) if d != dim))
        whole = self.known.get((source, dim))
        if whole is not None and whole.extent is None and whole.value is None:
            self.known[result, dim] = replace(whole, sources=whole.sources | {op})
        elif (valid := _ends_with(op.operands[1], source.shape[dim])) is not None:
            self.known[result, dim] = Pad(0.0, extent_of(valid), frozenset([op]), 1)

    def _regions(self, op: Op) -> None:
        if op.name.startswith("kernel."):
            return
        for region in op.regions:
            for block in region.blocks:
                self._block(block)
        if op.name != "dmlc.microbatch":
            return
        for given, result in zip(op.region.block.terminator.operands, op.results):
            for d in range(result.tensor.rank):
                pad = self.known.get((given, d))
                if pad is not None and pad.is_zero and pad.extent is not None and not any(isinstance(n, Value) for n in _names(pad.extent)):
                    self.known[result, d] = pad

    def _collective(self, op: Op) -> None:
        """Dims that a sum does not touch keep their zeros where all its ranks hold the same part of them; a scattered dim is padded with zeros."""
        if op.attrs.get("combiner") != "sum" or len(op.results) != len(op.operands):
            return
        dims = op.attrs.get("dims", (None,) * len(op.operands))
        for i, (source, result) in enumerate(zip(op.operands, op.results)):
            for d in range(source.tensor.rank):
                pad = self.known.get((source, d))
                if d != dims[i] and pad is not None and pad.is_zero and pad.extent is not None and not set(_names(pad.extent)).intersection(op.attrs["axes"]):
                    self.known[result, d] = pad
            if op.name == "comm.reduce_scatter":
                extent = window_extent(op.attrs["sizes"][i], op.attrs["axes"], self.mesh, op.attrs["grains"][i])
                self.known[result, dims[i]] = Pad(0.0, extent, frozenset([op]), 1)

    def _through(self, op: Op) -> None:
        rule = rule_of(op)
        for j, result in enumerate(op.results):
            for d, factors in enumerate(rule.results[j]):
                if len(factors) == 1 and factors[0] not in rule.whole:
                    found = along(op, factors[0], self.known, rule)
                    if found is not None:
                        self.known[result, d] = found


def _sign_of(value: float) -> int:
    return 2 if value > 0 else 1 if value == 0 else 0


def _ends_with(start: Value, size: int) -> Value | None:
    """The number of valid elements of a slice that begins at `start` of `size` elements, if beyond them there is only the end. (In a split by
    several axes a part may be followed by the next one.)"""
    window = start.op
    if window is None or window.name != "dmlc.window" or start is not window.results[0] or len(window.attrs["counts"]) != 1:
        return None
    n = window.operands[0].op
    return window.results[1] if n is not None and n.name == "dmlc.full" and n.attrs["value"] == size else None


# ---------------------------------------------------------------- one op


def along(op: Op, factor: str, known: Facts, rule: Rule | None = None) -> Pad | None:
    """What an op makes of the padding of `factor`: nothing unless something is known of all operands'."""
    pads: list[Pad] = []
    rule = rule if rule is not None else rule_of(op)
    for i in range(len(op.operands)):
        if (pad := _operand_pad(op, rule, i, factor, known)) is None:
            return None
        pads.append(pad)
    extents = {p.extent for p in pads} - {None}
    if len(extents) > 1:
        return None
    found = _zero(op, pads) or _constant(op, rule, pads) or _finite(op, pads)
    used = frozenset().union(*(p.sources for p in pads))
    return Pad(found.value, next(iter(extents), None), used, found.sign) if found is not None else None


def operand_pad(op: Op, i: int, factor: str, known: Facts) -> Pad | None:
    """What operand i holds in the padding of `factor`; a constant tensor holds its value there."""
    return _operand_pad(op, rule_of(op), i, factor, known)


def _operand_pad(op: Op, rule: Rule, i: int, factor: str, known: Facts) -> Pad | None:
    value = op.operands[i]
    if value.op is not None and value.op.name == "dmlc.full":
        if isinstance(value.op.attrs["value"], Dim):
            return Pad(None, sign=2)  # a size: finite and positive
        number = value.op.attrs["value"]
        return Pad(number, sign=_sign_of(number))
    for d, factors in enumerate(rule.operands[i]):
        if factor in factors:
            found = known.get((value, d)) if factors == (factor,) else None
            return Pad(None) if found is None and not value.tensor.is_float else found
    return OUTSIDE


def _zero(op: Op, pads: list[Pad]) -> Pad | None:
    """An op is zero where a set of operands it is linear in is zero and the others are finite (zero times NaN is NaN)."""
    for members in linear_of(op):
        if members and all(p.is_zero if i in members else p.is_finite and _divides(op, p) for i, p in enumerate(pads)):
            return Pad(0.0, sign=1)
    return None


def _divides(op: Op, other: Pad) -> bool:
    """Zero over this is zero."""
    return op.name != "dmlc.div" or other is OUTSIDE or (other.value is not None and other.value != 0.0) or other.sign == 2


def _constant(op: Op, rule: Rule, pads: list[Pad]) -> Pad | None:
    """A pointwise op of known constants."""
    d = definition(op)
    if rule.reduced or rule.whole or not pads or len(op.results) != 1:
        return None
    values = [p.value for p in pads if p.value is not None]
    if len(values) < len(pads):
        return None
    if op.name in KEEP_ZERO and not any(values):
        return Pad(0.0, sign=1)
    if d.fold is None or any(v.dtype in ("bf16", "f8E4M3FN", "f8E5M2") for v in (*op.operands, *op.results)):
        return None
    import numpy

    from dmlc.ir.weights import NUMPY

    made = d.fold(_single(op), [numpy.full((1,) * v.tensor.rank, p).astype(NUMPY[v.dtype]) for v, p in zip(op.operands, values)])
    if made is None:
        return None
    number = made[0].reshape(-1)[0].item()
    return Pad(number, sign=_sign_of(number))


def _single(op: Op) -> Op:
    """The same op on tensors of one element."""

    def one(value: Value) -> TensorType:
        return value.tensor.with_shape((1,) * value.tensor.rank)

    return Op(op.name, [Value(one(v)) for v in op.operands], [one(r) for r in op.results], op.attrs)


def _finite(op: Op, pads: list[Pad]) -> Pad | None:
    if not all(p.is_finite for p in pads):
        return None
    sign = finite_sign(op, [p.sign for p in pads], [p is OUTSIDE or bool(p.value) for p in pads])
    return None if sign is None else Pad(None, sign=sign)
