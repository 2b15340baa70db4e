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


def rows_of(document: dict[str, Any]) -> dict[tuple[Any, str], dict[tuple[str, str], int]]:
    """(process, row) -> (op, name) in the order of their first run -> how often it runs."""
    trace = Trace(document)
    found: dict[tuple[Any, str], dict[tuple[str, str], int]] = defaultdict(dict)
    for event in sorted(trace.ops, key=begin_of):
        row, op = found[event["pid"], trace.row(event)], (event["args"]["dmlc.op"], event["name"])
        row[op] = row.get(op, 0) + 1
    return found


def differences(a: dict[str, Any], b: dict[str, Any]) -> Iterator[str]:
    """Where two traces do not have the same ops on the same rows, as often and, at their first run, in the same order."""
    first, second = rows_of(a), rows_of(b)
    for key in dict.fromkeys([*first, *second]):
        where, one, other = f"row {key[1]!r} of process {key[0]}", first.get(key, {}), second.get(key, {})
        for op in dict.fromkeys([*one, *other]):
            if one.get(op, 0) != other.get(op, 0):
                yield f"{where}: {op[1]} [{op[0]}] runs {one.get(op, 0)} times in the first trace and {other.get(op, 0)} in the second"
        common = [[op for op in row if op in one and op in other] for row in (one, other)]
        place = next((i for i, (x, y) in enumerate(zip(*common)) if x != y), None)
        if place is not None:
            yield f"{where}: {common[0][place][1]} [{common[0][place][0]}] comes first where the second trace has {common[1][place][1]} [{common[1][place][0]}]"


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
