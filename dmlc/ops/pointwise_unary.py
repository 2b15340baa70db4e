"""Unary pointwise ops and activations, a few lines each: PyTorch text, Triton text, gradient, fold."""

from __future__ import annotations

import math

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op
from dmlc.ir.types import TensorType
from dmlc.ops.activation_grads import by_op
from dmlc.ops.base import REQUIRED, Sample, attribute
from dmlc.ops.folding import exact, rounded
from dmlc.ops.pointwise import between, predicate, triton_dtype, unary
from dmlc.ops.terms import Term, gradient, zero_gradient

INTEGER = "integer valued"
POSITIVE = between(0.2, 3.0)
INSIDE = between(-0.9, 0.9)
HALVES = (Sample((TensorType((15,), "f32"),), values=AttrDict({"0": lambda rng, shape, dtype: rng.permutation(15) / 2 - 3.5}), vjp=False, why="at a jump"),)

# log(1 + u) with the rounding of 1 + u divided out (W. Kahan's trick); sound for every u > -1
LOG1P = "tl.where(1.0 + {u} == 1.0, {u}, tl.where({u} == float('inf'), {u}, tl.log(1.0 + {u}) * ({u} / tl.where(1.0 + {u} == 1.0, 1.0, (1.0 + {u}) - 1.0))))"
SOFTPLUS = "(tl.where({0} > 0, {0}, 0.0) + " + LOG1P.replace("{u}", "tl.exp(-tl.abs({0}))") + ")"
# sign(x) (1 - e) / (1 + e) with e = exp(-2|x|); near zero the odd series, where that difference would cancel
TANH = "tl.where(tl.abs({0}) < 0.1, {0} * (1.0 - {0} * {0} * (1.0 / 3 - {0} * {0} * (2.0 / 15 - {0} * {0} * (17.0 / 315)))), tl.where({0} < 0, -1.0, 1.0) * (1.0 - tl.exp(-2.0 * tl.abs({0}))) / (1.0 + tl.exp(-2.0 * tl.abs({0}))))"
EXPM1 = "tl.where(tl.abs({0}) < 0.1, {0} * (1.0 + {0} * (1.0 / 2 + {0} * (1.0 / 6 + {0} * (1.0 / 24 + {0} * (1.0 / 120 + {0} * (1.0 / 720)))))), tl.exp({0}) - 1.0)"
SINH = "tl.where(tl.abs({0}) < 0.5, {0} * (1.0 + {0} * {0} / 6 * (1.0 + {0} * {0} / 20 * (1.0 + {0} * {0} / 42))), (tl.exp({0}) - tl.exp(-{0})) * 0.5)"
ASINH = "tl.where({0} < 0, -1.0, 1.0) * " + LOG1P.replace("{u}", "(tl.abs({0}) + {0} * {0} / (1.0 + tl.sqrt({0} * {0} + 1.0)))")
ATANH = "0.5 * (" + LOG1P.replace("{u}", "{0}") + " - " + LOG1P.replace("{u}", "(-{0})") + ")"
# to the nearest integer, halves to even: floor, then up if past the half or at the half above an odd floor
ROUND = "(tl.floor({0}) + tl.where(({0} - tl.floor({0}) > 0.5) | (({0} - tl.floor({0}) == 0.5) & (tl.floor({0}) != 2.0 * tl.floor(tl.floor({0}) * 0.5))), 1.0, 0.0))"

# ---------------------------------------------------------------- arithmetic


def sign_triton(op: Op) -> str:
    wide = triton_dtype(op.operands[0].dtype)
    return f"({{0}} > 0).to({wide}) - ({{0}} < 0).to({wide})"


