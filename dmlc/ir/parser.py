"""Reading a module from its text, in the short or the generic form: one routine for every operation.

    %a, %b = dmlc.topk %x {k = 2 : i64} : (tensor<8xf32>) -> (tensor<2xf32>, tensor<2xi64>) loc("head")
    %a, %b = "dmlc.topk"(%x) {k = 2 : i64} : (tensor<8xf32>) -> (tensor<2xf32>, tensor<2xi64>) loc("head")

Regions follow the attributes in the short form and stand in parentheses before them in the generic one. Only `builtin.module`,
`func.func` and `func.return` have a syntax of their own, MLIR's.
"""

from __future__ import annotations

from dmlc.ir.attribute_parser import AttributeParser
from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, Module, Op, Region, Value
from dmlc.ir.lexer import Source, split_input
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.suggest import did_you_mean
from dmlc.ir.types import FunctionType, Type

__all__ = ["annotate", "parse_attribute", "parse_module", "parse_type", "split_input"]

Uses = list[tuple[Value, int]]  # operands with the tokens that name them


class Parser(AttributeParser):
    """Reads operations. `values` maps the names visible here; a region's own names leave it when the region ends."""

    def __init__(self, source: Source):
        super().__init__(source)
        self.values: dict[str, list[Value]] = {}
        self.defined_at: dict[str, int] = {}
        self.ordinal: int | None = None  # of the next op in the current function
        self.nesting = 0

    # ------------------------------------------------------------ module

    def module(self) -> Module:
        """A `builtin.module`, or the operations of one."""
        body = Block()
        while self.kinds[self.at] != "end":
            self.operation(body)
        first = body.first
        if first is not None and first.name == "builtin.module" and first is body.last:
            return Module(first.remove())
        return Module(Op("builtin.module", regions=[Region([body])]))

    # ------------------------------------------------------------ operations

    def operation(self, block: Block) -> None:
        """One operation in either form, appended to the block."""
        start = self.at
        names = self._result_names()
        name_at = self.at
        generic = self.kinds[self.at] == "string"
        if not generic and self.kinds[self.at] != "ident":
            self.fail(f"expected an operation, found {self.shown()}")
        name = self.word("an operation's name")
        if not generic and "." not in name:
            self.fail(f"'{name}' is not an operation's name{did_you_mean(name, (), SHORT_NAMES)}", name_at)
        custom = None if generic else CUSTOM.get(name)
        if custom is not None and names:
            self.fail(f"'{name}' has no results", start)
        op = custom(self, name_at) if custom is not None else self._plain(name, name_at, generic, names)
        op.loc = self.optional_loc() or self._text_loc(name_at)
        block.append(op)
        self._bind(names, op)

    def _text_loc(self, index: int) -> Loc:
        return self.source.loc(self.tokens.starts[index])

    def _result_names(self) -> list[tuple[str, int, int]]:
        """(name, number of values, token) of each `%a` or `%a:2` before `=`."""
        names = []
        while self.kinds[self.at] == "percent":
            text, index, count = self.texts[self.at], self.at, 1
            self.at += 1
            if self.accept(":"):
                count = self.integer("a number of results")
                if not 0 < count < 10_000:
                    self.fail(f"{count} is not a number of results", self.at - 1)
            names.append((text, count, index))
            if not self.accept(","):
                self.expect("=", "after the results")
                break
        return names

    def _plain(self, name: str, name_at: int, generic: bool, names: list) -> Op:
        """An operation of the general syntax, after its name."""
        function_around = self._enter_function() if name == "func.func" else None
        ordinal = self._count(name)
        uses = self._operands(generic)
        attrs: dict = {}
        if generic:
            attrs |= self._properties()
            regions = self._regions(")") if self.texts[self.at] == "(" and self.texts[self.at + 1] == "{" else []
            attrs |= self.dictionary() if self.texts[self.at] == "{" else {}
        else:
            attrs |= self.dictionary() if self._at_dictionary() else {}
            regions = self._regions("") if self.texts[self.at] == "{" else []
        self.expect(":", "before the types")
        types_at = self.at
        signature = self.function_type()
        if function_around is not None:
            self._leave_function(function_around)
        self._check_types(uses, signature, types_at)
        expected = sum(count for _, count, _ in names)
        if names and expected != len(signature.results):
            self.fail(f"'{name}' has {len(signature.results)} results but {expected} names", names[0][2])
        if ordinal is not None and "dmlc.id" not in attrs:
            attrs["dmlc.id"] = str(ordinal)
        op = Op(name, [v for v, _ in uses], signature.results, attrs, regions)
        if name == "func.func":
            return self._as_function(op, name_at)
        for arg in (a for r in regions for b in r.blocks for a in b.args):
            arg.name = ""  # only a function's arguments are known by name
        return op

    def _count(self, name: str) -> int | None:
        """The op's ordinal in its function; terminators have none, nor does what stands outside functions."""
        if self.ordinal is None or name in TERMINATORS or name == "func.func":
            return None
        self.ordinal += 1
        return self.ordinal - 1

    def _operands(self, generic: bool) -> Uses:
        if generic:
            self.expect("(", "before the operands")
            return self.list_of(self._operand, ")", "the operands")
        uses: Uses = []
        while self.kinds[self.at] == "percent":
            uses.append(self._operand())
            if not self.accept(","):
                break
        return uses

    def _operand(self) -> tuple[Value, int]:
        index = self.at
        text = self.take("percent", "an operand")
        name, _, number = text.partition("#")
        values = self.values.get(name)
        if values is None:
            self.fail(f"{name} is not defined before its use{did_you_mean(name, self.values)}", index)
        n = int(number[:9]) if number else 0
        if n >= len(values):
            self.fail(f"{name} has {len(values)} values, there is no #{number}", index)
        return values[n], index

    def _properties(self) -> dict:
        if not (self.texts[self.at] == "<" and self.texts[self.at + 1] == "{"):
            return {}
        self.at += 1
        attrs = self.dictionary()
        self.expect(">", "after properties")
        return attrs

    def _at_dictionary(self) -> bool:
        """Whether the brace here opens attributes, not a region: `{}`, `{key =`, `{key,` or `{key}`."""
        if self.texts[self.at] != "{":
            return False
        if self.kinds[self.at + 1] not in ("ident", "string"):
            return self.texts[self.at + 1] == "}"
        return self.texts[self.at + 2] in ("=", ",", "}")

    def _check_types(self, uses: Uses, signature: FunctionType, types_at: int) -> None:
        if len(uses) != len(signature.inputs):
            self.fail(f"{len(uses)} operands but {len(signature.inputs)} operand types", types_at)
        for (value, index), type_ in zip(uses, signature.inputs):
            if value.type is not type_ and value.type != type_:
                self._type_mismatch(value, type_, index)

    def _type_mismatch(self, value: Value, type_: Type, index: int) -> None:
        from dmlc.ir.attribute_printer import type_text

        self.fail(f"{self.texts[index]} is a {type_text(value.type)}, not a {type_text(type_)}", index)

    def _bind(self, names: list[tuple[str, int, int]], op: Op) -> None:
        at = 0
        for name, count, index in names:
            self._define(name, list(op.results[at : at + count]), index)
            at += count

    def _define(self, name: str, values: list[Value], index: int) -> None:
        if "#" in name:
            self.fail(f"'{name}' cannot be defined; a result's name has no '#'", index)
        if name in self.values:
            line, _ = self.source.position(self.tokens.starts[self.defined_at[name]])
            self.fail(f"{name} is already defined, on line {line}", index)
        self.values[name] = values
        self.defined_at[name] = index

    # ------------------------------------------------------------ regions

    def _regions(self, close: str) -> list[Region]:
        """Regions separated by commas, in parentheses when `close` is `)`."""
        if close:
            self.expect("(", "before regions")
        regions = [self.region()]
        while self.accept(","):
            regions.append(self.region())
        if close:
            self.expect(close, "after regions")
        return regions

    def region(self, block: Block | None = None) -> Region:
        """`{ ^bb0(%i: type): ... }`. With `block`, the first block's arguments are already there."""
        self.expect("{", "before a region")
        self.nesting += 1
        if self.nesting > 60:
            self.fail("regions are nested more than 60 deep")
        outer = len(self.values)
        region = Region()
        region.add_block(self._block(block if block is not None else Block()))
        while self.kinds[self.at] == "caret":
            region.add_block(self._block(Block()))
        self.expect("}", "or an operation in a region")
        while len(self.values) > outer:
            self.values.popitem()
        self.nesting -= 1
        return region

    def _block(self, block: Block) -> Block:
        if self.kinds[self.at] == "caret" and not block.args:
            self.at += 1
            if self.accept("("):
                self.list_of(lambda: self._block_argument(block), ")", "block arguments")
            self.expect(":", "after a block's label")
        while self.kinds[self.at] in ("percent", "ident", "string"):
            self.operation(block)
        return block

    def _block_argument(self, block: Block) -> None:
        index = self.at
        name = self.take("percent", "a block argument")
        self.expect(":", "after a block argument")
        arg = block.add_arg(self.type(), name[1:])
        self._define(name, [arg], index)

    # ------------------------------------------------------------ functions

    def _enter_function(self) -> tuple:
        """Nothing outside a function is visible inside."""
        saved = self.values, self.defined_at, self.ordinal
        self.values, self.defined_at, self.ordinal = {}, {}, 0
        return saved

    def _leave_function(self, saved: tuple) -> None:
        self.values, self.defined_at, self.ordinal = saved

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
            from dmlc.ir.attribute_printer import type_text

            what = [", ".join(map(type_text, ts)) or "nothing" for ts in (declared, returned)]
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
        """`func.return %a, %b : type, type` after its name."""
        uses = self._operands(generic=False)
        attrs = self.dictionary() if self._at_dictionary() else {}
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


CUSTOM = {"builtin.module": Parser.nested_module, "func.func": Parser.function, "func.return": Parser.return_}
SHORT_NAMES = {"module": "builtin.module", "func": "func.func", "return": "func.return"}


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


def parse_attribute(text: str):
    """One attribute value (or type)."""
    return _whole(text, AttributeParser.attribute)


def parse_type(text: str) -> Type:
    return _whole(text, AttributeParser.type)


def _whole(text: str, read):
    parser = AttributeParser(Source(text))
    value = read(parser)
    if parser.kinds[parser.at] != "end":
        parser.fail(f"unexpected {parser.shown()}")
    return value
