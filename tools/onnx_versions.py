"""Where onnx's version converter and our import differ, and who is right.

    python -m dmlc.tools.onnx_versions [--each N] [--only OPERATOR] [--written] [--verbose]

Models of one node at each version of each operator (`onnx_version_cases`) are imported and converted to the versions before and after. Importing
the converted one should give the same. Where it does not, onnxruntime and the specification's evaluator run it too: if they give what we give, or
do not take it either, the converter is wrong, as where its model is invalid; if they give what the model gave before, our import is. Printed is a table of the
pairs that differ, with the reason where it is known. Exit code 1 if our import is wrong somewhere, or a reason lacks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import version_converter

from dmlc.ir.location import DmlcError
from dmlc.tools.onnx_modes import by_onnxruntime, difference, evaluated, ours
from dmlc.tools.onnx_version_cases import Case, neighbours, samples

CONVERTER, IMPORT = "converter", "import"  # who is wrong
STATES = ("equal", CONVERTER, IMPORT, "not converted", "not imported", "no judge")
Results = list[np.ndarray] | str  # or why there are none

FLATTENED = "before 13 all dims from `axis` on are one; the converter leaves `axis` as it is"
COORDINATES = "10 takes place i of the result from i / scale and rounds down (up where it reduces); the converter leaves 11's default, half pixels"
BATCH = "8 has a batch dim before the scanned one; the converter takes it from the graph's own inputs and outputs, whose shapes change"

REASONS = {
    ("Hardmax", 11, 13): FLATTENED,
    ("Softmax", 13, 12): FLATTENED,
    ("LogSoftmax", 13, 12): FLATTENED,
    ("Resize", 10, 11): COORDINATES,
    ("Upsample", 7, 21): COORDINATES,
    ("Upsample", 9, 21): COORDINATES,
    ("GroupNormalization", 18, 21): "scale and bias are of a group before 21, of a channel from then on; the converter leaves them as they are",
    ("Dropout", 10, 9): "the mask is of x's dtype before 10 and bool from then on; the converter leaves it bool",
    ("Scan", 8, 9): BATCH,
    ("Scan", 9, 8): BATCH,
}


@dataclass(frozen=True)
class Outcome:
    """Of one model converted from operator set `source` to `target`; of the model itself where they are the same."""

    operator: str
    source: int
    target: int
    state: str
    why: str
    case: Case


# ---------------------------------------------------------------- one model


def imported(case: Case, folder: Path) -> Results:
    path = folder / "case.onnx"
    path.write_bytes(case.model.SerializeToString())
    try:
        return ours(path, case)
    except DmlcError as e:
        return " ".join([e.message, *e.notes[:1]])


def judges(case: Case, folder: Path) -> Iterator[Results]:
    """What others say the model computes: onnxruntime, and the specification's evaluator."""
    path = folder / "case.onnx"
    path.write_bytes(case.model.SerializeToString())
    for run in (lambda: by_onnxruntime(path, case), lambda: evaluated(case)):
        try:
            yield run()
        except DmlcError as e:
            yield e.message


def alike(found: Results, wanted: Results, tolerance: float) -> bool:
    """Whether both have results, and the same. We carry unsigned integers in wider ones."""
    if isinstance(found, str) or isinstance(wanted, str) or len(found) != len(wanted):
        return False
    return not difference([a.astype(b.dtype) if b.dtype.kind == "u" else a for a, b in zip(found, wanted)], wanted, tolerance)


def compared(operator: str, opset: int, case: Case, folder: Path) -> Iterator[Outcome]:
    """The model, then what it is converted to."""

    def outcome(target: int, state: str, why: str = "", one: Case = case) -> Outcome:
        return Outcome(operator, opset, target, state, why, one)

    meant = imported(case, folder)
    if isinstance(meant, str):
        yield outcome(opset, "not imported", meant)
        return
    said = list(judges(case, folder))
    known = any(alike(meant, other, case.tolerance) for other in said)
    yield outcome(opset, "equal" if known else "no judge" if all(isinstance(s, str) for s in said) else IMPORT)
    for target in neighbours(operator, opset) if known else ():
        try:
            converted = replace(case, model=version_converter.convert_version(case.model, target))
        except Exception as e:  # it has no common class of errors
            yield outcome(target, "not converted", str(e).strip().splitlines()[0])
            continue
        found = imported(converted, folder)
        state = "equal" if alike(found, meant, case.tolerance) else _blamed(found, meant, converted, folder)
        yield outcome(target, state, found if isinstance(found, str) else "", converted)


def _blamed(found: Results, meant: Results, converted: Case, folder: Path) -> str:
    """Whose fault it is that the converted model, for us, is not what the model meant."""
    try:
        onnx.checker.check_model(converted.model, full_check=True)
    except Exception:  # nor have the checker's
        return CONVERTER
    said = list(judges(converted, folder))
    if any(alike(found, other, converted.tolerance) for other in said):
        return CONVERTER
    return IMPORT if any(alike(other, meant, converted.tolerance) for other in said) else CONVERTER


def outcomes(each: int, only: str = "", written: bool = False) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        for operator, opset, case in samples(each, only, written):
            yield from compared(operator, opset, case, Path(folder))


# ---------------------------------------------------------------- the table


def pairs(found: Iterable[Outcome]) -> dict[tuple[str, int, int], Counter[str]]:
    """(operator, from, to) -> states, of those that differ."""
    counts: dict[tuple[str, int, int], Counter[str]] = defaultdict(Counter)
    for o in found:
        counts[o.operator, o.source, o.target][o.state] += 1
    return {pair: c for pair, c in sorted(counts.items()) if c[CONVERTER] or c[IMPORT]}


def table(found: list[Outcome]) -> str:
    lines = [f"{'operator':20} {'from':>4} {'to':>4}  {'equal':>5} {'differ':>6}  {'right':10} why"]
    for (operator, source, target), counts in pairs(found).items():
        right = "converter" if counts[IMPORT] else "import"
        lines.append(
            f"{operator:20} {source:4} {target:4}  {counts['equal']:5} {counts[CONVERTER] + counts[IMPORT]:6}  {right:10} {REASONS.get((operator, source, target), '?')}"
        )
    totals = Counter(o.state for o in found if o.source != o.target)
    itself = Counter(o.state for o in found if o.source == o.target)
    lines.append(
        f"{itself.total()} models ({', '.join(f'{itself[s]} {s}' for s in STATES if itself[s])}), {totals.total()} conversions: {', '.join(f'{totals[s]} {s}' for s in STATES if totals[s])}"
    )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--each", type=int, default=2, help="cases of a kind for each version of an operator")
    p.add_argument("--only", default="", help="one operator")
    p.add_argument("--written", action="store_true", help="only the models written down here, without onnx's node cases and random modes")
    p.add_argument("--verbose", action="store_true", help="print each case that differs, or that we do not import")
    options = p.parse_args(argv)
    found = list(outcomes(options.each, options.only, options.written))
    shown = (CONVERTER, IMPORT, *(("not imported", "no judge") if options.verbose else ()))
    for o in found:
        if o.state in shown and (options.verbose or (o.operator, o.source, o.target) not in REASONS):
            print(f"{o.operator} {o.source} -> {o.target} {o.state}: {o.why} {o.case}")
    print(table(found))
    return int(any(c[IMPORT] or pair not in REASONS for pair, c in pairs(found).items()))


if __name__ == "__main__":
    sys.exit(main())
