"""Writing a module as text, in the short form or in MLIR's generic form. Names and numbers depend on attributes and order only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dmlc.ir.attribute_printer import attribute_text, bare_or_quoted, dictionary_text, signature_text, symbol_text, type_text
from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, BlockArgument, Function, Module, Op, Region, Value
from dmlc.ir.lexer import quote
from dmlc.ir.location import Loc

_OTHER = re.compile(r"[^A-Za-z0-9_.$]")
INDENT = "  "


def sanitised(text: str) -> str:
    """A legal SSA name from any text."""
    name = _OTHER.sub("_", text)
    return "_" + name if not name or name[0].isdigit() else name


class Names:
    """SSA names and ordinals within one function, given in print order."""

    def __init__(self) -> None:
        self.of: dict[Value, str] = {}
        self.taken: dict[str, int] = {}  # name -> next suffix to try
        self.ordinal = 0
        self.blocks = 0

    def _unique(self, base: str) -> str:
        name, n = base, self.taken.get(base, 0)
        while name in self.taken:
            n += 1
            name = f"{base}_{n}"
        self.taken[base] = n
        self.taken.setdefault(name, 0)
        return name

    def give(self, value: Value, base: str) -> str:
        name = self.of[value] = "%" + self._unique(base)
        return name

    def results(self, op: Op) -> list[str]:
        """Names of an op's results: its `dmlc.name`, else `v` and its id; `_0`, `_1` added to several."""
        name = op.attrs.get("dmlc.name")
        base = sanitised(name) if isinstance(name, str) and name else sanitised(f"v{op.id}")
        if len(op.results) == 1:
            return [self.give(op.results[0], base)]
        return [self.give(r, f"{base}_{i}") for i, r in enumerate(op.results)]

    def argument(self, arg: BlockArgument, of_function: bool) -> str:
        base = sanitised(arg.name) if of_function and arg.name else f"arg{arg.index}"
        return self.give(arg, base)

    def use(self, value: Value) -> str:
        """The name of an operand; one defined outside of what is printed gets a name here."""
        known = self.of.get(value)
        if known is not None:
            return known
        if isinstance(value, BlockArgument):
            return self.argument(value, True)
        if value.op is not None:
            self.results(value.op)
        return self.of[value]


