"""Structural equality of modules: the same up to names of values; the first difference in words."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from dmlc.ir.attribute_printer import attribute_text, type_text
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Block, BlockArgument, Module, Op, Value
from dmlc.ir.location import UNKNOWN, Loc


def structurally_equal(a: Module | Op, b: Module | Op) -> str | None:
    """None when both are the same: ops, attributes, types, uses, argument names, locations (those of a text itself aside).
    Otherwise the first difference, in print order."""
    return _Comparison().ops(a if isinstance(a, Op) else a.op, b if isinstance(b, Op) else b.op)


class _Comparison:
    def __init__(self) -> None:
        self.partner: dict[Value, Value] = {}

    def ops(self, a: Op, b: Op) -> str | None:
        where = _where(a)
        if a.name != b.name:
            return f"{where}: against '{b.name}'"
        if len(a.operands) != len(b.operands) or len(a.results) != len(b.results) or len(a.regions) != len(b.regions):
            return f"{where}: numbers of operands, results or regions differ"
        for i, (x, y) in enumerate(zip(a.operands, b.operands)):
            if self.partner.setdefault(x, y) is not y:
                return f"{where}: operand {i} is another value"
        return self._types(a, b, where) or _attributes(a.attrs, b.attrs, where) or _locs(a.loc, b.loc, where) or self._regions(a, b, where)

    def _types(self, a: Op, b: Op, where: str) -> str | None:
        for i, (x, y) in enumerate(zip(a.results, b.results)):
            self.partner[x] = y
            if x.type != y.type:
                return f"{where}: result {i} is a {type_text(x.type)} against {type_text(y.type)}"
        return None

    def _regions(self, a: Op, b: Op, where: str) -> str | None:
        for x, y in zip(a.regions, b.regions):
            if len(x.blocks) != len(y.blocks):
                return f"{where}: numbers of blocks differ"
            for p, q in zip(x.blocks, y.blocks):
                found = self._arguments(p, q, a.name == "func.func", where) or self._blocks(p, q, where)
                if found:
                    return found
        return None

    def _arguments(self, a: Block, b: Block, named: bool, where: str) -> str | None:
        if len(a.args) != len(b.args):
            return f"{where}: {len(a.args)} block arguments against {len(b.args)}"
        for x, y in zip(a.args, b.args):
            self.partner[x] = y
            if named and x.name != y.name:
                return f"{where}: argument %{x.name} against %{y.name}"
            if x.type != y.type:
                return f"{where}: argument {_name(x)} is a {type_text(x.type)} against {type_text(y.type)}"
            found = _attributes(x.attrs, y.attrs, f"{where}, argument {_name(x)}")
            if found:
                return found
        return None

    def _blocks(self, a: Block, b: Block, where: str) -> str | None:
        p, q = a.first, b.first
        while p is not None and q is not None:
            found = self.ops(p, q)
            if found:
                return found
            p, q = p.next, q.next
        extra = p or q
        return f"{where}: only one has {_where(extra)}" if extra is not None else None


def _name(arg: BlockArgument) -> str:
    return f"%{arg.name}" if arg.name else str(arg.index)


def _where(op: Op) -> str:
    if op.name == "func.func":
        return f"@{op.attrs.get('sym_name')}"
    return f"'{op.name}' {op.id}" if op.id else f"'{op.name}'"


def _locs(a: Loc, b: Loc, where: str) -> str | None:
    a, b = (UNKNOWN if x.text else x for x in (a, b))
    return None if a == b else f"{where}: location {a} against {b}"


def _attributes(a: Mapping[str, Any], b: Mapping[str, Any], where: str) -> str | None:
    for key in dict.fromkeys([*a, *b]):
        if key == "res_attrs":
            found = _result_attributes(a.get(key, ()), b.get(key, ()), where)
            if found:
                return found
        elif key not in a or key not in b:
            return f"{where}: attribute '{key}' is on one side only"
        elif not same_attribute(a[key], b[key]):
            return f"{where}: attribute '{key}' is {attribute_text(a[key])} against {attribute_text(b[key])}"
    return None


def _result_attributes(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], where: str) -> str | None:
    """Missing entries are empty ones."""
    for i in range(max(len(a), len(b))):
        found = _attributes(a[i] if i < len(a) else {}, b[i] if i < len(b) else {}, f"{where}, result {i}")
        if found:
            return found
    return None


def same_attribute(a: Any, b: Any) -> bool:
    """Equality by value and class, so that 1, 1.0 and true differ; floats by their bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same_attribute, a, b))
    if isinstance(a, AttrDict):
        return a.keys() == b.keys() and all(same_attribute(v, b[k]) for k, v in a.items())
    return a == b
