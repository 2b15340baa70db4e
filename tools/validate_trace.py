"""Checks trace files: `python -m dmlc.tools.validate_trace FILE…`, and `--same-names A B` that two of them have the same ops on the same rows.

What is checked is what `dmlc.simulate.trace` promises: the document, phases and their fields, events of a row nested and in order, arrows that are
bound at both ends, launches before their kernels, NCCL's fields, every wait with its collective. Where the installed PyTorch has a
validator of its own (private: `torch.profiler._trace_validator`), that is asked too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dmlc.tools.trace_checks import Trace, begin_of, problems


def load(path: str | Path) -> dict[str, Any]:
    """The document of a file. Raises `ValueError` when it is none."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        document = json.load(file)
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list) or not all(isinstance(e, dict) for e in document["traceEvents"]):
        raise ValueError("the file is not an object with a list of 'traceEvents'")
    return document


# ---------------------------------------------------------------- two traces


class Ranks:
    """What each rank of a trace runs: row -> (op, name) in the order of their first run -> how often."""

    def __init__(self, document: dict[str, Any]):
        trace = Trace(document)
        self.shown: dict[Any, dict[str, dict[tuple[str, str], int]]] = defaultdict(lambda: defaultdict(dict))
        for event in sorted(trace.ops, key=begin_of):
            row, op = self.shown[event["pid"]][trace.row(event)], (event["args"]["dmlc.op"], event["name"])
            row[op] = row.get(op, 0) + 1
        alike = document.get("dmlc", {}).get("ranks", {})
        self.alike = {rank: int(pid) for pid, ranks in alike.items() for rank in ranks}

    def of(self, rank: Any) -> dict[str, dict[tuple[str, str], int]]:
        """The rows of a rank, or of the one that stands for it."""
        return self.shown.get(rank) or self.shown.get(self.alike.get(rank), {})


def differences(a: dict[str, Any], b: dict[str, Any]) -> Iterator[str]:
    """Where two traces do not have the same ops on the same rows, as often and, at their first run, in the same order. A rank that only one
    of them shows is compared with the one that stands for it in the other."""
    first, second = Ranks(a), Ranks(b)
    for rank in dict.fromkeys([*first.shown, *second.shown]):
        one, other = first.of(rank), second.of(rank)
        for row in dict.fromkeys([*one, *other]):
            yield from (f"row {row!r} of rank {rank}: {text}" for text in _row_differences(one.get(row, {}), other.get(row, {})))


def _row_differences(one: dict[tuple[str, str], int], other: dict[tuple[str, str], int]) -> Iterator[str]:
    for op in dict.fromkeys([*one, *other]):
        if one.get(op, 0) != other.get(op, 0):
            yield f"{op[1]} [{op[0]}] runs {one.get(op, 0)} times in the first trace and {other.get(op, 0)} in the second"
    common = [[op for op in row if op in one and op in other] for row in (one, other)]
    place = next((i for i, (x, y) in enumerate(zip(*common)) if x != y), None)
    if place is not None:
        (first, of_first), (second, of_second) = common[0][place], common[1][place]
        yield f"{of_first} [{first}] comes first where the second trace has {of_second} [{second}]"


# ---------------------------------------------------------------- command


def torch_problems(path: str) -> list[str] | None:
    """What PyTorch's own validator finds; None where there is none (it is private, and not in every version)."""
    try:
        from torch.profiler._trace_validator import validate_trace  # type: ignore[import-not-found]
    except ImportError:
        return None
    return [f"PyTorch: {v}" for v in validate_trace(path)[1]]


def check(path: str, with_torch: bool = True) -> list[str]:
    """All that is wrong with a file."""
    try:
        document = load(path)
    except (OSError, ValueError) as error:
        return [str(error)]
    return [*problems(document), *((torch_problems(path) or []) if with_torch else [])]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check trace files of simulated and measured steps.")
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--same-names", action="store_true", help="compare the ops on each row of two files")
    parser.add_argument("--no-torch", action="store_true", help="do not ask PyTorch's validator")
    parser.add_argument("--limit", type=int, default=20, help="problems shown of each file")
    given = parser.parse_args(arguments)
    if given.same_names and len(given.files) != 2:
        parser.error("--same-names takes two files")
    found = {path: check(path, not given.no_torch) for path in given.files}
    if given.same_names and not any(found.values()):
        found[" and ".join(given.files)] = list(differences(*map(load, given.files)))
    for path, wrong in found.items():
        print(f"{path}: {'ok' if not wrong else f'{len(wrong)} problems'}")
        for text in wrong[: given.limit]:
            print(f"  {text}")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