unary("neg", "-x", kind="number", torch="torch.neg({0})", triton="-{0}", vjp=gradient(lambda g, x, y: -g), fold=rounded("-{0}"), linear=[{0}])
unary("abs", "|x|", kind="number", torch="torch.abs({0})", triton="tl.abs({0})", vjp=gradient(lambda g, x, y: g * x.sign()), fold=rounded("np.abs({0})"))
unary("sign", "-1, 0 or 1; 0 for NaN.", kind="number", torch="torch.sign({0})", triton=sign_triton, vjp=zero_gradient, fold=exact("np.sign({0})"))
unary("sqrt", "Square root.", torch="torch.sqrt({0})", triton="tl.sqrt({0})", vjp=gradient(lambda g, x, y: g * 0.5 / y), domain=POSITIVE)
unary("rsqrt", "1 / sqrt(x)", torch="torch.rsqrt({0})", triton="tl.rsqrt({0})", vjp=gradient(lambda g, x, y: g * -0.5 * y / x), precision="high", domain=POSITIVE)
unary("reciprocal", "1 / x", torch="torch.reciprocal({0})", triton="1.0 / {0}", vjp=gradient(lambda g, x, y: -g * y * y), fold=rounded("1 / {0}"), precision="high", domain=POSITIVE)

# ---------------------------------------------------------------- exponentials and logarithms

unary("exp", "e^x", torch="torch.exp({0})", triton="tl.exp({0})", vjp=gradient(lambda g, x, y: g * y), precision="high")
unary("exp2", "2^x", torch="torch.exp2({0})", triton="tl.exp2({0})", vjp=gradient(lambda g, x, y: g * y * math.log(2)), precision="high")
unary("expm1", "e^x - 1, accurate near 0.", torch="torch.expm1({0})", triton=EXPM1, vjp=gradient(lambda g, x, y: g * (y + 1)), precision="high")
unary("log", "Natural logarithm.", torch="torch.log({0})", triton="tl.log({0})", vjp=gradient(lambda g, x, y: g / x), precision="high", domain=POSITIVE)
unary("log2", "Logarithm to base 2.", torch="torch.log2({0})", triton="tl.log2({0})", vjp=gradient(lambda g, x, y: g / (x * math.log(2))), precision="high", domain=POSITIVE)
unary("log1p", "log(1 + x), accurate near 0.", torch="torch.log1p({0})", triton=LOG1P.replace("{u}", "{0}"), vjp=gradient(lambda g, x, y: g / (x + 1)), precision="high", domain=POSITIVE)

# ---------------------------------------------------------------- trigonometry

unary("sin", "Sine.", torch="torch.sin({0})", triton="tl.sin({0})", vjp=gradient(lambda g, x, y: g * x.cos()))
unary("cos", "Cosine.", torch="torch.cos({0})", triton="tl.cos({0})", vjp=gradient(lambda g, x, y: -g * x.sin()))
unary("tan", "Tangent.", torch="torch.tan({0})", triton="tl.sin({0}) / tl.cos({0})", vjp=gradient(lambda g, x, y: g * (y * y + 1)), precision="high", domain=INSIDE)
unary("asin", "Arc sine.", torch="torch.asin({0})", vjp=gradient(lambda g, x, y: g * (1 - x * x).rsqrt()), precision="high", domain=INSIDE)
unary("acos", "Arc cosine.", torch="torch.acos({0})", vjp=gradient(lambda g, x, y: -g * (1 - x * x).rsqrt()), precision="high", domain=INSIDE)
unary("atan", "Arc tangent.", torch="torch.atan({0})", vjp=gradient(lambda g, x, y: g / (x * x + 1)))
unary("sinh", "Hyperbolic sine.", torch="torch.sinh({0})", triton=SINH, vjp=gradient(lambda g, x, y: g * x.cosh()), precision="high")
unary("cosh", "Hyperbolic cosine.", torch="torch.cosh({0})", triton="(tl.exp({0}) + tl.exp(-{0})) * 0.5", vjp=gradient(lambda g, x, y: g * x.sinh()), precision="high")
unary("tanh", "Hyperbolic tangent.", torch="torch.tanh({0})", triton=TANH, vjp=gradient(lambda g, x, y: g * (1 - y * y)))
unary("asinh", "Inverse hyperbolic sine.", torch="torch.asinh({0})", triton=ASINH, vjp=gradient(lambda g, x, y: g * (x * x + 1).rsqrt()))
unary("acosh", "Inverse hyperbolic cosine.", torch="torch.acosh({0})", triton="tl.log({0} + tl.sqrt({0} * {0} - 1.0))", vjp=gradient(lambda g, x, y: g * (x * x - 1).rsqrt()), domain=between(1.2, 4.0))
unary("atanh", "Inverse hyperbolic tangent.", torch="torch.atanh({0})", triton=ATANH, vjp=gradient(lambda g, x, y: g / (1 - x * x)), domain=INSIDE)
unary("erf", "Error function.", torch="torch.erf({0})", triton="tl.erf({0})", vjp=gradient(lambda g, x, y: g * (2 / math.sqrt(math.pi)) * (-x * x).exp()))