class Printer:
    def __init__(self, generic: bool = False):
        self.generic = generic
        self.lines: list[str] = []
        self.names = Names()
        self.inside_function = False

    def operation(self, op: Op, indent: str) -> None:
        """Append the lines of one op."""
        custom = None if self.generic else _CUSTOM.get(op.name)
        if custom is not None:
            custom(self, op, indent)
        elif op.name == "func.func":
            self._scoped(op, indent, Printer._generic_function)
        else:
            self._plain(op, indent)

    def _scoped(self, op: Op, indent: str, write) -> None:
        """Write a function with names of its own."""
        saved = self.names, self.inside_function
        self.names, self.inside_function = Names(), True
        write(self, op, indent)
        self.names, self.inside_function = saved

    def _plain(self, op: Op, indent: str) -> None:
        attrs = self._attributes(op)
        operands = ", ".join(map(self.names.use, op._operands))
        results = ", ".join(self.names.results(op)) + " = " if op.results else ""
        types = f"{signature_text([v.type for v in op._operands], [r.type for r in op.results])}{_loc_text(op.loc)}"
        if self.generic:
            self._generic(f'{indent}{results}"{op.name}"({operands})', op, attrs, types, indent)
            return
        head = indent + results + op.name + (f" {operands}" if operands else "")
        empty_first = bool(op.regions) and not attrs and _prints_empty(op.regions[0])
        head += f" {attrs}" if attrs else " {}" if empty_first else ""
        if op.regions:
            self._regions(op, head + " {", indent, "}")
            head = self.lines.pop()
        self.lines.append(f"{head} : {types}")

    def _generic(self, head: str, op: Op, attrs: str, types: str, indent: str) -> None:
        if op.regions:
            self._regions(op, head + " ({", indent, "})")
            head = self.lines.pop()
        self.lines.append(f"{head}{' ' if attrs else ''}{attrs} : {types}")

    def _attributes(self, op: Op) -> str:
        """The dictionary with its braces, or nothing. The id, which is implied when it is the op's ordinal, has a place of its own:
        before the first `dmlc.` attribute that follows it in the alphabet."""
        attrs, id_ = op.attrs, op.attrs.get("dmlc.id")
        if self.inside_function and op.name not in TERMINATORS:
            if not self.generic and id_ == str(self.names.ordinal):
                id_ = None
            self.names.ordinal += 1
        parts: list[str] = []
        for key, value in attrs.items():
            if key == "dmlc.id":
                continue
            if id_ is not None and key > "dmlc.id" and key.startswith("dmlc."):
                parts.append(f"dmlc.id = {attribute_text(id_)}")
                id_ = None
            parts.append(f"{bare_or_quoted(key)} = {attribute_text(value)}")
        if id_ is not None:
            parts.append(f"dmlc.id = {attribute_text(id_)}")
        return "{" + ", ".join(parts) + "}" if parts else ""

    # ------------------------------------------------------------ regions

    def _regions(self, op: Op, head: str, indent: str, close: str) -> None:
        """The op's regions after `head`; the last line is left for the caller to finish."""
        self.lines.append(head)
        for i, region in enumerate(op.regions):
            if i:
                self.lines[-1] += ", {"
            self._region(region, indent)
            self.lines.append(indent + "}")
        self.lines[-1] = indent + close

    def _region(self, region: Region, indent: str) -> None:
        for block in region.blocks:
            label = self._label(block, len(region.blocks) > 1)
            if label:
                self.lines.append(indent + label)
            self._body(block, indent + INDENT)

    def _label(self, block: Block, always: bool, of_function: bool = False) -> str:
        number = self.names.blocks
        self.names.blocks += 1
        if not block.args and not always:
            return ""
        args = ", ".join(f"{self.names.argument(a, of_function)}: {type_text(a.type)}" for a in block.args)
        return f"^bb{number}({args}):" if args else f"^bb{number}:"

    def _body(self, block: Block, indent: str) -> None:
        for op in block:
            self.operation(op, indent)

    # ------------------------------------------------------------ module, function, return

    def _module(self, op: Op, indent: str) -> None:
        name = op.attrs.get("sym_name")
        attrs = {k: v for k, v in op.attrs.items() if k != "sym_name"}
        head = f"{indent}builtin.module"
        head += f" {symbol_text(name)}" if name else ""
        head += f" attributes {dictionary_text(attrs)}" if attrs else ""
        self.lines.append(head + " {")
        for block in op.region.blocks:
            self._body(block, indent + INDENT)
        self.lines.append(f"{indent}}}{_loc_text(op.loc)}")

    def _function(self, op: Op, indent: str) -> None:
        block, results, result_attrs = _parts(op)
        self.names.blocks = 1
        args = ", ".join(f"{self.names.argument(a, True)}: {type_text(a.type)}{_suffix(a.attrs)}" for a in block.args)
        head = f"{indent}func.func {_visibility(op)}{symbol_text(op.attrs['sym_name'])}({args})"
        texts = [type_text(v.type) + _suffix(a) for v, a in zip(results, result_attrs)]
        if len(texts) == 1 and not result_attrs[0]:
            head += f" -> {texts[0]}"
        elif texts:
            head += f" -> ({', '.join(texts)})"
        attrs = {k: v for k, v in op.attrs.items() if k not in _FUNCTION_PROPERTIES}
        head += f" attributes {dictionary_text(attrs)}" if attrs else ""
        self.lines.append(head + " {")
        self._body(block, indent + INDENT)
        self.lines.append(f"{indent}}}{_loc_text(op.loc)}")

    def _generic_function(self, op: Op, indent: str) -> None:
        block, results, result_attrs = _parts(op)
        signature = signature_text([a.type for a in block.args], [v.type for v in results])
        text = f"sym_name = {quote(op.attrs['sym_name'])}, function_type = {signature}"
        if "sym_visibility" in op.attrs:
            text += f", sym_visibility = {quote(op.attrs['sym_visibility'])}"
        for key, each in (("arg_attrs", [a.attrs for a in block.args]), ("res_attrs", result_attrs)):
            if any(each):
                text += f", {key} = [{', '.join(map(dictionary_text, each))}]"
        self.lines.append(f'{indent}"{op.name}"() <{{{text}}}> ({{')
        self.lines.append(indent + self._label(block, True, of_function=True))
        self._body(block, indent + INDENT)
        attrs = {k: v for k, v in op.attrs.items() if k not in _FUNCTION_PROPERTIES}
        suffix = f" {dictionary_text(attrs)}" if attrs else ""
        self.lines.append(f"{indent}}}){suffix} : () -> (){_loc_text(op.loc)}")

    def _return(self, op: Op, indent: str) -> None:
        operands = ", ".join(map(self.names.use, op._operands))
        types = ", ".join(type_text(v.type) for v in op._operands)
        attrs = self._attributes(op)
        text = f"{indent}func.return" + (f" {attrs}" if attrs else "") + (f" {operands}" if operands else "")
        self.lines.append(text + (f" : {types}" if types else "") + _loc_text(op.loc))


