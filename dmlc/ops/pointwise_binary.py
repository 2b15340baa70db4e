"""Binary pointwise ops, comparisons, `select` and `cast`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.dims import Dim
from dmlc.ir.types import DTYPES, FLOATS, TensorType, Type
from dmlc.ops.base import REQUIRED, InferError, Sample, attribute
from dmlc.ops.folding import exact, moved, rounded
from dmlc.ops.pointwise import SHAPES_3, Pointwise, away_from_zero, between, binary, integers, predicate, triton_dtype
from dmlc.ops.terms import Term, gradient, unbroadcast

if TYPE_CHECKING:
    import numpy

    from dmlc.ir.builder import Builder

INTEGER = "integer valued"
SELECTING = ("max", "min", "and", "or")  # combiners that commute with picking and moving elements

# ---------------------------------------------------------------- arithmetic


def is_float(op: Op) -> bool:
    return op.operands[0].dtype in FLOATS


def div_text(op: Op) -> str:
    if attribute(op, "rounding") == "none":
        return "{0} / {1}"
    return "torch.div({0}, {1}, rounding_mode={rounding})" if is_float(op) else "divide_integers({0}, {1}, {rounding})"


def div_triton(op: Op) -> str:
    """Triton's // and % follow C; the float quotient is exact in a - a % b, then rounded to the integer it must be."""
    rounding = attribute(op, "rounding")
    if rounding == "none":
        return "{0} / {1}"
    if is_float(op):
        if rounding == "trunc":
            return "tl.where({0} / {1} < 0, tl.ceil({0} / {1}), tl.floor({0} / {1}))"
        return f"tl.floor(({{0}} - ({FLOAT_REM})) / {{1}} + 0.5)"
    quotient = f"({{0}} // {NONZERO})"
    if rounding == "trunc":
        return quotient
    rest = f"({{0}} - {quotient} * {NONZERO})"
    return f"{quotient} - tl.where(({rest} != 0) & (({rest} < 0) != ({{1}} < 0)), 1, 0)"


NONZERO = "tl.where({1} == 0, {1} + 1, {1})"
FLOAT_REM = "tl.where((({0} % {1}) != 0) & ((({0} % {1}) < 0) != ({1} < 0)), ({0} % {1}) + {1}, {0} % {1})"


