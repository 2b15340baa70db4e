"""What one kernel may hold and what it costs: shared by the passes that choose groups (`fuse`, `joint`).

A kernel runs over rows and columns (`dmlc.ops.iteration`); what it yields is what escapes. Ops it recomputes (`is_free`) go into every kernel
that reads them and are counted in none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from dmlc.cost import Cost, CostModel
from dmlc.ir.core import Op, Value
from dmlc.ops.base import definition
from dmlc.ops.iteration import Space, common_space, facts_of, signature_number
from dmlc.ops.kernel import in_kernel, is_free
from dmlc.passes._quotient import Quotient

KEPT_COLUMNS = 8192  # a wider row does not stay in registers: the kernel reads it once for every reduction in a row
FEWEST_ROWS = 32  # fewer of such rows leave most of a device idle


_FITS: dict[int, bool] = {}


def fits(op: Op) -> bool:
    """Whether an op may be in a kernel at all: Triton text, followable dims, no effect (random ops count elements and have none), and not a rank's own small integer arithmetic."""
    if op.regions:
        return False
    number = signature_number(op)
    found = _FITS.get(number)
    if found is None:
        found = _FITS[number] = _fits(op)
    return found


def _fits(op: Op) -> bool:
    if definition(op).effects not in ("", "random") or not in_kernel(op) or is_free(op):
        return False
    numbers = all(r.tensor.rank == 0 and not r.tensor.is_float for r in op.results)
    return not numbers and facts_of(op) is not None


@dataclass(frozen=True)
class Limits:
    """Bounds on the primitive ops of a kernel and on the tensors it reads and writes."""

    max_ops: int = 32
    min_ops: int = 2
    max_inputs: int = 24


class Kernels:
    """Kernels of one block. Ops are given in program order, without the free ones."""

    def __init__(self, quotient: Quotient, cost: CostModel, limits: Limits):
        self.quotient, self.cost, self.limits = quotient, cost, limits
        self.number, self.facts = cache(signature_number), cache(facts_of)  # of ops, which do not change while kernels are chosen

    def primitives(self, ops: Sequence[Op]) -> int:
        """Ops that compute something, those that composites are made of counted."""
        return sum(facts.count for op in ops if (facts := self.facts(op)) is not None)

    def space(self, ops: Sequence[Op]) -> Space | str:
        """Rows and columns of the kernel (no axes), or why there is none."""
        space = common_space(list(with_free(ops)), self.quotient.escaping(ops), self.number)
        if isinstance(space, Space) and space.columns and space.width > KEPT_COLUMNS and space.rows < FEWEST_ROWS:
            return f"{space.rows} rows are too few for a kernel that takes a row at a time"
        return space

    def too_large(self, ops: Sequence[Op]) -> str:
        """Which limit a kernel of `ops` would be above; "" when none."""
        if self.primitives(ops) > self.limits.max_ops:
            return f"the kernel would have more than {self.limits.max_ops} ops"
        if len(self.quotient.inputs(ops)) + len(self.quotient.escaping(ops)) > self.limits.max_inputs:
            return f"the kernel would read and write more than {self.limits.max_inputs} tensors"
        return ""

    def is_worth(self, ops: Sequence[Op]) -> bool:
        """Whether `ops` are made a kernel at all: enough of them, and something is read."""
        if self.primitives(ops) < self.limits.min_ops or not self.quotient.inputs(ops):
            return False
        return isinstance(self.space(ops), Space)

    def time(self, ops: Sequence[Op], space: Space | str | None = None) -> int:
        """Picoseconds of one kernel; a wide row is read again after every reduction."""
        space = self.space(ops) if space is None else space
        reductions = sum(len(facts.reduced) for op in ops if (facts := self.facts(op)) is not None)
        loops = 1 + min(reductions, 2) if isinstance(space, Space) and space.width > KEPT_COLUMNS else 1
        reads, writes = self.quotient.inputs(ops), self.quotient.escaping(ops)
        again = [Value(v.type) for v in reads for _ in range(loops - 1) if v.tensor.numel > space.rows] if isinstance(space, Space) else []
        return self.cost.group(ops, [*reads, *again], writes).time

    def price(self, ops: Sequence[Op]) -> Cost:
        """What the kernel costs once it is made: as `CostModel.op` prices a `kernel.fused`."""
        return self.cost.group(list(with_free(ops)), self.quotient.inputs(ops), self.quotient.escaping(ops))


def with_free(ops: Sequence[Op]) -> Iterator[Op]:
    """The ops of a kernel in order with the free ops they read before them."""
    seen: set[Op] = set()

    def visit(value: Value) -> Iterator[Op]:
        op = value.op
        if op is not None and is_free(op) and op not in seen:
            seen.add(op)
            for operand in op.operands:
                yield from visit(operand)
            yield op

    for op in ops:
        for value in op.operands:
            yield from visit(value)
        yield op