_FUNCTION_PROPERTIES = ("sym_name", "sym_visibility", "res_attrs")

_CUSTOM = {
    "builtin.module": Printer._module,
    "func.func": lambda printer, op, indent: printer._scoped(op, indent, Printer._function),
    "func.return": Printer._return,
}


def _parts(op: Op) -> tuple[Block, tuple[Value, ...], list[Mapping[str, Any]]]:
    """Body, returned values and one dictionary a returned value; a body without return, as under construction, returns nothing."""
    block = op.region.block
    last = block.last
    results = last.operands if last is not None and last.name == "func.return" else ()
    attrs = list(op.attrs.get("res_attrs", ()))[: len(results)]
    return block, results, attrs + [{}] * (len(results) - len(attrs))


def _visibility(op: Op) -> str:
    visibility = op.attrs.get("sym_visibility")
    return f"{visibility} " if visibility else ""


def _suffix(attrs: Mapping[str, Any]) -> str:
    return f" {dictionary_text(attrs)}" if attrs else ""


def _prints_empty(region: Region) -> bool:
    return len(region.blocks) <= 1 and all(not b.args and b.first is None for b in region.blocks)


def _loc_text(loc: Loc) -> str:
    if loc.text or not loc.known:
        return ""
    return f" loc({quote(loc.name)}:{loc.line}:{loc.column})" if loc.line else f" loc({quote(loc.name)})"


def print_module(module: Module, generic: bool = False) -> str:
    """The module's text, ending in a newline."""
    printer = Printer(generic)
    printer.operation(module.op, "")
    return "\n".join(printer.lines) + "\n"


def print_op(op: Op, generic: bool = False) -> str:
    """One op with its regions, named as in its function's text."""
    printer = Printer(generic)
    function = op.function
    if function is None or function is op:
        printer.operation(op, "")
        return "\n".join(printer.lines)
    printer.inside_function = True
    _name_all(printer, function, op)
    printer.operation(op, "")
    return "\n".join(printer.lines)


def _name_all(printer: Printer, function: Op, stop: Op) -> None:
    """Give names in print order to all that stands before `stop`."""
    printer.names.blocks = 1
    for arg in Function(function).args:
        printer.names.argument(arg, True)
    for op in Function(function).ops():
        if op is stop:
            return
        printer.names.ordinal += op.name not in TERMINATORS
        if op.results:
            printer.names.results(op)
        for region in op.regions:
            for block in region.blocks:
                printer.names.blocks += 1
                for arg in block.args:
                    printer.names.argument(arg, False)
