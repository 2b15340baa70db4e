"""The base class of op definitions: every facet of an op in one class (DESIGN: an op is one class, in one place).

A definition is never instantiated. Facets are class attributes or static functions of an `Op`; strings are shorthand
for the common case. Read facets through the functions at the end of this file (`rule_of`, `linear_of`, …), never from the class:
they handle shorthand and defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dmlc.ir import registry
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.location import UNKNOWN, DmlcError
from dmlc.ir.open_sizes import exactly, representative
from dmlc.ir.types import TensorType, Type
from dmlc.ops.rule import Rule, RuleError, opaque_rule, parse_rule, result_shapes_of


@dataclass(frozen=True)
class Strategy:
    """A way to compute an op on one group of mesh axes that the factor rule alone does not give.

    `operands[i]` / `results[j]` say what the axes do to each tensor: a dim they split, None (replicated over them), or
    ("unreduced", combiner). `grains` maps an operand index or ("result", j) to the grain of the split dim when it is not 1.
    `emit(env, op, operands) -> results` builds the per-rank ops through the `env` (see `dmlc.passes.partition`): `env.b` the builder,
    `env.axes`, `env.window(n, grain) -> (start, valid)`, `env.all_reduce(value, combiner)`, `env.all_gather(value, dim, n)`,
    `env.local_types` of the results. With `batch`, the axes may be those of a training batch: `env.window(n)` then has this microbatch's
    valid elements, `env.count(n)` their number over all ranks, `env.all_reduce` runs over devices only, and a result with None is a
    value of the microbatch. With `sequential_only` the axes are the microbatches alone (whatever lies over devices is taken replicated):
    `env.micro_index` and `env.filled_microbatches()` (i64 scalars) say which microbatch it is and how many hold samples; results unreduced
    over them are added up. `work(k)` is the share of the op's work that a rank does on k ranks (default 1/k);
    `traffic(op, k, sizes)` the bytes its own collectives move.
    """

    name: str
    operands: tuple[Any, ...]
    results: tuple[Any, ...]
    emit: Callable[..., Sequence[Value]]
    grains: AttrDict = field(default_factory=AttrDict)
    work: Callable[[int], float] = lambda k: 1.0 / k
    traffic: Callable[..., list[tuple[str, int]]] = lambda op, k: []  # [(collective kind, bytes of the per-rank result)]
    divides: int = 0  # 0: any number of ranks; otherwise the number of ranks must divide this
    batch: bool = False  # serves the axes of the batch (statistics over samples) besides those of tensors
    sequential_only: bool = False  # of the batch's axes only the microbatches


@dataclass(frozen=True)
class Sample:
    """One test case of an op: operand types (or concrete nested lists through `values`), attributes, given result types.

    `values[i]` (optional) makes operand i: a function (numpy Generator, shape, dtype) -> array; needed for index operands and domains
    such as log's. `vjp=False` leaves the sample out of the finite-difference test with the reason in `why`.
    """

    operands: tuple[TensorType, ...]
    attrs: AttrDict = field(default_factory=AttrDict)
    results: tuple[TensorType, ...] | None = None
    values: AttrDict = field(default_factory=AttrDict)  # keys are str(operand index)
    vjp: bool = True
    why: str = ""


class OpDef:
    """All facets of one op. Subclasses with a `name` register themselves."""

    name: ClassVar[str] = ""
    results: ClassVar[int] = 1  # number of results when inferred from the rule
    rule: ClassVar[Any] = None  # str | (op) -> str | Rule; None = opaque: all operands replicated
    combiner: ClassVar[str] = "sum"  # of the reduced factors
    index: ClassVar[Any] = ()  # operands used as indices: tuple | (op) -> tuple
    linear: ClassVar[Any] = ()  # operand sets that may be unreduced (sum) together: sequence of sets | (op) -> same
    selects: ClassVar[Any] = ()  # combiners (besides sum) an unreduced operand may carry through unchanged, e.g. views: ("max", "min", "and", "or")
    given: ClassVar[bool] = False  # result types are part of the op (reshape, broadcast, iota, …) and `verify` checks them
    same_dtype: ClassVar[bool] = True  # all operands share one dtype
    infer: ClassVar[Any] = None  # (operand types, attrs) -> [types]; raises InferError
    dtype: ClassVar[Any] = None  # (operand types, attrs) -> dtype of the results inferred from the rule; None = first operand's
    strategies: ClassVar[Any] = None  # (op) -> [Strategy]
    local: ClassVar[Any] = None  # (env, op, {factor: axes}) -> attributes that differ on a rank; `env.local_types` are the results'
    starts: ClassVar[str] = ""  # sources only: partition appends operands (i64) saying where a rank's part begins; "dim": along `dim`, "all": one a dim
    torch: ClassVar[Any] = None  # text | (op) -> text; the op's definition. {0} operand, {attr}, {r0.shape}, {r0.dtype}, {*} all operands as a comma list
    triton: ClassVar[Any] = None  # text | (op) -> text for use inside a generated kernel; None = cannot be inside one
    vjp: ClassVar[Any] = None  # (b, op, grads) -> [Value | None] one per operand
    no_vjp: ClassVar[str] = ""  # why an op has no vjp ("integer valued", …)
    residuals: ClassVar[tuple[str, ...]] = ()  # extra results an op can be asked for (lse, rstd)
    decompose: ClassVar[Any] = None  # (b, op) -> [Value]; makes the op a composite
    fold: ClassVar[Any] = None  # (op, numpy operands) -> [numpy arrays] | None
    cost: ClassVar[str] = "bytes"  # "mac": multiply-adds = product of all factor sizes; "bytes": memory bound; "free": no work
    flops: ClassVar[Any] = None  # (op) -> int, when the product of factor sizes is wrong (attention, convolution)
    precision: ClassVar[str] = "follow"  # low | follow | high
    effects: ClassVar[str] = ""  # "" pure | "random" | "comm" | "order"
    view: ClassVar[int | None] = None  # the result aliases this operand
    in_place_operands: ClassVar[tuple[int, ...]] = ()  # for each result the operand whose memory it can take; the torch text then is `in_place`
    in_place: ClassVar[str] = ""  # text like `torch`; {outs} is where the results go: one name a result
    attributes: ClassVar[dict[str, Any]] = {}  # allowed own attributes -> default; REQUIRED = must be given
    samples: ClassVar[Any] = None  # () -> [Sample]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__ and cls.name:
            registry.register(cls)

    @classmethod
    def result_types(cls, operand_types: Sequence[Type], attrs: dict[str, Any]) -> list[Type] | None:
        if cls.given:
            return None
        types = [t for t in operand_types if isinstance(t, TensorType)]
        if cls.infer is not None:
            return list(cls.infer(types, _with_defaults(cls, attrs)))
        return list(_infer_from_rule(cls, types, attrs))

    @classmethod
    def verify(cls, op: Op) -> None:
        """Attributes are known and complete; operands share a dtype; inferred types equal the printed ones.

        A tensor op is judged by its types and own attributes alone, so equal ones are looked at once.
        """
        key = None if op.regions or op.dialect != "dmlc" or not _is_static(op) else _typed_signature(op)
        if key is None or key not in _VERIFIED:
            cls._verify(op)
            if key is not None:
                _VERIFIED.add(key)

    @classmethod
    def _verify(cls, op: Op) -> None:
        for key in op.attrs:
            if "." not in key and key not in cls.attributes:
                raise DmlcError(f"'{op.name}' has no attribute '{key}'; it takes {sorted(cls.attributes) or 'none'}", op.loc)
        for key, default in cls.attributes.items():
            if default is REQUIRED and key not in op.attrs:
                raise DmlcError(f"'{op.name}' needs the attribute '{key}'", op.loc)
        cls.check(op)
        if not cls.given:
            inferred = cls.result_types([v.type for v in op.operands], op.attrs)
            actual = [r.type for r in op.results]
            if inferred is not None and inferred != actual[: len(inferred)]:
                raise DmlcError(f"'{op.name}' has result types ({', '.join(map(str, actual))}) but its operands give ({', '.join(map(str, inferred))})", op.loc)

    @classmethod
    def check(cls, op: Op) -> None:
        """Further conditions of a family; the base checks that dtypes agree."""
        dtypes = {v.dtype for v in op.operands if isinstance(v.type, TensorType)}
        if cls.same_dtype and len(dtypes) > 1:
            raise DmlcError(f"operands of '{op.name}' have different dtypes {sorted(dtypes)}", op.loc)


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


class InferError(DmlcError):
    """Operand types or attributes do not fit an op."""


def _with_defaults(cls: type[OpDef], attrs: dict[str, Any]) -> dict[str, Any]:
    defaults = {k: v for k, v in cls.attributes.items() if v is not REQUIRED}
    return {**defaults, **attrs} if defaults else attrs


def _infer_from_rule(cls: type[OpDef], types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
    text = cls.rule
    if callable(text):
        text = text(OpLike(cls, types, _with_defaults(cls, attrs)))
    try:
        rule = text if isinstance(text, Rule) else parse_rule(text, [t.shape for t in types])
    except RuleError as e:
        raise InferError(f"'{cls.name}': {e}") from None
    dtype = cls.dtype(types, _with_defaults(cls, attrs)) if cls.dtype is not None else types[0].dtype
    return [TensorType(s, dtype) for s in result_shapes_of(rule)]


class OpLike:
    """Operand types and attributes before there is an op: what a rule function may read during inference."""

    def __init__(self, definition: type[OpDef], types: Sequence[TensorType], attrs: dict[str, Any]):
        self.name, self.types, self.attrs, self.results = definition.name, list(types), attrs, []
        self.operands = [Value(t) for t in types]
        self.loc = UNKNOWN


# ---------------------------------------------------------------- reading facets


def definition(op: Op) -> type[OpDef]:
    found = registry.lookup(op.name)
    if found is None:
        raise DmlcError(f"unknown op '{op.name}'", op.loc)
    return found


def attribute(op: Any, key: str) -> Any:
    """An own attribute, or its default."""
    if key in op.attrs:
        return op.attrs[key]
    default = registry.lookup(op.name).attributes[key]
    assert default is not REQUIRED, f"{op.name} lacks {key}"
    return default


_RULES: dict[Any, Rule] = {}
_VERIFIED: set[Any] = set()


def _is_static(op: Op) -> bool:
    """Whether no size is open: what is right of open sizes depends on their ranges."""
    return all(v.type.is_static for v in (*op.operands, *op.results) if isinstance(v.type, TensorType))


def _typed_signature(op: Op) -> tuple | None:
    """What an op's types and own attributes are, None where that cannot be hashed (it is wrong then, and told so in full)."""
    own = [(k, type(v), v) for k, v in op.attrs.items() if "." not in k]
    key = (op.name, tuple(v.type for v in op.operands), tuple(r.type for r in op.results), tuple(sorted(own, key=lambda kv: kv[0])))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def own_attrs(op: Op) -> dict[str, Any]:
    """Attributes of the op itself: those without a dialect prefix."""
    return {k: v for k, v in op.attrs.items() if "." not in k}