# ---------------------------------------------------------------- activations


def gelu_triton(op: Op) -> str:
    if attribute(op, "approximate") == "none":
        return "0.5 * {0} * (1.0 + tl.erf({0} * 0.7071067811865476))"
    # 0.5 (1 + tanh z) = 1 / (1 + exp(-2z))
    return "{0} / (1.0 + tl.exp(-1.5957691216057308 * ({0} + 0.044715 * {0} * {0} * {0})))"


def mish_gradient(g: Term, x: Term, y: Term) -> Term:
    t = x.softplus().tanh()
    return g * (t + x * x.sigmoid() * (1 - t * t))


def clamp_text(op: Op) -> str:
    return "torch.clamp({0}, min={min}, max={max})" if (attribute(op, "min"), attribute(op, "max")) != (None, None) else "{0}"


def clamp_triton(op: Op) -> str:
    """Comparisons, not tl.minimum: NaN compares false and stays."""
    low, high = attribute(op, "min"), attribute(op, "max")
    bounded = "{0}" if low is None else "tl.where({0} < {min}, {min}, {0})"
    return bounded if high is None else f"tl.where({bounded} > {{max}}, {{max}}, {bounded})"


def clamp_gradient(g: Term, x: Term, y: Term, min: float | None, max: float | None) -> Term:
    """Passes inside the bounds, bounds included."""
    for bound, outside in ((min, Term.__lt__), (max, Term.__gt__)):
        if bound is not None:
            g = outside(x, bound).select(0, g)
    return g


def clamp_fold(op: Op) -> str:
    low, high = attribute(op, "min"), attribute(op, "max")
    bounded = "{0}" if low is None else "np.maximum({0}, np.asarray({min}, {0}.dtype))"
    return bounded if high is None else f"np.minimum({bounded}, np.asarray({{max}}, {{0}}.dtype))"


