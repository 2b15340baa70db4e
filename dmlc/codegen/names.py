"""Python names for the values of a program."""

from __future__ import annotations

import builtins
import keyword
import re

from dmlc.ir.core import BlockArgument, Op, Value

# what model.py itself says, beside the prelude's names
RESERVED = frozenset(
    {*keyword.kwlist, *dir(builtins), "torch", "F", "math", "kernels", "comm", "device", "inputs", "weights", "self", "mesh", "Program", "Collectives"}
)


class Names:
    """Unique identifiers, derived from the model's names (or the op's id), given in program order; none is in `taken`."""

    def __init__(self, taken: frozenset[str] = frozenset()):
        self._names: dict[Value, str] = {}
        self._taken = set(RESERVED | taken)

    def __getitem__(self, value: Value) -> str:
        return self._names[value]

    def define(self, value: Value) -> str:
        """A fresh name for a value that has none yet."""
        assert value not in self._names
        name = stem = self._stem(value)
        n = 1
        while name in self._taken:
            name, n = f"{stem}_{n}", n + 1
        self._taken.add(name)
        self._names[value] = name
        return name

    def alias(self, value: Value, name: str) -> None:
        self._names[value] = name

    @staticmethod
    def _stem(value: Value) -> str:
        if isinstance(value, BlockArgument):
            return identifier(value.name or f"arg{value.index}")
        op: Op = value.op  # type: ignore[assignment]
        base = op.attrs.get("dmlc.name") or f"v{op.id or op.name}"
        stem = identifier(str(base))
        return f"{stem}_{value.index}" if len(op.results) > 1 else stem  # type: ignore[attr-defined]


def identifier(text: str) -> str:
    """Letters, digits and underscores only, not starting with a digit."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "v"
    return f"v{name}" if name[0].isdigit() else name