def own_key(op: Op) -> tuple[tuple[str, Any], ...]:
    """The op's own attributes by name, as part of a key."""
    return tuple(sorted([kv for kv in op.attrs.items() if "." not in kv[0]])) if op.attrs else ()  # names differ: values are never compared


def signature(op: Op) -> tuple:
    """What an op does, as far as it is known without the values: its name, types and own attributes."""
    own = (op.name, tuple([v.type for v in op.operands]), tuple([r.type for r in op.results]), own_key(op))
    return (*own, region_key(op)) if op.regions else own


def region_key(op: Op) -> tuple:
    """What the regions of an op do: their ops, what these read, numbered in order of appearance, and the types of all of it."""
    numbers: dict[Value, int] = {}

    def known(value: Value) -> tuple[int, Any]:
        return numbers.setdefault(value, len(numbers)), value.type

    rows = []
    for inner in op.walk():
        if inner is not op:
            rows.append((inner.name, tuple(map(known, inner.operands)), tuple(map(known, inner.results)), own_key(inner)))
        rows += [tuple(map(known, block.args)) for region in inner.regions for block in region.blocks]
    return tuple(rows)


def rule_of(op: Op) -> Rule:
    """The factor rule bound to the op's shapes (cached by name, types and own attributes)."""
    key = signature(op)
    rule = _RULES.get(key)
    if rule is None:
        with exactly():
            rule = _RULES[key] = _bind_rule(op)
    return rule


