"""Reading a module from its text. Only `builtin.module`, `func.func` and `func.return` have a syntax of their own, MLIR's."""

from __future__ import annotations

from typing import Any

from dmlc.ir.attribute_parser import AttributeParser
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Block, Module, Op, Region
from dmlc.ir.lexer import Source, split_input
from dmlc.ir.location import DmlcError
from dmlc.ir.operation_parser import OperationParser
from dmlc.ir.types import FunctionType, Type

__all__ = ["annotate", "parse_attribute", "parse_module", "parse_type", "split_input"]


class Parser(OperationParser):
    def module(self) -> Module:
        """A `builtin.module`, or the operations of one."""
        body = Block()
        while self.kinds[self.at] != "end":
            self.operation(body)
        first = body.first
        if first is not None and first.name == "builtin.module" and first is body.last:
            return Module(first.remove())
        return Module(Op("builtin.module", regions=[Region([body])]))

    def function(self, name_at: int) -> Op:
        """`func.func private @name(%x: type {attrs}) -> (type {attrs}) attributes {...} {body}` after its name."""
        attrs: dict = {}
        if self.texts[self.at] in ("private", "public", "nested"):
            attrs["sym_visibility"] = self.texts[self.at]
            self.at += 1
        attrs = {"sym_name": self.symbol_name("a function's name, such as @main"), **attrs}
        saved = self._enter_function()
        body = Block()
        self.expect("(", "before a function's arguments")
        self.list_of(lambda: self._function_argument(body), ")", "a function's arguments")
        results = self._function_results()
        if self.accept("attributes"):
            attrs |= self.dictionary()
        if any(a for _, a in results):
            attrs["res_attrs"] = [a for _, a in results]
        region = self.region(body)
        self._leave_function(saved)
        op = Op("func.func", attrs=attrs, regions=[region])
        self._check_return(op, tuple(t for t, _ in results), name_at)
        return op

    def _function_argument(self, body: Block) -> None:
        index = self.at
        name = self.take("percent", "an argument")
        self.expect(":", "after an argument")
        arg = body.add_arg(self.type(), name[1:])
        arg.attrs = self.dictionary() if self.texts[self.at] == "{" else {}
        self._define(name, [arg], index)

    def _function_results(self) -> list[tuple[Type, dict]]:
        if not self.accept("->"):
            return []
        if not self.accept("("):
            return [(self.type(), {})]
        return self.list_of(lambda: (self.type(), self.dictionary() if self.texts[self.at] == "{" else {}), ")", "a function's results")

    def _check_return(self, op: Op, declared: tuple[Type, ...], name_at: int) -> None:
        """The declared result types are those of `func.return`, which alone the IR keeps."""
        last = op.region.blocks[-1].last
        if last is None or last.name != "func.return":
            self.fail(f"the body of @{op.attrs['sym_name']} does not end in func.return", name_at)
        returned = tuple(v.type for v in last.operands)
        if returned != declared:
            what = [", ".join(map(str, ts)) or "nothing" for ts in (declared, returned)]
            raise annotate(DmlcError(f"@{op.attrs['sym_name']} is declared to return {what[0]} but returns {what[1]}", last.loc), self.source)

    def _as_function(self, op: Op, name_at: int) -> Op:
        """A generic `func.func`: what stands in properties goes where the IR keeps it."""
        declared = op.attrs.pop("function_type", None)
        arg_attrs, res_attrs = op.attrs.pop("arg_attrs", ()), op.attrs.pop("res_attrs", ())
        if not isinstance(declared, FunctionType) or not isinstance(op.attrs.get("sym_name"), str) or len(op.regions) != 1:
            self.fail("func.func needs sym_name, function_type and one region", name_at)
        args = op.region.blocks[0].args
        if declared.inputs != tuple(a.type for a in args):
            self.fail("the argument types of function_type are not those of the body", name_at)
        for given, limit in ((arg_attrs, len(args)), (res_attrs, len(declared.results))):
            if not isinstance(given, tuple) or len(given) not in (0, limit) or not all(isinstance(a, AttrDict) for a in given):
                self.fail("arg_attrs and res_attrs are lists of one dictionary an argument or result", name_at)
        for arg, given in zip(args, arg_attrs):
            arg.attrs = dict(given)
        if any(res_attrs):
            op.attrs["res_attrs"] = [dict(a) for a in res_attrs]
        self._check_return(op, declared.results, name_at)
        return op

    def return_(self, name_at: int) -> Op:
        """`func.return {attributes} %a, %b : type, type` after its name."""
        attrs = self.dictionary() if self._at_dictionary() else {}
        uses = self._operands(generic=False)
        types: list[Type] = []
        types_at = self.at
        if self.accept(":"):
            types_at = self.at
            types.append(self.type())
            while self.accept(","):
                types.append(self.type())
        self._check_types(uses, FunctionType(tuple(types), ()), types_at)
        return Op("func.return", [v for v, _ in uses], attrs=attrs)

    def nested_module(self, name_at: int) -> Op:
        """`builtin.module @name attributes {...} {body}` after its name."""
        attrs: dict = {}
        if self.kinds[self.at] == "at":
            attrs["sym_name"] = self.symbol_name("a name")
        if self.accept("attributes"):
            attrs |= self.dictionary()
        return Op("builtin.module", attrs=attrs, regions=[self.region()])


Parser.custom = {"builtin.module": Parser.nested_module, "func.func": Parser.function, "func.return": Parser.return_}


def annotate(error: DmlcError, source: Source) -> DmlcError:
    """The error with its source line and carets, when it stands in this text and has none yet."""
    if error.source_line is None and error.loc.text and error.loc.name == source.filename and error.loc.line:
        error.source_line = source.line(error.loc.line)
        if error.source_line is not None:
            column = min(error.loc.column, len(error.source_line) + 1)
            rest = error.source_line[column - 1 :]
            error.span = (column, column + max(1, len(rest.split(None, 1)[0].rstrip("(:")) if rest.strip() else 1))
    return error


def parse_module(text: str, filename: str = "<text>", first_line: int = 1) -> Module:
    """The module a text describes. Raises `DmlcError` with file, line, column and carets. `first_line` serves pieces of `split_input`."""
    return Parser(Source(text, filename, first_line)).module()


def parse_attribute(text: str) -> Any:
    """One attribute value (or type)."""
    return _whole(text, AttributeParser.attribute)


def parse_type(text: str) -> Type:
    return _whole(text, AttributeParser.type)


def _whole(text: str, read) -> Any:
    parser = AttributeParser(Source(text))
    value = read(parser)
    if parser.kinds[parser.at] != "end":
        parser.fail(f"unexpected {parser.shown()}")
    return value
