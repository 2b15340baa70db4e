"""The reverse sweep of `autodiff`: which values carry gradients, and a block's ops visited backwards.

A gradient that is not there is None, never a tensor of zeros. Only values that depend on a trained parameter through floats get any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dmlc.ir.builder import TERMINATORS, Builder, IdPool
from dmlc.ir.core import Block, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.base import definition
from dmlc.ops.control import LOOPS, arguments, bodies, parts

STOP = "dmlc.stop_gradient"


def activity(ops: Iterable[Op], active: set[Value]) -> set[Value]:
    """Add to `active` every float that depends on an active value through floats; values inside regions too."""
    for op in ops:
        if op.name in LOOPS:
            _loop_activity(op, active)
        elif op.regions:
            for region in op.regions:
                _pass_on(op.operands[1:], region.block.args, active)
                activity(region.block, active)
            inside = [op.operands, *(region.block.terminator.operands for region in op.regions)]
            _activate(op, any(v in active for values in inside for v in values), active)
        else:
            _activate(op, any(v in active for v in op.operands), active)
    return active


def _activate(op: Op, depends: bool, active: set[Value]) -> None:
    if depends and op.name != STOP:
        active.update(r for r in op.results if isinstance(r.type, TensorType) and r.tensor.is_float)


def _pass_on(sources: Iterable[Value], targets: Iterable[Value], active: set[Value]) -> None:
    active.update(to for of, to in zip(sources, targets) if of in active and to.tensor.is_float)


def _loop_activity(op: Op, active: set[Value]) -> None:
    """What is carried depends on what was carried before: to a fixpoint."""
    body = bodies(op)[0]
    carried = parts(op, arguments(op, body))[0]
    for region in op.regions:
        _pass_on(op.operands, arguments(op, region.block), active)
    while True:
        activity(body, active)
        new = [a for a, y in zip(carried, body.terminator.operands) if y in active and a not in active]
        if not new:
            break
        active.update(new)
    _pass_on([*carried, *body.terminator.operands[len(carried) :]], op.results, active)


def captured(op: Op) -> list[Value]:
    """Values from outside that the op's regions read, in order of first use."""
    nested = [o for o in op.walk() if o is not op]
    inside = {r for o in nested for r in o.results} | {a for o in op.walk() for region in o.regions for b in region.blocks for a in b.args}
    return list(dict.fromkeys(v for o in nested for v in o.operands if v not in inside))


def drop_stops(ops: Iterable[Op]) -> None:
    """Once gradients have been taken, nothing has to stop them."""
    for op in [o for top in ops for o in top.walk() if o.name == STOP]:
        op.result.replace_uses(op.operands[0])
        op.erase()


class BackwardBuilder(Builder):
    """Emits on behalf of forward ops: what it makes says of which op it is the gradient (`dmlc.of`)."""

    def insert(self, op: Op) -> Op:
        if self.origin is not None and self.origin.id and op.name not in TERMINATORS:
            op.attrs.setdefault("dmlc.of", self.origin.id)
        return super().insert(op)


class Reverse:
    """Gradients of one block's values, added up as they come. `b` emits where the gradients shall stand."""

    def __init__(self, b: Builder, active: set[Value]):
        self.b, self.active = b, active
        self.grads: dict[Value, Value] = {}

    def add(self, value: Value, grad: Value) -> None:
        """One more contribution. They are added in the order in which the sweep meets the uses, the last use first."""
        if value not in self.active:
            return
        if grad.type != value.type:
            raise DmlcError(f"a gradient of type {grad.type} for a value of type {value.type}", self.b.loc)
        known = self.grads.get(value)
        self.grads[value] = grad if known is None else self.b.emit("dmlc.add", known, grad)

    def sweep(self, ops: Sequence[Op], done: Callable[[Op], None] = lambda op: None) -> None:
        """Visit ops backwards; `done` is called after each."""
        for op in reversed(ops):
            grads = [self.grads.pop(r, None) for r in op.results]
            if any(g is not None for g in grads):
                with self.b.for_op(op):
                    self._step(op, grads)
            done(op)

    def _step(self, op: Op, grads: list[Value | None]) -> None:
        from dmlc.passes._reverse_regions import REGIONS

        if op.name in REGIONS:
            REGIONS[op.name](self, op, grads)
            return
        found = definition(op)
        if found.vjp is None:
            reason = f" ({found.no_vjp})" if found.no_vjp else ""
            raise DmlcError(f"'{op.name}' has no gradient{reason}, but it lies between a trained parameter and the loss", op.loc)
        for value, grad in zip(op.operands, found.vjp(self.b, op, grads), strict=True):
            if grad is not None:
                self.add(value, grad)


def block_builder(block: Block, outer: Builder) -> BackwardBuilder:
    """A builder at the end of a new region's block that draws ids from the same pool and speaks for the same op."""
    assert outer.ids is not None and outer.origin is not None
    return BackwardBuilder(block, None, outer.ids, outer.origin)


def copy_ops(ops: Iterable[Op], block: Block, mapping: dict[Value, Value], ids: IdPool, of: str) -> list[Op]:
    """Forward ops once more, at the end of `block`: recomputed there. `of`: the op whose gradient they serve."""
    copies = [op.clone(mapping) for op in ops]
    for copy in copies:
        for op in copy.walk():
            if op.id:
                op.attrs["dmlc.id"] = ids.fresh(f"{op.id}#re")
                op.attrs.setdefault("dmlc.of", of)
        block.append(copy)
    return copies
