"""A YAML file as items that know their place, so that every error names file, line and column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from dmlc.cluster.quantities import Quantity
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.suggest import did_you_mean

MAPPING, SEQUENCE = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"


class Item:
    """A node of the file, `name` the key it stands under. The readers raise `DmlcError` at its place."""

    def __init__(self, node: Any, file: str, lines: list[str], name: str):
        self.node, self.file, self.lines, self.name = node, file, lines, name

    def fail(self, message: str, notes: tuple[str, ...] = ()) -> NoReturn:
        begin, end = self.node.start_mark, self.node.end_mark
        line = self.lines[begin.line] if begin.line < len(self.lines) else ""
        last = end.column if end.line == begin.line else len(line)
        raise DmlcError(message, Loc(self.file, begin.line + 1, begin.column + 1), notes, line, (begin.column + 1, max(last, begin.column + 1) + 1))

    def _inner(self, node: Any, name: str) -> Item:
        return Item(node, self.file, self.lines, name)

    # -------------------------------------------------- structure

    def entries(self) -> dict[str, tuple[Item, Item]]:
        """Key -> (the key's item, the value's)."""
        if self.node.tag != MAPPING:
            self.fail(f"{self.name} is a mapping of keys to values, not {self._shape()}")
        found: dict[str, tuple[Item, Item]] = {}
        for key, value in self.node.value:
            name = str(key.value)
            if name in found:
                self._inner(key, name).fail(f"'{name}' is given twice")
            found[name] = (self._inner(key, name), self._inner(value, name))
        return found

    def fields(self, known: Iterable[str], needed: Iterable[str] = ()) -> dict[str, Item]:
        """The values of a mapping that has no other keys than the known ones."""
        known = tuple(known)
        entries = self.entries()
        for name, (key, _) in entries.items():
            if name not in known:
                key.fail(f"there is no key '{name}' in {self.name}{did_you_mean(name, known)}", (f"known: {', '.join(known)}",))
        for name in needed:
            if name not in entries:
                self.fail(f"{self.name} needs '{name}'")
        return {name: value for name, (_, value) in entries.items()}

    def items(self) -> list[Item]:
        """The elements of a list; a single value is a list of one."""
        if self.node.tag != SEQUENCE:
            return [self]
        return [self._inner(node, f"{self.name}[{i}]") for i, node in enumerate(self.node.value)]

    @property
    def is_mapping(self) -> bool:
        return self.node.tag == MAPPING

    @property
    def is_sequence(self) -> bool:
        return self.node.tag == SEQUENCE

    def _shape(self) -> str:
        return "a mapping" if self.is_mapping else "a list" if self.is_sequence else f"'{self.node.value}'"

    # -------------------------------------------------- values

    def text(self) -> str:
        if self.is_mapping or self.is_sequence:
            self.fail(f"{self.name} is one value, not {self._shape()}")
        return str(self.node.value)

    def choice(self, known: Iterable[str]) -> str:
        known, text = tuple(known), self.text()
        if text not in known:
            self.fail(f"{self.name} is one of {', '.join(known)}, not '{text}'{did_you_mean(text, known)}")
        return text

    def integer(self, least: int = 0) -> int:
        try:
            found = int(self.text())
        except ValueError:
            found = least - 1
        if found < least:
            self.fail(f"{self.name} is a whole number of at least {least}, not '{self.text()}'")
        return found

    def number(self, least: float = 0.0) -> float:
        import math

        try:
            found = float(self.text())
        except ValueError:
            found = math.nan
        if not least <= found < math.inf:
            self.fail(f"{self.name} is a number of at least {least:g}, not '{self.text()}'")
        return found

    def percent(self) -> int:
        """`85` or `85 %`, from 1 to 100."""
        text = self.text().removesuffix("%").strip()
        if not text.isdigit() or not 1 <= int(text) <= 100:
            self.fail(f"{self.name} is a percentage from 1 to 100, not '{self.text()}'")
        return int(text)

    def amount(self, quantity: Quantity, least: int = 1) -> int:
        try:
            found = quantity.read(self.text())
        except ValueError as e:
            self.fail(f"{self.name}: {e}")
        if found < least:
            self.fail(f"{self.name} must be more than 0")
        return found


def read_yaml(path: str, text: str) -> Item:
    """The file's one mapping. Raises `DmlcError` at the place that YAML cannot be read from."""
    import yaml

    lines = text.splitlines()
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        loc = Loc(path, mark.line + 1, mark.column + 1) if mark is not None else Loc(path)
        line = lines[mark.line] if mark is not None and mark.line < len(lines) else None
        raise DmlcError(
            f"not YAML: {e.problem or e.context}", loc, (), line, (mark.column + 1, mark.column + 2) if mark is not None and line is not None else None
        ) from None
    except yaml.YAMLError as e:
        raise DmlcError(f"not YAML: {str(e).splitlines()[0]}", Loc(path)) from None
    if node is None:
        raise DmlcError("the file is empty", Loc(path))
    return Item(node, path, lines, "the file")
