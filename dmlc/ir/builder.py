"""Making ops at a place, with inferred types and unique ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dmlc.ir.core import Block, Function, Op, Region, Value
from dmlc.ir.location import UNKNOWN, DmlcError, Loc
from dmlc.ir.registry import lookup
from dmlc.ir.types import Type

TERMINATORS = frozenset({"func.return", "dmlc.yield", "kernel.yield"})
INHERITED = ("dmlc.of", "dmlc.phase", "dmlc.times")  # what is made for a backward op is one too, and so for the optimizer's ops and for layers that stand for several


class IdPool:
    """All ids of a function, and fresh ones. Read off the ops each time, so the same text gives the same new ids."""

    def __init__(self, function: Op | Function):
        op = function.op if isinstance(function, Function) else function
        self.taken = {o.id for o in op.walk() if o.id}

    def fresh(self, base: str) -> str:
        """`base` itself if free, else `base1`, `base2`, …"""
        name, n = base, 0
        while name in self.taken:
            n += 1
            name = f"{base}{n}"
        self.taken.add(name)
        return name


def infer_types(name: str, operands: Sequence[Value], attrs: dict[str, Any], loc: Loc = UNKNOWN) -> list[Type]:
    definition = lookup(name)
    types = definition.result_types([v.type for v in operands], attrs) if definition else None
    if types is None:
        raise DmlcError(f"result types of '{name}' must be given", loc)
    return list(types)


class Builder:
    """Emits ops before `anchor` (or at the end of `block`). `origin` is the op the new ones are made for: it lends its
    location, and its id as the stem of theirs (`12` -> `12.ar`)."""

    def __init__(self, block: Block, anchor: Op | None = None, ids: IdPool | None = None, origin: Op | None = None, loc: Loc | None = None):
        self.block, self.anchor, self.ids, self.origin = block, anchor, ids, origin
        self.loc = loc if loc is not None else (origin.loc if origin is not None else UNKNOWN)
        self._count = 0

    @classmethod
    def before(cls, op: Op, ids: IdPool | None = None) -> Builder:
        assert op.block is not None
        return cls(op.block, op, ids, origin=op)

    @classmethod
    def after(cls, op: Op, ids: IdPool | None = None) -> Builder:
        assert op.block is not None
        return cls(op.block, op.next, ids, origin=op)

    @classmethod
    def at_end(cls, block: Block, ids: IdPool | None = None) -> Builder:
        return cls(block, None, ids)

    @contextmanager
    def for_op(self, origin: Op, loc: Loc | None = None) -> Iterator[Builder]:
        """Emit on behalf of `origin` for a while."""
        saved = self.origin, self.loc
        self.origin, self.loc = origin, loc if loc is not None else origin.loc
        try:
            yield self
        finally:
            self.origin, self.loc = saved

    def insert(self, op: Op) -> Op:
        if self.anchor is None:
            return self.block.append(op)
        return self.block.insert_before(self.anchor, op)

    def op(self, name: str, operands: Sequence[Value] = (), attrs: dict[str, Any] | None = None, result_types: Sequence[Type] | None = None, *, tag: str = "", regions: Sequence[Region] = ()) -> Op:
        """Emit an op. Types are inferred when not given; `tag` is what the new id adds to the origin's (`ar`, `mask`, …; the op's short name when left out)."""
        attrs = dict(attrs or {})
        if result_types is None:
            result_types = infer_types(name, operands, attrs, self.loc)
        if "dmlc.id" not in attrs and name not in TERMINATORS:
            attrs["dmlc.id"] = self._new_id(tag or name.split(".", 1)[-1])
            self._inherit(attrs)
        return self.insert(Op(name, operands, result_types, attrs, regions, self.loc))

    def emit(self, name: str, *operands: Value, types: Sequence[Type] | None = None, tag: str = "", **attrs: Any) -> Value:
        """Emit a one-result op and return its value: `b.emit("dmlc.add", x, y)`; attribute names with dots go through `op`."""
        return self.op(name, operands, attrs, types, tag=tag).result

    def _inherit(self, attrs: dict[str, Any]) -> None:
        if self.origin is None:
            return
        for key in INHERITED:
            if key in self.origin.attrs:
                attrs.setdefault(key, self.origin.attrs[key])

    def _new_id(self, tag: str) -> str:
        if self.ids is None:
            function = self.block.region.op.function if self.block.region and self.block.region.op else None
            self.ids = IdPool(function) if function is not None else IdPool(Op("builtin.module"))
        if self.origin is not None and self.origin.id:
            return self.ids.fresh(f"{self.origin.id}.{tag}")
        while str(self._count) in self.ids.taken:
            self._count += 1
        return self.ids.fresh(str(self._count))