def div_dtype(types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
    if attrs["rounding"] not in ("none", "trunc", "floor"):
        raise InferError(f"'dmlc.div' has rounding none, trunc or floor, not \"{attrs['rounding']}\"")
    if attrs["rounding"] == "none" and not types[0].is_float:
        raise InferError("'dmlc.div' of integers needs rounding = \"trunc\" or \"floor\"")
    return types[0].dtype


def div_gradient(g: Term, x: Term, y: Term, out: Term, rounding: str) -> tuple[Term | None, Term | None]:
    return (g / y, -g * out / y) if rounding == "none" else (None, None)


def div_fold(op: Op) -> str:
    """Integer quotients; a zero divisor counts as one, as in the program."""
    if is_float(op):
        return "{0} / {1}" if attribute(op, "rounding") == "none" else "None"
    quotient = "np.floor_divide({0}, np.where({1} == 0, 1, {1}))"
    if attribute(op, "rounding") == "floor":
        return quotient
    return f"{quotient} + (({quotient} < 0) & ({quotient} * np.where({{1}} == 0, 1, {{1}}) != {{0}}))"


def div_numpy(op: Op, operands: Sequence[numpy.ndarray]) -> list[numpy.ndarray] | None:
    if is_float(op) and attribute(op, "rounding") != "none":
        return None
    return rounded(div_fold(op))(op, operands)


def rem_text(op: Op) -> str:
    name = "remainder" if attribute(op, "sign") == "divisor" else "fmod"
    return f"torch.{name}({{0}}, {{1}})" if is_float(op) else f"torch.{name}({{0}}, nonzero_divisor({{1}}))"


def rem_triton(op: Op) -> str:
    by_divisor = attribute(op, "sign") == "divisor"
    if is_float(op):
        return FLOAT_REM if by_divisor else "{0} % {1}"
    rest = f"({{0}} % {NONZERO})"
    return f"tl.where(({rest} != 0) & (({rest} < 0) != ({{1}} < 0)), {rest} + {{1}}, {rest})" if by_divisor else rest


def rem_fold(op: Op) -> str:
    name = "np.remainder" if attribute(op, "sign") == "divisor" else "np.fmod"
    return f"{name}({{0}}, np.where({{1}} == 0, 1, {{1}}))"


def rem_gradient(g: Term, x: Term, y: Term, out: Term, sign: str) -> tuple[Term, Term]:
    return g, -g * x.div(y, rounding="floor" if sign == "divisor" else "trunc")


def constant_of(value: Value) -> float | None:
    """The number a value is filled with, if a `dmlc.full` made it."""
    made = value.op
    found = made.attrs["value"] if made is not None and made.name == "dmlc.full" else None
    return None if isinstance(found, Dim) else found


POWERS = {2: "{0} * {0}", 3: "{0} * {0} * {0}", 1: "{0}", 0.5: "tl.sqrt({0})", -1: "1.0 / {0}", -0.5: "tl.rsqrt({0})"}


def pow_triton(op: Op) -> str | None:
    """2^(y log2|x|) with the sign of an odd integer power; common constant powers directly."""
    if not is_float(op):
        return None
    known = POWERS.get(constant_of(op.operands[1]) or 0)
    if known is not None:
        return known
    size = "tl.exp2({1} * tl.log2(tl.abs({0})))"
    odd = "(tl.floor({1} * 0.5) * 2.0 != {1})"
    signed = f"tl.where({{0}} < 0, tl.where(tl.floor({{1}}) != {{1}}, float('nan'), tl.where({odd}, -{size}, {size})), {size})"
    return f"tl.where({{1}} == 0, 1.0, {signed})"


def pow_gradient(g: Term, x: Term, y: Term, out: Term) -> tuple[Term, Term | None]:
    gx = y.eq(0).select(0, g * y * x.pow(y - 1))
    return gx, None if constant_of(y.value) is not None else (x > 0).select(g * out * x.log(), 0)


def extremum_gradient(first: Any) -> Any:
    """A tie's gradient is halved between the two, as PyTorch does."""

    def formula(g: Term, x: Term, y: Term, out: Term) -> tuple[Term, Term]:
        tie = x.eq(y)
        return tie.select(g * 0.5, first(x, y).select(g, 0)), tie.select(g * 0.5, first(y, x).select(g, 0))

    return gradient(formula)


def extremum_triton(name: str) -> Any:
    return lambda op: f"tl.{name}({{0}}, {{1}}, propagate_nan=tl.PropagateNan.ALL)" if is_float(op) else f"tl.{name}({{0}}, {{1}})"


BOUNDED = {"1": integers(0, 7)}

binary("add", "x + y", kind="number", torch="{0} + {1}", in_place="torch.add({0}, {1}, out={outs})", triton="{0} + {1}", vjp=gradient(lambda g, x, y, out: (g, g)), fold=rounded("{0} + {1}"), linear=[{0, 1}])
binary("sub", "x - y", kind="number", torch="{0} - {1}", in_place="torch.sub({0}, {1}, out={outs})", triton="{0} - {1}", vjp=gradient(lambda g, x, y, out: (g, -g)), fold=rounded("{0} - {1}"), linear=[{0, 1}])
binary("mul", "x y", kind="number", torch="{0} * {1}", in_place="torch.mul({0}, {1}, out={outs})", triton="{0} * {1}", vjp=gradient(lambda g, x, y, out: (g * y, g * x)), fold=rounded("{0} * {1}"), linear=[{0}, {1}])
binary("div", "x / y, rounded to an integer value if asked; integers must say how. A zero integer divisor counts as one, so that padding cannot trap.", kind="number", attributes={"rounding": "none"}, dtype=div_dtype, torch=div_text, triton=div_triton, vjp=gradient(div_gradient), fold=div_numpy, linear=lambda op: [{0}] if attribute(op, "rounding") == "none" else [], domain=away_from_zero, dtypes=("f32",), variants=({"rounding": "none"}, {"rounding": "trunc"}, {"rounding": "floor"}))
binary("rem", "Remainder with the sign of the divisor or of the dividend; a zero integer divisor counts as one.", kind="number", attributes={"sign": "divisor"}, torch=rem_text, triton=rem_triton, vjp=gradient(rem_gradient), fold=exact(rem_fold), domain=away_from_zero, variants=({"sign": "divisor"}, {"sign": "dividend"}))
binary("pow", "x^y", kind="number", torch="torch.pow({0}, {1})", triton=pow_triton, vjp=gradient(pow_gradient), precision="high", domain={"0": between(0.3, 2.0), "1": between(0.3, 3.0)})
binary("maximum", "The larger; NaN if either is.", kind="number", torch="torch.maximum({0}, {1})", triton=extremum_triton("maximum"), vjp=extremum_gradient(Term.__gt__), fold=rounded("np.maximum({0}, {1})"))
binary("minimum", "The smaller; NaN if either is.", kind="number", torch="torch.minimum({0}, {1})", triton=extremum_triton("minimum"), vjp=extremum_gradient(Term.__lt__), fold=rounded("np.minimum({0}, {1})"))
binary("atan2", "Angle of the point (y, x): the first operand is the ordinate.", torch="torch.atan2({0}, {1})", vjp=gradient(lambda g, y, x, out: (g * x / (x * x + y * y), -g * y / (x * x + y * y))))

# ---------------------------------------------------------------- bits and truth values

for _short, _sign, _doc in (("and", "&", "both"), ("or", "|", "either"), ("xor", "^", "exactly one")):
    binary(f"bitwise_{_short}", f"Bits set in {_doc}.", kind="bits", torch=f"{{0}} {_sign} {{1}}", triton=f"{{0}} {_sign} {{1}}", no_vjp=INTEGER, fold=exact(f"{{0}} {_sign} {{1}}"))
    binary(f"logical_{_short}", f"Whether {_doc} of two truth values is true.", kind="bool", torch=f"torch.logical_{_short}({{0}}, {{1}})", triton=f"{{0}} {_sign} {{1}}", no_vjp=INTEGER, fold=exact(f"{{0}} {_sign} {{1}}"))
binary("shift_left", "x 2^y in the integer's width.", kind="integer", torch="{0} << {1}", triton="{0} << {1}", no_vjp=INTEGER, fold=exact("np.left_shift({0}, {1})"), domain=BOUNDED)
binary("shift_right", "floor(x / 2^y): signed integers keep their sign.", kind="integer", torch="{0} >> {1}", triton="{0} >> {1}", no_vjp=INTEGER, fold=exact("np.right_shift({0}, {1})"), domain=BOUNDED)

for _short, _sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    binary(_short, f"x {_sign} y", kind="any", dtype=predicate, torch=f"{{0}} {_sign} {{1}}", triton=f"{{0}} {_sign} {{1}}", no_vjp=INTEGER, fold=rounded(f"{{0}} {_sign} {{1}}"))

# ---------------------------------------------------------------- select and cast


class Select(Pointwise):
    """a where cond, else b; the three broadcast against each other."""

    name = "dmlc.select"
    arity = 3
    kind = "any"
    same_dtype = False
    rule = "..., ..., ... -> ..."
    linear = [{1, 2}]
    selects = SELECTING
    torch = "torch.where({0}, {1}, {2})"
    triton = "tl.where({0}, {1}, {2})"
    fold = staticmethod(moved("np.where({0}, {1}, {2})"))

    @staticmethod
    def dtype(types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
        cond, a, b = (t.dtype for t in types)
        if cond != "i1" or a != b:
            raise InferError(f"'dmlc.select' takes an i1 and two tensors of one dtype, not {cond}, {a}, {b}")
        return a

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        cond, g = Term(b, op.operands[0]), Term(b, grads[0])
        taken, left = cond.select(g, 0), cond.select(0, g)
        return [None, unbroadcast(b, taken.value, op.operands[1].tensor), unbroadcast(b, left.value, op.operands[2].tensor)]

    @staticmethod
    def samples() -> list[Sample]:
        def of(shapes: Sequence[Any], dtype: str) -> Sample:
            return Sample((TensorType(shapes[0], "i1"), TensorType(shapes[1], dtype), TensorType(shapes[2], dtype)))

        return [of(s, "f32") for s in SHAPES_3] + [of(SHAPES_3[0], "i64"), of(SHAPES_3[0], "i1")]


def cast_triton(op: Op) -> str | None:
    """Values live widened inside a kernel: a cast to 16 bits rounds and widens again."""
    source, target = op.operands[0].dtype, op.attrs["to"]
    if target.startswith("f8") or source == target:
        return None if target.startswith("f8") else "{0}"
    if target == "i1":
        return "{0} != 0"
    narrow = {"bf16": ".to(tl.bfloat16)", "f16": ".to(tl.float16)"}.get(target, "")
    return f"{{0}}{narrow}.to({triton_dtype(target)})"


class Cast(Pointwise):
    """x in dtype `to`. Float to integer truncates; to i1 it is x != 0."""

    name = "dmlc.cast"
    kind = "any"
    rule = "... -> ..."
    attributes = {"to": REQUIRED}
    linear = staticmethod(lambda op: [{0}] if op.operands[0].dtype in FLOATS and op.results[0].dtype in FLOATS else [])
    torch = "{0}.to({to})"
    triton = staticmethod(cast_triton)

    @classmethod
    def result_types(cls, operand_types: Sequence[Type], attrs: dict[str, Any]) -> list[Type] | None:
        if attrs.get("to") not in DTYPES:
            raise InferError(f"'dmlc.cast' to \"{attrs.get('to')}\": the dtypes are {', '.join(DTYPES)}")
        return super().result_types(operand_types, attrs)

    @staticmethod
    def dtype(types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
        return attrs["to"]

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        source = op.operands[0].tensor
        return [b.emit("dmlc.cast", grads[0], to=source.dtype) if source.is_float and op.result.tensor.is_float else None]

    @staticmethod
    def fold(op: Op, operands: Sequence[numpy.ndarray]) -> list[numpy.ndarray] | None:
        """Between integers, f32 and f64; a float that the integer cannot hold is left to the program, whose answer is the machine's."""
        import numpy as np

        array, target = operands[0], op.attrs["to"]
        if array.dtype.kind == "f" and target not in FLOATS and target != "i1":
            info = np.iinfo(target.replace("ui", "uint") if target.startswith("u") else target.replace("i", "int"))
            whole = np.trunc(array.astype(np.float64))  # f16 would round the integer's limits to infinity
            if not (np.all(whole >= float(info.min)) and np.all(whole < float(info.max) + 1)):
                return None
        return rounded("{0}")(op, operands)

    @staticmethod
    def samples() -> list[Sample]:
        pairs = [("f32", "f64"), ("f64", "f32"), ("f32", "bf16"), ("bf16", "f32"), ("f32", "f16"), ("f32", "i64"), ("i64", "f32"), ("f32", "i1"), ("i1", "f32"), ("i64", "i32"), ("i32", "ui8")]
        shapes = [Sample((TensorType(s, "f32"),), AttrDict(to="f64")) for s in ((1,), (0, 4), ())]
        return shapes + [Sample((TensorType((5, 3), a),), AttrDict(to=b)) for a, b in pairs]
