"""Reading operations and regions, in the short or the generic form, by one routine for every operation.

    %a, %b = dmlc.topk %x {k = 2 : i64} : (tensor<8xf32>) -> (tensor<2xf32>, tensor<2xi64>) loc("head")
    %a, %b = "dmlc.topk"(%x) {k = 2 : i64} : (tensor<8xf32>) -> (tensor<2xf32>, tensor<2xi64>) loc("head")

Regions follow the attributes in the short form and stand in parentheses before them in the generic one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from dmlc.ir.attribute_parser import AttributeParser
from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, Op, Region, Value
from dmlc.ir.lexer import Source
from dmlc.ir.location import Loc
from dmlc.ir.suggest import did_you_mean
from dmlc.ir.types import FunctionType, Type

Uses = list[tuple[Value, int]]  # operands with the tokens that name them
MAX_NESTING = 60
SHORT_NAMES = {"module": "builtin.module", "func": "func.func", "return": "func.return"}


class OperationParser(AttributeParser):
    """Reads operations. `values` maps the names visible here; a region's own names leave it when the region ends."""

    custom: ClassVar[dict[str, Callable[[Any, int], Op]]] = {}  # ops with a short form of their own

    def __init__(self, source: Source):
        super().__init__(source)
        self.values: dict[str, list[Value]] = {}
        self.defined_at: dict[str, int] = {}
        self.ordinal: int | None = None  # of the next op in the current function
        self.nesting = 0

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
        custom = None if generic else self.custom.get(name)
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
        self.fail(f"{self.texts[index]} is a {value.type}, not a {type_}", index)

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
        if self.nesting > MAX_NESTING:
            self.fail(f"regions are nested more than {MAX_NESTING} deep")
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

    def _enter_function(self) -> tuple:
        """Nothing outside a function is visible inside."""
        saved = self.values, self.defined_at, self.ordinal
        self.values, self.defined_at, self.ordinal = {}, {}, 0
        return saved

    def _leave_function(self, saved: tuple) -> None:
        self.values, self.defined_at, self.ordinal = saved

    def _as_function(self, op: Op, name_at: int) -> Op:
        """What stands in the properties of a generic `func.func` goes where the IR keeps it."""
        return op
