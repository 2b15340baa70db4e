"""Counts what one rank of a training program holds for parameters, gradients and optimizer state, from the text of `program.mlir` alone.

    python -m dmlc.tools.count_state OUT/program.mlir

It is a check on dmlc, so it shares no code with it beside the reader of `count_shares`. Parameters and optimizer state are the arguments
with these roles, in their local shapes. Gradients are what the loop over microbatches adds up and the update reads; without such a loop,
the tensors that the update reads and the forward and backward pass made. Standard library only.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dmlc.tools.count_shares import BYTES, Line, Shape, Text, read

UPDATE = 'dmlc.phase = "update"'


@dataclass(frozen=True)
class State:
    """Bytes of one rank."""

    parameters: int
    gradients: int
    optimizer_state: int


def count(text: str) -> State:
    """Read a per-rank training program. Raises ValueError when it has no update."""
    program = read(text)
    roles = {role: sum(a.bytes for a in program.arguments if a.role == role) for role in ("param", "state")}
    return State(roles["param"], sum(_bytes(shape, dtype) for shape, dtype in gradients(program)), roles["state"])


def gradients(program: Text) -> list[tuple[Shape, str]]:
    """The tensors in which a rank keeps its gradients until the update."""
    makers = {name: line for line in program.main for name in line.results}
    types = _types(program.main)
    read_by_update = {name: None for line in program.main if UPDATE in line.text for name in line.operands}
    crossing = [n for n in read_by_update if n in makers and UPDATE not in makers[n].text and n in types and types[n][0]]
    if not any(UPDATE in line.text for line in program.main):
        raise ValueError("the program updates nothing")
    added_up = [n for n in _slice(crossing, makers) if makers[n].op == "dmlc.microbatch" and types[n][0]]
    return [types[n] for n in added_up or crossing]


def _types(lines: Iterable[Line]) -> dict[str, tuple[Shape, str]]:
    """Value -> its shape and dtype. A loop's line ends in its opening brace: its results are typed where they are read."""
    found: dict[str, tuple[Shape, str]] = {}
    for line in lines:
        found.update(zip(line.operands, line.given) if len(line.operands) == len(line.given) else ())
        found.update(zip(line.results, line.made) if len(line.results) == len(line.made) else ())
    return found


def _slice(names: Iterable[str], makers: dict[str, Line]) -> list[str]:
    """Everything that the values are made from, in order of discovery. A loop is not looked into."""
    seen = dict.fromkeys(names)
    todo = list(seen)
    while todo:
        line = makers[todo.pop()]
        if line.op == "dmlc.microbatch":
            continue
        for name in line.operands:
            if name in makers and name not in seen:
                seen[name] = None
                todo.append(name)
    return list(seen)


def _bytes(shape: Shape, dtype: str) -> int:
    return math.prod(shape) * BYTES[dtype]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="program.mlir of a compiled folder")
    state = count(parser.parse_args(arguments).program.read_text(encoding="utf-8"))
    for name in ("parameters", "gradients", "optimizer_state"):
        print(f"{name.replace('_', ' ')}: {getattr(state, name)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
