"""Where the values of a placed global program lie, and what memory a rank needs for a list of items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dmlc.cost.model import view_operand
from dmlc.ir.attributes import Sharding
from dmlc.ir.core import Function, Op, Value
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import BYTES, TensorType
from dmlc.ops.place import Place, states
from dmlc.simulate.liveness import region_bytes

if TYPE_CHECKING:
    from dmlc.passes._clones import Item, Ref

Key = tuple["Ref", Sharding | None]


class Placed:
    """Shardings that the places of a function's ops give, and the bytes a rank holds of each value."""

    def __init__(self, function: Function):
        self.mesh = Mesh.around(function.op)
        self.asked: dict[Op, list[Sharding | None]] = {}
        self.natural: dict[Value, Sharding | None] = {}
        for arg in function.args:
            self.natural[arg] = arg.attrs.get("dmlc.sharding") or arg.attrs.get("dmlc.storage") or self.mesh.replicated(arg.tensor.rank)
        for op in function.body:
            if op is not function.return_op:
                self._place(op)

    def _place(self, op: Op) -> None:
        if op.name == "dmlc.barrier":
            self.asked[op] = [self.natural.get(v) for v in op.operands]
            given = [self.natural.get(op.operands[0])]
        else:
            asked, given = states(self.mesh, op, Place.from_attr(op.attrs.get("dmlc.place")))
            self.asked[op] = list(asked)
            if op.name == "dmlc.gradient":  # the parameter only names what the gradient belongs to
                given = [op.attrs.get("dmlc.storage") or given[0]]
                self.asked[op] = [given[0], self.natural[op.operands[1]]]
        self.natural.update(zip(op.results, given))

    def bytes(self, type_: TensorType, sharding: Sharding | None) -> int:
        local = type_ if sharding is None else self.mesh.local_type(type_, sharding)
        return local.bytes if all(isinstance(n, int) for n in local.shape) else 0

    def size(self, value: Value) -> int:
        """Bytes of a value on a rank, in a microbatch."""
        return self.bytes(value.tensor, self.natural.get(value))

    def is_per_microbatch(self, value: Value) -> bool:
        """Whether the value is made in every microbatch from that microbatch's samples."""
        sharding = self.natural.get(value)
        sequential = self.mesh.axes.sequential
        if not sequential or sharding is None:
            return value.tensor.rank > 0
        return any(a in sequential for axes in sharding.dims for a in axes)

    def resident(self, function: Function) -> int:
        """Bytes that lie there throughout a step: arguments, inputs of all microbatches."""
        count = self.mesh.extent(self.mesh.axes.sequential)
        return sum(self.size(a) * (count if a.attrs.get("dmlc.role", "input") == "input" else 1) for a in function.args)

    def accumulators(self, function: Function) -> int:
        """Bytes in which gradients are added up over microbatches (a program for one takes any number of them)."""
        if not self.mesh.axes.sequential:
            return 0
        total = 0
        for op in function.body:
            if op.name == "dmlc.gradient":
                type_ = op.results[0].tensor
                total += self.bytes(type_, op.attrs.get("dmlc.accumulate") or self.natural[op.results[0]]) * max(4 // BYTES[type_.dtype], 1)
        return total


@dataclass(frozen=True)
class Memory:
    """`peak` bytes at item `at`; `excess` adds up the bytes above a limit over all items; `alive` are the references alive at the peak."""

    peak: int
    at: int
    excess: int
    alive: tuple[Ref, ...]


class MemoryModel:
    """Peak memory of a list of items run in their order, under the places of the program they come from.

    A value asked for in another sharding than it has takes a buffer of its own in that form, from the first op that wants it to the last.
    """

    def __init__(self, function: Function, placed: Placed):
        self.placed, self.base, self.accumulators = placed, placed.resident(function), placed.accumulators(function)
        self.kept = list(function.results)
        self.scratch = {op: region_bytes(op) for op in function.body if op.regions}

    def simulate(self, items: Sequence[Item], limit: int = 0) -> Memory:
        """The memory of the items; `limit` in bytes is what `excess` counts from."""
        made, last, size = self._lives(items)
        freed: list[list[Key]] = [[] for _ in items]
        for key, at in last.items():
            if at < len(items):
                freed[at].append(key)
        alive = peak = self.base + self.accumulators
        where = excess = 0
        complete = max((i for i, item in enumerate(items) if item.op is not None and item.op.name == "dmlc.gradient"), default=-1)
        for i, item in enumerate(items):
            alive += sum(size[k] for k in made[i])
            now = alive + self.scratch.get(item.op, 0)  # type: ignore[arg-type]
            excess += max(now - limit, 0)
            if now > peak:
                peak, where = now, i
            alive -= sum(size[k] for k in freed[i]) + (self.accumulators if i == complete else 0)
        begin = {k: i for i, keys in enumerate(made) for k in keys}
        return Memory(peak, where, excess, tuple(k[0] for k, b in begin.items() if b <= where <= last[k]))

    def _lives(self, items: Sequence[Item]) -> tuple[list[list[Key]], dict[Key, int], dict[Key, int]]:
        """Buffers that each item makes, the last item that needs each (one past the end for results), and their sizes."""
        root: dict[Key, Key] = {}
        made: list[list[Key]] = []
        last: dict[Key, int] = {}
        size: dict[Key, int] = {}
        for i, item in enumerate(items):
            made.append([])
            keys = [self._form(r, s, root, size, made[i]) for r, s in zip(item.operands, self._asked(item))]
            for key in keys:
                last[key] = i
            for j, ref in enumerate(item.results):
                value = _value(ref)
                here: Key = (ref, self.placed.natural.get(value))
                view = _aliased(item) if j == 0 else None
                root[here] = keys[view] if view is not None and view < len(keys) else here
                if root[here] is here:
                    size[here] = self.placed.size(value)
                    made[i].append(here)
                last[root[here]] = i
        for value in self.kept:
            key = root.get((value, self.placed.natural.get(value)))
            if key is not None:
                last[key] = len(items)
        return made, last, size

    def _asked(self, item: Item) -> Sequence[Sharding | None]:
        if item.kind == "barrier":
            return [self.placed.natural.get(_value(item.operands[0]))]
        assert item.op is not None
        asked = self.placed.asked[item.op]
        return asked[:1] if item.op.name == "dmlc.barrier" else asked

    def _form(self, ref: Ref, wanted: Sharding | None, root: dict[Key, Key], size: dict[Key, int], made: list[Key]) -> Key:
        """The buffer of a reference in a sharding; one that is not there yet is made here."""
        value = _value(ref)
        natural = self.placed.natural.get(value)
        here: Key = (ref, natural)
        if here not in root:  # an argument: it lies there anyway
            root[here], size[here] = here, 0
        if wanted is None or natural is None or (wanted.dims == natural.dims and wanted.unreduced == natural.unreduced):
            return root[here]
        form: Key = (ref, wanted)
        if form not in root:
            root[form], size[form] = form, self.placed.bytes(value.tensor, wanted)
            made.append(form)
        return form


def _aliased(item: Item) -> int | None:
    """The operand whose buffer the first result is."""
    if item.kind == "barrier" or item.op is None or item.op.name == "dmlc.gradient":
        return 0
    return view_operand(item.op)


def _value(ref: Ref) -> Value:
    return ref[1] if isinstance(ref, tuple) else ref
