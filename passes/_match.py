"""Looking at formulas: who made a value, which numbers multiply it, whether what a composite replaces is used elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from dmlc.ir.core import Op, Value
from dmlc.passes._canonical import uniform

PRECISION = {"f64": 1e-6, "f32": 1e-6, "bf16": 8e-3, "f16": 1e-3}  # how far an exporter's constant may be from the formula's, relative


@dataclass
class Match:
    """The ops seen inside a formula, found by asking for operands through it."""

    root: Op
    inside: dict[Op, None] = field(default_factory=dict)

    def made(self, value: Value, *names: str) -> Op | None:
        """The op `dmlc.<name>` that makes `value`; it then counts as inside."""
        op = value.op
        if op is None or op.name.removeprefix("dmlc.") not in names:
            return None
        self.inside[op] = None
        return op

    def product(self, value: Value, stop: Collection[Value] = ()) -> tuple[float, list[Value]]:
        """Numbers and other factors of a product, division by a number and negation counted in. Does not look into `stop`."""
        op = None if value in stop else self.made(value, "mul", "div", "neg")
        if op is None or op.attrs.get("rounding", "none") != "none" or not value.tensor.is_float:
            self.inside.pop(op, None) if op is not None else None
            return 1.0, [value]
        if op.name == "dmlc.neg":
            number, factors = self.product(op.operands[0], stop)
            return -number, factors
        left, right = op.operands
        for v, other in ((left, right), (right, left)):
            scalar = number_of(v)
            if scalar is not None and other.type == op.result.type and (op.name == "dmlc.mul" or (v is right and scalar)):
                number, factors = self.product(other, stop)
                return number * (scalar if op.name == "dmlc.mul" else 1 / scalar), factors
        if op.name == "dmlc.div":
            del self.inside[op]
            return 1.0, [value]
        (a, first), (b, second) = self.product(left, stop), self.product(right, stop)
        return a * b, first + second

    def plus_one(self, value: Value) -> Value | None:
        """y of 1 + y."""
        op = self.made(value, "add")
        if op is None:
            return None
        left, right = op.operands
        return right if number_of(left) == 1 else left if number_of(right) == 1 else None

    @property
    def is_private(self) -> bool:
        """Whether nothing outside uses what is inside, so that it all goes with the root; a program's results count as uses.

        A number times what the formula starts from may be shared: whoever else uses it computes it, and nothing twice.
        """
        checked = [op for op in self.inside if op is not self.root and not self._scales_an_input(op)]
        return all(user in self.inside or user is self.root for op in checked for r in op.results for user in r.users)

    def _scales_an_input(self, op: Op) -> bool:
        plain = [v for v in op.operands if number_of(v) is None]
        return op.name in ("dmlc.mul", "dmlc.div") and len(plain) == 1 and plain[0].op not in self.inside


def number_of(value: Value) -> float | int | None:
    """The number that a constant repeats."""
    found = uniform(value)
    return None if isinstance(found, bool) else found


def near(number: float | int | None, wanted: float, dtype: str) -> bool:
    """Whether a constant is the one of the formula, up to the rounding of its dtype."""
    return number is not None and abs(number - wanted) <= PRECISION.get(dtype, 0) * abs(wanted)


def last_dims(op: Op, dims: tuple[int, ...]) -> bool:
    """Whether `dims` are the last ones of the op's operand."""
    rank = op.operands[0].tensor.rank
    return tuple(sorted(dims)) == tuple(range(rank - len(dims), rank)) and len(dims) > 0
