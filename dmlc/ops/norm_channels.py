"""Normalisation of images [n, c, s...]: by group, by given statistics, across neighbouring channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, InferError, Sample, attribute
from dmlc.ops.emit import cast, f32, reshaped, spread, wide
from dmlc.ops.norm import Norm, standardised, standardised_grad
from dmlc.ops.rule import Rule
from dmlc.ops.sized import sized_rule
from dmlc.ops.terms import Term
from dmlc.ops.windows import names

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


def vectors(name: str, types: list[TensorType], count: int) -> None:
    """x and `count` vectors of its channels."""
    x = types[0]
    if len(types) != count + 1 or x.rank < 2 or any(t.shape != x.shape[1:2] for t in types[1:]):
        raise InferError(f"'{name}' takes x and {count} vectors of its {x.shape[1] if x.rank > 1 else 0} channels, not ({', '.join(map(str, types))})")


def along(b: Builder, v: Value, rank: int) -> Term:
    """A channel vector, ready to broadcast against images."""
    return Term(b, wide(b, spread(b, v, 1, rank)))


def per_channel(b: Builder, term: Term, to: Value) -> Value:
    """Sum of an image over all but the channels."""
    dims = tuple(d for d in range(len(term.value.shape)) if d != 1)
    return cast(b, term.reduce_sum(dims=dims).value, to.dtype)


class GroupNorm(Norm):
    """Standardised over each of `groups` groups of channels (and all spatial dims) of an example, then scaled and shifted by channel (Wu, He 2018)."""

    name = "dmlc.group_norm"
    attributes = {"groups": REQUIRED, "eps": REQUIRED}
    torch = "torch.group_norm({0}, {groups}, {1}, {2}, {eps})"

    @staticmethod
    def rule(op: Any) -> Rule:
        image = f"n (g c!) {names('s', len(op.operands[0].shape) - 2, '!')}"
        return sized_rule(op, f"{image}, (g c!), (g c!) -> {image}", g=attribute(op, "groups"))

    @staticmethod
    def local(env: Any, op: Op, axes: Any) -> dict[str, Any]:
        """Groups are split with the channels."""
        return {"groups": env.local_types[0].shape[1] * attribute(op, "groups") // op.result.shape[1]}

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        vectors("dmlc.group_norm", types, 2)
        if attrs["groups"] < 1 or types[0].shape[1] % attrs["groups"] != 0:
            raise InferError(f"'dmlc.group_norm': {types[0].shape[1]} channels do not split into {attrs['groups']} groups")
        return [types[0]]

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        y, _ = standardised(_grouped(b, op, op.operands[0]), _group_dims(op), attribute(op, "eps"))
        rank = len(op.result.shape)
        w, shift = (along(b, v, rank) for v in op.operands[1:])
        return [cast(b, (Term(b, reshaped(b, y.value, op.result.shape)) * w + shift).value, op.result.dtype)]

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        x, w, shift = op.operands
        g = Term(b, wide(b, grads[0]))
        y, rstd = standardised(_grouped(b, op, x), _group_dims(op), attribute(op, "eps"))
        gw = _grouped(b, op, (g * along(b, w, len(x.shape))).value)
        dx = reshaped(b, standardised_grad(gw, y, rstd, _group_dims(op)).value, x.shape)
        plain = Term(b, reshaped(b, y.value, x.shape))
        return [cast(b, dx, x.dtype), per_channel(b, g * plain, w), per_channel(b, g, shift)]

    @staticmethod
    def samples() -> list[Sample]:
        cases = [((2, 6, 3, 5), 3), ((3, 4, 7), 2), ((2, 3, 4), 3), ((1, 1, 1), 1), ((2, 4), 2), ((0, 4, 3), 2)]
        return [Sample((f32(*s), f32(s[1]), f32(s[1])), AttrDict(groups=g, eps=1e-5)) for s, g in cases]


def _grouped(b: Builder, op: Op, x: Value) -> Term:
    """An image as [n, groups, c / groups, s...]."""
    n, c, *rest = x.shape
    groups = attribute(op, "groups")
    return Term(b, wide(b, reshaped(b, x, (n, groups, c // groups, *rest))))


def _group_dims(op: Op) -> tuple[int, ...]:
    return tuple(range(2, len(op.result.shape) + 1))


class BatchNorm(Norm):
    """Batch normalisation with given statistics (inference): x, weight, bias, mean, variance. Everything but the channels is split freely."""

    name = "dmlc.batch_norm"
    attributes = {"eps": REQUIRED}
    torch = "F.batch_norm({0}, {3}, {4}, {1}, {2}, False, 0.0, {eps})"

    @staticmethod
    def rule(op: Any) -> str:
        image = f"n c {names('s', len(op.operands[0].shape) - 2)}"
        return f"{image}, c, c, c, c -> {image}"

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        vectors("dmlc.batch_norm", types, 4)
        return [types[0]]

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        x, w, shift, centre, var = (along(b, v, len(op.result.shape)) if i else Term(b, wide(b, v)) for i, v in enumerate(op.operands))
        return [cast(b, ((x - centre) * (var + attribute(op, "eps")).rsqrt() * w + shift).value, op.result.dtype)]

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        rank = len(op.result.shape)
        x, g = Term(b, wide(b, op.operands[0])), Term(b, wide(b, grads[0]))
        w, _, centre, var = (along(b, v, rank) for v in op.operands[1:])
        rstd = (var + attribute(op, "eps")).rsqrt()
        dx, y = g * w * rstd, (x - centre) * rstd
        dvar = dx * y * rstd * -0.5
        terms = [g * y, g, -dx, dvar]
        return [cast(b, dx.value, op.result.dtype), *(per_channel(b, t, v) for t, v in zip(terms, op.operands[1:]))]

    @staticmethod
    def samples() -> list[Sample]:
        positive = AttrDict({"4": lambda rng, shape, dtype: rng.uniform(0.2, 3.0, shape)})
        shapes = ((2, 3, 5, 4), (4, 3), (2, 3, 5), (1, 1, 1, 1), (0, 2, 3))
        return [Sample((f32(*s), *[f32(s[1])] * 4), AttrDict(eps=1e-5), values=positive) for s in shapes]


class Lrn(Norm):
    """x / (bias + alpha / size * sum of x^2 over `size` neighbouring channels)^beta (Krizhevsky, Sutskever, Hinton 2012; ONNX LRN)."""

    name = "dmlc.lrn"
    attributes = {"size": REQUIRED, "alpha": 0.0001, "beta": 0.75, "bias": 1.0}

    @staticmethod
    def rule(op: Any) -> str:
        image = f"n c! {names('s', len(op.operands[0].shape) - 2)}"
        return f"{image} -> {image}"

    @staticmethod
    def torch(op: Op) -> str:
        low, high = _neighbours(op)
        return f"{{0}} * ({{bias}} + {{alpha}} / {{size}} * channel_windows({{0}} * {{0}}, {low}, {high})) ** -{{beta}}"

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        x = Term(b, wide(b, op.operands[0]))
        return [cast(b, (x * _lrn_scale(op, x).pow(-attribute(op, "beta"))).value, op.result.dtype)]

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        x, g, beta = Term(b, wide(b, op.operands[0])), Term(b, wide(b, grads[0])), attribute(op, "beta")
        low, high = _neighbours(op)
        scale = _lrn_scale(op, x)
        through = _channel_sum(g * x * scale.pow(-beta - 1), high, low)
        dx = g * scale.pow(-beta) - x * through * (2.0 * beta * attribute(op, "alpha") / attribute(op, "size"))
        return [cast(b, dx.value, op.result.dtype)]

    @staticmethod
    def samples() -> list[Sample]:
        cases = [((2, 7, 3, 2), 3), ((1, 5, 4), 4), ((1, 1, 1), 1), ((0, 4, 3), 2)]
        return [Sample((f32(*s),), AttrDict(size=k, alpha=0.3, beta=0.6, bias=1.5)) for s, k in cases]


def _neighbours(op: Op) -> tuple[int, int]:
    """Channels before and after that count."""
    size = attribute(op, "size")
    return (size - 1) // 2, size // 2


def _lrn_scale(op: Op, x: Term) -> Term:
    return _channel_sum(x * x, *_neighbours(op)) * (attribute(op, "alpha") / attribute(op, "size")) + attribute(op, "bias")


def _channel_sum(x: Term, low: int, high: int) -> Term:
    """Sum over neighbouring channels: slices of the padded tensor, added."""
    rank, channels = len(x.value.shape), x.value.shape[1]
    ends = [tuple(p if d == 1 else 0 for d in range(rank)) for p in (low, high)]
    padded = x.pad(low=ends[0], high=ends[1], mode="constant", value=0.0)
    total = padded.slice(dim=1, start=0, stop=channels, step=1)
    for i in range(1, low + high + 1):
        total = total + padded.slice(dim=1, start=i, stop=i + channels, step=1)
    return total