def _bind_rule(op: Op) -> Rule:
    d = definition(op)
    ins, outs = [v.shape for v in op.operands], [r.shape for r in op.results]
    text = d.rule(op) if callable(d.rule) else d.rule
    if text is None:
        return opaque_rule(ins, outs)
    if isinstance(text, Rule):
        return text
    try:
        return parse_rule(text, ins, outs, combiner=d.combiner)
    except RuleError as e:
        raise DmlcError(f"'{op.name}': {e}", op.loc) from None


def linear_of(op: Op) -> list[frozenset[int]]:
    """Operand sets that may be unreduced (sum) together."""
    sets = definition(op).linear
    return [frozenset(s) for s in (sets(op) if callable(sets) else sets)]  # type: ignore[reportGeneralTypeIssues]


def index_of(op: Op) -> tuple[int, ...]:
    index = definition(op).index
    return tuple(index(op) if callable(index) else index)


def strategies_of(op: Op) -> list[Strategy]:
    make = definition(op).strategies
    with exactly():
        return list(make(op)) if make is not None else []


def is_composite(op: Op) -> bool:
    return definition(op).decompose is not None


def flops_of(op: Op) -> int:
    """Multiply-adds of a contraction-like op (0 for memory-bound ops), at the representative sizes where some are open."""
    d = definition(op)
    if d.flops is not None:
        return representative(d.flops(op))
    return representative(rule_of(op).work()) if d.cost == "mac" else 0
