"""What each operator of a model became during import: kept while importing, read by `dmlc compile --explain-import`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dmlc.ir.core import Op


@dataclass(eq=False)
class Entry:
    """One node of the model. `ops` are those it became itself, `inner` the nodes of its body that stand in its place; `problem` says why it is not
    supported, `waits` that it reads the result of such a node."""

    operator: str
    place: str
    ops: list[Op] = field(default_factory=list)
    inner: list[Entry] = field(default_factory=list)
    problem: str = ""
    waits: bool = False

    def walk(self) -> Iterator[Entry]:
        yield self
        for entry in self.inner:
            yield from entry.walk()


class Trace:
    """The nodes of an import in the order they were met, those of bodies inside the node that they belong to."""

    def __init__(self) -> None:
        self.root = Entry("", "")
        self._open = [self.root]

    @contextmanager
    def node(self, operator: str, place: str) -> Iterator[Entry]:
        """While one node is imported."""
        entry = Entry(operator, place)
        self._open[-1].inner.append(entry)
        self._open.append(entry)
        try:
            yield entry
        finally:
            self._open.pop()

    def made(self, op: Op) -> Op:
        """An op that the node at hand became."""
        self._open[-1].ops.append(op)
        return op

    @property
    def entries(self) -> list[Entry]:
        return self.root.inner
