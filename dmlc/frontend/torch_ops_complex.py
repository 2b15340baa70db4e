"""Complex numbers of aten graphs (rotary positions, Fourier transforms), as two real tensors each: the IR has none.

Operators that treat both parts alike run twice. A program may neither take nor return complex tensors, nor train complex parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dmlc.frontend.torch_graph import Call, aten, handler_of, operator_name
from dmlc.frontend.torch_ops_source import iota
from dmlc.ir.builder import Builder
from dmlc.ir.core import Value

if TYPE_CHECKING:
    from dmlc.frontend.torch_import import Importer


@dataclass(frozen=True)
class Complex:
    real: Value
    imag: Value


Handler = Callable[[Call], Any]
HANDLERS: dict[str, Handler] = {}  # for calls with a complex operand
PARTWISE = (
    "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as", "expand", "expand_as", "transpose", "permute", "t", "mT", "movedim",
    "slice", "narrow", "select", "split", "split_with_sizes", "chunk", "unbind", "cat", "stack", "flip", "roll", "repeat", "repeat_interleave", "index",
    "index_select", "embedding", "clone", "alias", "detach", "contiguous", "lift_fresh_copy", "resolve_conj", "resolve_neg", "neg", "sum", "mean", "cumsum",
)  # fmt: skip


def complex_handler(importer: Importer, node: torch.fx.Node) -> Handler | None:
    """What imports a call with a complex operand, or with a complex result of real ones (`2j * x`); None for another."""
    name, own = operator_name(node).split(".")[0], handler_of(node)
    if not any(isinstance(importer.env.get(n), Complex) for n in node.all_input_nodes):
        made = node.meta.get("val")
        return HANDLERS.get(name) if isinstance(made, torch.Tensor) and made.is_complex() else None
    if name in ("cat", "stack") and not all(isinstance(importer.env[n], Complex) for n in node.all_input_nodes):
        return refused
    if name in HANDLERS:
        return HANDLERS[name]
    return twice(own) if name in PARTWISE and own is not None else own if name in GIVES or name.startswith("fft_") else refused


def stopped(builder: Builder, x: Value | Complex) -> Value | Complex:
    """What leaves a region without gradients: a constant to them."""
    if isinstance(x, Complex):
        return Complex(*(builder.emit("dmlc.stop_gradient", part) for part in (x.real, x.imag)))
    return builder.emit("dmlc.stop_gradient", x) if x.tensor.is_float else x


def of_complex(*names: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return add


def refused(c: Call) -> Any:
    raise c.error("it is not supported for complex numbers")


def twice(handler: Handler) -> Handler:
    """Both parts by the handler for real numbers."""

    def run(c: Call) -> Any:
        env, given = c.importer.env, {n: v for n in c.node.all_input_nodes if isinstance(v := c.importer.env.get(n), Complex)}
        made = []
        for part in ("real", "imag"):
            env.update({n: getattr(v, part) for n, v in given.items()})
            made.append(handler(c))
        env.update(given)
        return [Complex(*pair) for pair in zip(*made)] if isinstance(made[0], list) else Complex(*made)

    return run


def parts(c: Call, name: str) -> Complex:
    """An operand; a real one has no imaginary part."""
    found = c.importer.env.get(c.arguments[name]) if isinstance(c.arguments[name], torch.fx.Node) else None
    if isinstance(found, Complex):
        return found
    number = c[name]
    if isinstance(number, complex):
        return Complex(c.full(number.real, c.type.dtype), c.full(number.imag, c.type.dtype))
    return Complex(c.value(name, c.type.dtype), c.full(0, c.type.dtype))


# ---------------------------------------------------------------- from and to real numbers

GIVES = ("view_as_complex", "complex", "polar", "view_as_real", "real", "imag")


@aten("view_as_complex")
def view_as_complex(c: Call) -> Complex:
    """The last dim holds real and imaginary part."""
    return Complex(*halves(c.importer.builder, c.x()))


def halves(builder: Builder, x: Value) -> list[Value]:
    """x [..., 2] as two tensors [...]."""
    cut = [builder.emit("dmlc.slice", x, dim=x.tensor.rank - 1, start=i, stop=i + 1) for i in (0, 1)]
    return [builder.op("dmlc.reshape", [part], {}, [x.tensor.with_shape(x.shape[:-1])]).result for part in cut]


@aten("view_as_real")
def view_as_real(c: Call) -> Value:
    z = parts(c, "self")
    pair = [c.reshape(x, (*x.shape, 1)) for x in (z.real, z.imag)]
    return c.emit("concat", *pair, dim=z.real.tensor.rank)


@aten("complex")
def complex_(c: Call) -> Complex:
    return Complex(c.broadcast(c.value("real"), c.type.shape), c.broadcast(c.value("imag"), c.type.shape))


@aten("polar")
def polar(c: Call) -> Complex:
    radius, angle = c.value("abs"), c.value("angle")
    return Complex(c.emit("mul", radius, c.emit("cos", angle)), c.emit("mul", radius, c.emit("sin", angle)))


@aten("real")
def real(c: Call) -> Value:
    return parts(c, "self").real


@aten("imag")
def imag(c: Call) -> Value:
    return parts(c, "self").imag


@of_complex("abs")
def absolute(c: Call) -> Value:
    return c.emit("sqrt", squared_size(c, parts(c, "self")))


def squared_size(c: Call, z: Complex) -> Value:
    return c.emit("add", c.emit("mul", z.real, z.real), c.emit("mul", z.imag, z.imag))


@aten("angle")
@of_complex("angle")
def angle(c: Call) -> Value:
    z = parts(c, "self")
    return c.emit("atan2", z.imag, z.real)


@of_complex("_to_copy", "to")
def cast(c: Call) -> Complex | Value:
    """To a real dtype only the real part is kept."""
    z, dtype = parts(c, "self"), c.type.dtype
    real = c.cast(z.real, dtype)
    return Complex(real, c.broadcast(c.cast(z.imag, dtype), c.type.shape)) if c.node.meta["val"].is_complex() else real


# ---------------------------------------------------------------- arithmetic


@of_complex("_conj", "conj", "_conj_physical", "conj_physical")
def conjugate(c: Call) -> Complex:
    z = parts(c, "self")
    return Complex(z.real, c.emit("neg", z.imag))


@of_complex("add", "sub")
def add(c: Call) -> Complex:
    if c["alpha"] not in (None, 1):
        return refused(c)
    kind = operator_name(c.node).split(".")[0]
    a, b = parts(c, "self"), parts(c, "other")
    return Complex(*(c.broadcast(c.emit(kind, *pair), c.type.shape) for pair in ((a.real, b.real), (a.imag, b.imag))))


@of_complex("mul", "matmul", "mm", "bmm")
def product(c: Call) -> Complex:
    """(a + bi)(c + di) = ac - bd + (ad + bc)i; a real factor multiplies both parts."""
    kind = "mul" if operator_name(c.node).startswith("mul") else "matmul"
    first, second = list(c.arguments)[:2]
    a, b = parts(c, first), parts(c, second)

    def times(x: Value, y: Value) -> Value:
        return c.emit(kind, x, y)

    for x, y in ((first, b), (second, a)):
        if not is_complex(c, x):
            factor = parts(c, x).real
            return Complex(times(factor, y.real), times(factor, y.imag)) if x == first else Complex(times(y.real, factor), times(y.imag, factor))
    return Complex(
        c.emit("sub", times(a.real, b.real), times(a.imag, b.imag)), c.emit("add", times(a.real, b.imag), times(a.imag, b.real))
    )  # fmt: skip


def is_complex(c: Call, name: str) -> bool:
    argument = c.arguments[name]
    return isinstance(argument, complex) or (isinstance(argument, torch.fx.Node) and isinstance(c.importer.env.get(argument), Complex))


@of_complex("div", "true_divide")
def divide(c: Call) -> Complex:
    """Over a complex number b: times its conjugate, over |b|²."""
    z, divisor = parts(c, "self"), parts(c, "other")
    size = divisor.real
    if is_complex(c, "other"):
        size = squared_size(c, divisor)
        z = Complex(
            c.emit("add", c.emit("mul", z.real, divisor.real), c.emit("mul", z.imag, divisor.imag)),
            c.emit("sub", c.emit("mul", z.imag, divisor.real), c.emit("mul", z.real, divisor.imag)),
        )
    return Complex(*(c.broadcast(c.emit("div", x, size, rounding="none"), c.type.shape) for x in (z.real, z.imag)))


@of_complex("exp")
def exp(c: Call) -> Complex:
    z = parts(c, "self")
    size = c.emit("exp", z.real)
    return Complex(c.emit("mul", size, c.emit("cos", z.imag)), c.emit("mul", size, c.emit("sin", z.imag)))


@of_complex("where", "masked_fill")
def where(c: Call) -> Complex:
    """masked_fill writes `value` where the mask is true."""
    filled = "mask" in c.arguments
    yes, no = (parts(c, n) for n in (("value", "self") if filled else ("self", "other")))
    mask = c.value("mask" if filled else "condition")
    return Complex(*(c.broadcast(c.emit("select", mask, a, b), c.type.shape) for a, b in ((yes.real, no.real), (yes.imag, no.imag))))


# ---------------------------------------------------------------- Fourier transforms


@aten("fft_fft", "fft_ifft", "fft_rfft", "fft_fft2", "fft_ifft2", "fft_rfft2", "fft_fftn", "fft_ifftn", "fft_rfftn")
def fourier(c: Call) -> Complex:
    """One dim after another: the sum over j of x[j] exp(-2 pi i j k / n), or of the inverse with + and over n."""
    name, z, rank = operator_name(c.node).split(".")[0].removeprefix("fft_"), parts(c, "self"), c.type.rank
    shape, dims = z.real.shape, _transformed_dims(c, rank)
    inverse, one_sided = name.startswith("i"), name.startswith("r")
    if any(n is not None and n != shape[d] for n, d in zip(_lengths(c), dims)):
        raise c.error("a length other than the dim's own is not supported")
    for i, dim in enumerate(reversed(dims)):
        z = _transformed(c, z, dim, c.type.shape[dim] if one_sided and i == 0 else shape[dim], 1 if inverse else -1)
    power = {"backward": -1.0 if inverse else 0.0, "ortho": -0.5, "forward": 0.0 if inverse else -1.0}[c["norm"] or "backward"]
    scale = math.prod(shape[d] for d in dims) ** power
    return z if scale == 1 else Complex(*(c.emit("mul", x, c.full(scale, x.dtype)) for x in (z.real, z.imag)))


def _transformed_dims(c: Call, rank: int) -> list[int]:
    given = c["dim"]
    if given is None:  # all, or the last as many as there are lengths
        return list(range(rank - len(_lengths(c)) if c["s"] is not None else 0, rank))
    return [d % rank for d in (given if isinstance(given, list) else [given])]


def _lengths(c: Call) -> list[int | None]:
    return c["s"] or [c["n"]]


def _transformed(c: Call, z: Complex, dim: int, kept: int, sign: int) -> Complex:
    """Frequencies 0 to `kept` - 1 of one dim. The angles' multiples of the circle are taken off in integers."""
    n, dtype, rank = z.real.shape[dim], z.real.dtype, z.real.tensor.rank
    place, frequency = (iota(c, 0, 1, count, "i64") for count in (n, kept))
    steps = c.emit("rem", c.emit("mul", c.reshape(place, (n, 1)), c.reshape(frequency, (1, kept))), c.full(n, "i64"), sign="divisor")
    angle = c.emit("mul", c.cast(steps, dtype), c.full(sign * 2 * math.pi / n, dtype))
    cosine, sine = c.emit("cos", angle), c.emit("sin", angle)
    letters = "abcdefgh"[:rank]
    equation = f"{letters},{letters[dim]}z->{letters.replace(letters[dim], 'z')}"

    def times(x: Value, matrix: Value) -> Value:
        return c.emit("contract", c.broadcast(x, (*z.real.shape,)), matrix, equation=equation)

    if z.imag.tensor.rank == 0:  # real
        return Complex(times(z.real, cosine), times(z.real, sine))
    return Complex(
        c.emit("sub", times(z.real, cosine), times(z.imag, sine)), c.emit("add", times(z.real, sine), times(z.imag, cosine))
    )  # fmt: skip
