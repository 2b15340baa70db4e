"""A future is consumed exactly once on every path: by its `comm.wait`, or by being carried on (loop operand, yield)."""

from __future__ import annotations

from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, BlockArgument, Op, Value
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.types import FutureType

BRANCHES = ("dmlc.cond",)  # exactly one of their regions runs


def verify_future(value: Value) -> None:
    """Raise `DmlcError` when a value is a future that is not consumed exactly once."""
    if not isinstance(value.type, FutureType):
        return
    home = value.block if isinstance(value, BlockArgument) else value.op.block  # type: ignore[union-attr]
    assert home is not None
    loc = _loc(value, home)
    for user in value.users:
        if user.name != "comm.wait" and not user.regions and (user.name not in TERMINATORS or user.name == "func.return"):
            raise DmlcError(f"a future is given to '{user.name}'; only comm.wait takes it, or a region that carries it on", user.loc)
    count = _consumed([op for op, _ in value.uses], home)
    if count == 0:
        raise DmlcError("this future is never waited for", loc)
    if count > 1:
        raise DmlcError(f"this future is consumed {count} times; it must be once", loc, tuple(f"by '{u.name}' at {u.loc}" for u in value.users))


def _loc(value: Value, home: Block) -> Loc:
    owner = value.op if value.op is not None else home.region.op if home.region else None
    return owner.loc if owner is not None else Loc()


def _consumed(users: list[Op], block: Block) -> int:
    """How often one pass through the block consumes the future."""
    count = 0
    inside: dict[Op, list[Op]] = {}
    for user in users:
        top = _ancestor_in(user, block)
        if top is user:
            count += 1
        elif top is not None:
            inside.setdefault(top, []).append(user)
    return count + sum(_consumed_inside(op, nested) for op, nested in inside.items())


def _consumed_inside(op: Op, users: list[Op]) -> int:
    if op.name not in BRANCHES:
        raise DmlcError(f"a future from outside is consumed in the body of '{op.name}', which may run any number of times; carry it instead", users[0].loc)
    counts = [_consumed(users, region.block) for region in op.regions]
    if len(set(counts)) > 1:
        raise DmlcError(f"a future is consumed in some regions of '{op.name}' only", op.loc)
    return counts[0]


def _ancestor_in(op: Op, block: Block) -> Op | None:
    """The op of `block` that contains `op` (or is it)."""
    current: Op | None = op
    while current is not None and current.block is not block:
        current = current.parent
    return current
