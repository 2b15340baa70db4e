"""The table from op names to op definitions. `dmlc.ops` fills it; the builder, parser and verifier ask it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dmlc.ir.types import Type


class Definition(Protocol):
    """What the IR itself needs to know of an op definition (`dmlc.ops.base.OpDef` is the full class)."""

    name: str

    @classmethod
    def result_types(cls, operand_types: Sequence[Type], attrs: dict[str, Any]) -> list[Type] | None:
        """Types of the results, or None when they are given rather than inferred. Raises `DmlcError`."""
        ...

    @classmethod
    def verify(cls, op: Any) -> None:
        """Raise `DmlcError` when the op is malformed."""
        ...


DEFINITIONS: dict[str, type[Definition]] = {}


def register(definition: type[Definition]) -> None:
    known = DEFINITIONS.get(definition.name)
    if known is not None and known.__qualname__ != definition.__qualname__:
        raise ValueError(f"op {definition.name} is defined twice: {known} and {definition}")
    DEFINITIONS[definition.name] = definition


def lookup(name: str) -> Any:
    """The definition of op `name`, or None for an unregistered op."""
    return DEFINITIONS.get(name)
