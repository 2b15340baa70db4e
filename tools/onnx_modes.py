"""Random modes of operators with many of them, imported and interpreted, against onnxruntime (the specification's own evaluator where it has none).

    python -m dmlc.tools.onnx_modes [--seed N] [--count N] [--only OPERATOR] [--verbose]

`count` cases of each operator: modes, axes, negative indices and opsets from 7 to the newest are drawn at random. Printed are the cases that differ and
what is refused, with the reason, and a table. `as evaluator`: onnxruntime gives something else, but the specification's evaluator the same. Exit code 1 if one differs, is refused though the reference takes it, or ends in a traceback.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dmlc.ir.location import DmlcError
from dmlc.tools.onnx_mode_cases import GENERATORS, Case

STATES = ("agree", "as evaluator", "refused", "both refuse", "no reference", "differ", "crashed")


@dataclass(frozen=True)
class Outcome:
    operator: str
    state: str
    why: str
    case: Case


def reference(path: Path, case: Case) -> list[np.ndarray]:
    """The outputs by onnxruntime, or by `onnx.reference` where onnxruntime lacks the operator. Raises `DmlcError` when both refuse."""
    try:
        return by_onnxruntime(path, case)
    except DmlcError as e:
        if "NOT_IMPLEMENTED" not in e.message and "opset" not in e.message.lower():
            raise
    return evaluated(case)


def by_onnxruntime(path: Path, case: Case) -> list[np.ndarray]:
    """The outputs by onnxruntime. Raises `DmlcError`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, dict(case.inputs))  # type: ignore[return-value]  # tensors alone
    except Exception as e:  # onnxruntime's errors have no common class
        raise DmlcError(f"onnxruntime: {str(e).splitlines()[0]}") from None


def evaluated(case: Case) -> list[np.ndarray]:
    """The outputs by the specification's own evaluator. Raises `DmlcError`."""
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            return [np.asarray(y) for y in ReferenceEvaluator(case.model).run(None, dict(case.inputs))]  # type: ignore[union-attr]
    except Exception as e:  # nor have the evaluator's
        raise DmlcError(f"onnx.reference: {type(e).__name__}: {e}") from None


def ours(path: Path, case: Case) -> list[np.ndarray]:
    from dmlc.frontend.onnx import import_onnx
    from dmlc.interpret.run import run
    from dmlc.ir.verifier import verify

    result = import_onnx(path, shapes={n: x.shape for n, x in case.inputs.items()})
    verify(result.module)
    names = {a.attrs.get("dmlc.name", a.name): a.name for a in result.module.main.args}
    return list(run(result.module, {names[n]: x for n, x in case.inputs.items()}, weights=result.weights).values())


def difference(found: list[np.ndarray], wanted: list[np.ndarray], tolerance: float) -> str:
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {i} is {a.dtype} {list(a.shape)}, not {b.dtype} {list(b.shape)}"
        limit = tolerance * max(1.0, float(np.nanmax(np.abs(b[np.isfinite(b)]), initial=0))) if b.dtype.kind == "f" else 0
        if not np.allclose(a, b, rtol=0, atol=limit, equal_nan=True):
            return f"output {i} differs: {a.reshape(-1)[:6].tolist()}, not {b.reshape(-1)[:6].tolist()}"
    return ""


def outcome(operator: str, case: Case, folder: Path) -> Outcome:
    path = folder / "case.onnx"
    path.write_bytes(case.model.SerializeToString())
    refusal = None
    try:
        wanted = reference(path, case)
    except DmlcError as e:
        wanted, refusal = [], e.message
    try:
        found = ours(path, case)
    except DmlcError as e:
        return Outcome(operator, "both refuse" if refusal else "refused", " ".join([e.message, *e.notes[:1]]), case)
    except Exception as e:  # a traceback is a fault, whatever it is
        return Outcome(operator, "crashed", f"{type(e).__name__}: {e}", case)
    if refusal:
        return Outcome(operator, "no reference", refusal, case)
    why = difference(found, wanted, case.tolerance)
    return Outcome(operator, _judged(case, found) if why else "agree", why, case)


def _judged(case: Case, found: list[np.ndarray]) -> str:
    """Of results that differ from onnxruntime's: whether the specification's evaluator gives them."""
    try:
        return "differ" if difference(found, evaluated(case), case.tolerance) else "as evaluator"
    except DmlcError:
        return "differ"


def outcomes(seed: int, count: int, only: str = "") -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        for operator, generate in GENERATORS.items():
            if only and operator != only:
                continue
            for i in range(count):
                text = f"{operator} {seed} {i}"
                yield outcome(operator, generate(random.Random(text), np.random.default_rng([seed, i, len(operator)])), Path(folder))


def faults(found: list[Outcome]) -> list[Outcome]:
    """What differs, what ends in a traceback, and what is refused though the reference takes it and the generator does not expect that."""
    return [o for o in found if o.state in ("differ", "crashed") or (o.state == "refused" and not o.case.may_refuse)]


def table(found: list[Outcome]) -> str:
    lines = [f"{'operator':16}" + "".join(f"{s:>14}" for s in STATES)]
    for operator in dict.fromkeys(o.operator for o in found):
        counts = Counter(o.state for o in found if o.operator == operator)
        lines.append(f"{operator:16}" + "".join(f"{counts[s]:14}" for s in STATES))
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--count", type=int, default=100, help="cases of each operator")
    p.add_argument("--only", default="", help="one operator")
    p.add_argument("--verbose", action="store_true", help="also print what onnxruntime gives otherwise than the evaluator, and what has no reference")
    options = p.parse_args(argv)
    found: list[Outcome] = list(outcomes(options.seed, options.count, options.only))
    wrong = faults(found)
    shown: list[Any] = [*wrong, *(o for o in found if options.verbose and o.state in ("as evaluator", "no reference", "both refuse"))]
    print("\n".join([*(f"{o.operator} {o.state}: {o.why}\n    {o.case}" for o in shown), table(found)]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