unary("relu", "max(x, 0); NaN stays.", kind="number", torch="torch.relu({0})", in_place_operands=(0,), in_place="torch.relu_({0})", triton="tl.where({0} < 0, 0, {0})", vjp=lambda b, op, grads: [b.op("dmlc.relu_grad", [grads[0], op.result]).result], fold=rounded("np.maximum({0}, np.zeros((), {0}.dtype))"))
unary("sigmoid", "1 / (1 + e^-x)", torch="torch.sigmoid({0})", triton="1.0 / (1.0 + tl.exp(-{0}))", vjp=gradient(lambda g, x, y: g * y * (1 - y)))
unary("silu", "x sigmoid(x), also called swish.", torch="F.silu({0})", triton="{0} / (1.0 + tl.exp(-{0}))", vjp=by_op("dmlc.silu_grad"))
unary("softplus", "log(1 + e^x)", torch="F.softplus({0})", triton=SOFTPLUS, vjp=gradient(lambda g, x, y: g * x.sigmoid()), precision="high")
unary("hardswish", "x min(max(x + 3, 0), 6) / 6", torch="F.hardswish({0})", triton="{0} * tl.where({0} < -3.0, 0.0, tl.where({0} > 3.0, 1.0, ({0} + 3.0) * (1.0 / 6)))", vjp=gradient(lambda g, x, y: (x < -3).select(0, (x > 3).select(g, g * (x * (1 / 3) + 0.5)))))
unary("hardsigmoid", "min(max(alpha x + beta, 0), 1)", attributes={"alpha": 1 / 6, "beta": 0.5}, torch="torch.clamp({0} * {alpha} + {beta}, 0, 1)", triton="tl.where({0} * {alpha} + {beta} < 0.0, 0.0, tl.where({0} * {alpha} + {beta} > 1.0, 1.0, {0} * {alpha} + {beta}))", vjp=gradient(lambda g, x, y, alpha, beta: (y > 0).logical_and(y < 1).select(g * alpha, 0)), variants=({}, {"alpha": 0.2, "beta": 0.5}))
unary("mish", "x tanh(softplus(x)); arXiv:1908.08681", torch="F.mish({0})", triton="tl.where({0} > 20.0, {0}, {0} * (tl.exp({0}) * (tl.exp({0}) + 2.0)) / (tl.exp({0}) * (tl.exp({0}) + 2.0) + 2.0))", vjp=gradient(mish_gradient))
unary("gelu", "x Phi(x), or its tanh approximation.", attributes={"approximate": "none"}, torch="F.gelu({0}, approximate={approximate})", triton=gelu_triton, vjp=by_op("dmlc.gelu_grad"), variants=({"approximate": "none"}, {"approximate": "tanh"}))
unary("elu", "x above 0, alpha (e^x - 1) below.", attributes={"alpha": 1.0}, torch="F.elu({0}, {alpha})", triton=f"tl.where({{0}} > 0, {{0}}, {{alpha}} * {EXPM1})", vjp=gradient(lambda g, x, y, alpha: (x > 0).select(g, g * (y + alpha))), variants=({}, {"alpha": 0.7}))
unary("leaky_relu", "x above 0, slope x below.", attributes={"slope": REQUIRED}, torch="F.leaky_relu({0}, {slope})", triton="tl.where({0} > 0, {0}, {0} * {slope})", vjp=gradient(lambda g, x, y, slope: (x > 0).select(g, g * slope)), variants=({"slope": 0.1}, {"slope": -0.5}))
unary("clamp", "min(max(x, min), max), a bound None = none; NaN stays; min above max gives max.", kind="number", attributes={"min": None, "max": None}, torch=clamp_text, triton=clamp_triton, vjp=gradient(clamp_gradient), fold=rounded(clamp_fold), variants=({"min": -1, "max": 1}, {"min": 0}, {"max": 1}, {"min": 2, "max": -1}, {}))

# ---------------------------------------------------------------- rounding and tests

unary("floor", "Largest integer not above x.", torch="torch.floor({0})", triton="tl.floor({0})", vjp=zero_gradient, fold=rounded("np.floor({0})"))
unary("ceil", "Smallest integer not below x.", torch="torch.ceil({0})", triton="tl.ceil({0})", vjp=zero_gradient, fold=rounded("np.ceil({0})"))
unary("round", "Nearest integer, halves to even.", torch="torch.round({0})", triton=ROUND, vjp=zero_gradient, fold=rounded("np.round({0})"), domain=lambda rng, shape, dtype: rng.integers(-7, 8, shape) / 2 + 1e-3, extra=HALVES)
unary("trunc", "Integer part, towards 0.", torch="torch.trunc({0})", triton="tl.where({0} < 0, tl.ceil({0}), tl.floor({0}))", vjp=zero_gradient, fold=rounded("np.trunc({0})"))
unary("isnan", "Whether x is NaN.", dtype=predicate, torch="torch.isnan({0})", triton="{0} != {0}", no_vjp=INTEGER, fold=rounded("np.isnan({0})"), domain=lambda rng, shape, dtype: rng.choice([float("nan"), 1.0, float("inf")], shape))
unary("isinf", "Whether x is infinite.", dtype=predicate, torch="torch.isinf({0})", triton="tl.abs({0}) == float('inf')", no_vjp=INTEGER, fold=rounded("np.isinf({0})"), domain=lambda rng, shape, dtype: rng.choice([float("nan"), 1.0, float("inf"), float("-inf")], shape))
unary("logical_not", "Negation of a truth value.", kind="bool", torch="torch.logical_not({0})", triton="{0} == 0", no_vjp=INTEGER, fold=exact("~{0}"))
unary("bitwise_not", "All bits inverted.", kind="bits", torch="torch.bitwise_not({0})", triton="~{0}", no_vjp=INTEGER, fold=exact("~{0}"))
