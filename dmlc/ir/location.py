"""Where things come from, and errors that name the place."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Loc:
    """A place in the user's model: a file position (`line` > 0), a node's name, or both unknown.

    `text` marks the place in an IR text file that an op was read from without a `loc(...)` of its own;
    such locations serve messages and are neither printed nor compared.
    """

    name: str = ""
    line: int = 0
    column: int = 0
    text: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        if self.line:
            return f"{self.name}:{self.line}:{self.column}"
        return self.name or "unknown location"

    @property
    def known(self) -> bool:
        return bool(self.name or self.line)


UNKNOWN = Loc()


class DmlcError(Exception):
    """The user's input cannot be compiled: one sentence, a place, and notes. The command line prints it without a traceback.

    `source_line` and `span` (first and one-past-last column, 1-based) draw the line with carets below it.
    """

    def __init__(self, message: str, loc: Loc = UNKNOWN, notes: tuple[str, ...] = (), source_line: str | None = None, span: tuple[int, int] | None = None):
        super().__init__(message)
        self.message, self.loc, self.notes, self.source_line, self.span = message, loc, notes, source_line, span

    def told(self, message: str, loc: Loc, notes: tuple[str, ...]) -> DmlcError:
        """The same error in other words: its class and what that holds are kept."""
        new = copy.copy(self)
        new.args, new.message, new.loc, new.notes = (message,), message, loc, notes
        return new

    def __str__(self) -> str:
        head = f"{self.loc}: error: {self.message}" if self.loc.known else f"error: {self.message}"
        lines = [head]
        if self.source_line is not None:
            lines.append(self.source_line)
            if self.span:
                pad = "".join("\t" if c == "\t" else " " for c in self.source_line[: self.span[0] - 1])
                lines.append(pad + "^" * max(1, self.span[1] - self.span[0]))
        lines += [f"note: {n}" for n in self.notes]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Remark:
    """What a pass wants the user to know: declined, relaxed, replicated, and why."""

    pass_name: str
    text: str
    op_id: str = ""
    loc: Loc = UNKNOWN

    def __str__(self) -> str:
        where = f"{self.loc}: " if self.loc.known else ""
        which = f" [{self.op_id}]" if self.op_id else ""
        return f"{where}remark: {self.pass_name}: {self.text}{which}"
