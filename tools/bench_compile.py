"""How long a compile takes and how much memory, stage by stage and pass by pass; how it grows with the number of layers.

    python tools/bench_compile.py [MODEL ...] [--devices 8] [--repeat 3] [--growth] [--compare] [--json FILE]

MODEL is gpt2 (12 layers), bert (base) or llama (32 layers in the shape of Llama-7B, on meta weights: sizes without data); all by default.
`--growth` measures the Llama shape with 8, 16, 32 and 64 layers. `--compare` measures torch.compile's first call (empty caches) and the
making of an onnxruntime session for the models whose weights exist. Every measurement is a process of its own; medians are shown. Beside the
wall time stands the processor time of the process and its children, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODELS = {"gpt2": "dmlc.models.gpt2:base", "bert": "dmlc.models.bert:base", "llama": "dmlc.models.llama:seven_billion"}
WITHOUT_DATA = ("llama",)
LAYERS = (8, 16, 32, 64)
VERIFIER = "of which verifier and contracts"
NOT_COUNTED = ("start", "build the model", VERIFIER)


def llama_of(layers: int) -> Any:
    """The shape of Llama-7B with another number of layers, on meta weights."""
    from dmlc.models import llama

    return llama.build(4096, layers, 32, 32, 11008, 32000, 2048, 8, device="meta")


layers_8, layers_16, layers_32, layers_64 = (functools.partial(llama_of, n) for n in LAYERS)


# ---------------------------------------------------------------- one measurement, in a process of its own


@dataclass
class Clock:
    """(wall seconds, processor seconds, peak memory in MB of the whole process while it ran) of each stage; stages of one name add up."""

    stages: dict[str, list[float]] = field(default_factory=dict)
    wall: float = 0.0
    processor: float = 0.0

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.begin()
        yield
        self.end(name)

    def begin(self) -> None:
        forget_peak()
        self.wall, self.processor = time.perf_counter(), sum(os.times()[:4])

    def end(self, name: str) -> None:
        wall, processor, peak = self.stages.get(name, [0.0, 0.0, 0.0])
        self.stages[name] = [wall + time.perf_counter() - self.wall, processor + sum(os.times()[:4]) - self.processor, max(peak, peak_mb())]


def forget_peak() -> None:
    """Let the kernel count the process's peak memory from here on (Linux); elsewhere it stays that of the whole process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_compile(source: str, devices: int) -> dict[str, list[float]]:
    """Everything `dmlc compile` does except writing the weights out."""
    clock = Clock()
    with clock.stage("start"):
        from dmlc import driver
        from dmlc.frontend.torch_export import export, import_exported, load_model
    with clock.stage("build the model"):
        eager, args, kwargs, shapes = load_model(source)
    with clock.stage("torch.export"):
        program = export(eager, args, kwargs, shapes, False, source)
    with clock.stage("import"):
        result = import_exported(program, None, shapes, eager)
    loaded = driver.Loaded(source, result.module, result.weights, result.reference, [], [])
    compiled = measure_passes(loaded, driver.Options(devices, target="h100"), clock)
    measure_emission(compiled, clock)
    if all(p.device.type != "meta" for p in eager.parameters()):
        with clock.stage("weights"):
            driver.final_weights(compiled)
    return clock.stages


def measure_passes(loaded: Any, options: Any, clock: Clock) -> Any:
    """The pipeline. A pass's time has the verifier's after it in it; how much that is in all is a row of its own."""
    from dmlc import driver

    running = ["prepare"]

    def at(pass_: Any) -> None:
        clock.end(f"pass {running.pop()}")
        running.append(pass_.name)
        clock.begin()

    clock.begin()
    begin = time.perf_counter()
    compiled = driver.compile_model(loaded, options, progress=at)
    clock.end(f"pass {running.pop()}")
    clock.stages[VERIFIER] = [time.perf_counter() - begin - sum(r.seconds for r in compiled.reports), 0.0, 0.0]
    return compiled


def measure_emission(compiled: Any, clock: Clock) -> None:
    from dmlc import driver
    from dmlc.codegen.aot import kernels_report
    from dmlc.codegen.pytorch import emit_model
    from dmlc.codegen.table import emit_table
    from dmlc.codegen.triton_source import emit_kernels
    from dmlc.ir.printer import print_module

    with clock.stage("emit the program"):
        emit_model(compiled.module, "")
        emit_table(compiled.module, None)
        print_module(compiled.module)
        driver.plan_record(compiled)
    with clock.stage("emit the kernels"):
        kernels = emit_kernels(compiled.module)
    with clock.stage("build the kernels for sm_80 and sm_90"):
        kernels_report(kernels)


def measure_torch_compile(source: str) -> dict[str, list[float]]:
    """torch.compile's first call, its caches empty."""
    import torch

    from dmlc.frontend.torch_export import load_model

    eager, args, kwargs, _ = load_model(source)
    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=scratch, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
        with clock.stage("torch.compile, first call"):
            torch.compile(eager)(*args, **kwargs)
        with clock.stage("eager, one call"):
            eager(*args, **kwargs)
    return clock.stages


def measure_onnxruntime(source: str) -> dict[str, list[float]]:
    """Making a session of the model's ONNX file; writing the file is shown apart."""
    import onnxruntime
    import torch

    from dmlc.frontend.torch_export import load_model

    eager, args, kwargs, _ = load_model(source)
    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        path = f"{scratch}/model.onnx"
        with clock.stage("torch.onnx.export"), contextlib.redirect_stdout(sys.stderr):
            torch.onnx.export(eager, args, path, kwargs=kwargs, dynamo=True)
        with clock.stage("onnxruntime session"):
            onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return clock.stages


# ---------------------------------------------------------------- all measurements


def measured(kind: str, source: str, devices: int, repeat: int) -> dict[str, list[float]]:
    """Medians over `repeat` processes. What fails has one stage that says so."""
    runs = []
    for _ in range(repeat):
        command = [sys.executable, "-m", "dmlc.tools.bench_compile", "--one", kind, source, "--devices", str(devices)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            return {f"failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}": [0.0, 0.0, 0.0]}
        runs.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return {name: [statistics.median(run[name][i] for run in runs) for i in range(3)] for name in runs[0]}


def machine() -> str:
    import torch

    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        name = next(line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{name}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}{load}"


def total(stages: dict[str, list[float]]) -> float:
    """Seconds of the compile itself: without Python's start and the building of the model."""
    return sum(wall for name, (wall, _, _) in stages.items() if name not in NOT_COUNTED)


def stage_table(title: str, stages: dict[str, list[float]]) -> str:
    lines = [title, f"  {'stage':42} {'wall s':>8} {'cpu s':>8} {'peak MB':>8}"]
    passes = {n: s for n, s in stages.items() if n.startswith("pass ")}
    hidden = [n for n, s in passes.items() if s[0] < 0.02 * total(stages)]
    lines += [row_text(n, [s]) for n, s in stages.items() if n not in hidden and n != VERIFIER]
    lines.append(row_text(f"{len(hidden)} other passes", [stages[n] for n in hidden]))
    lines.append(row_text("all passes", list(passes.values())))
    lines += [row_text(VERIFIER, [stages[VERIFIER]])] if VERIFIER in stages else []
    lines.append(row_text("in all, without start and build", [s for n, s in stages.items() if n not in NOT_COUNTED]))
    return "\n".join(lines)


def row_text(name: str, stages: Sequence[list[float]]) -> str:
    wall, processor = (sum(s[i] for s in stages) for i in (0, 1))
    return f"  {name:42} {wall:8.2f} {processor:8.2f} {max((s[2] for s in stages), default=0.0):8.0f}"


def growth_table(found: dict[int, dict[str, list[float]]]) -> str:
    """Processor seconds by number of layers, of what takes 2 % or more, with the exponent of a power law from the fewest layers to the most."""
    counts = sorted(found)
    whole = {n: sum(s[1] for name, s in found[n].items() if name not in NOT_COUNTED) for n in counts}
    rows = {"in all, without start and build": whole}
    for name, (_, processor, _) in found[counts[-1]].items():
        if name not in NOT_COUNTED and processor >= 0.02 * whole[counts[-1]]:
            rows[name] = {n: found[n].get(name, [0.0, 0.0])[1] for n in counts}
    lines = ["growth with layers (processor seconds; exponent 1 is linear)", f"  {'stage':42}" + "".join(f"{n:9}" for n in counts) + "  exponent"]
    for name, times in rows.items():
        lines.append(f"  {name:42}" + "".join(f"{times[n]:9.2f}" for n in counts) + f"  {exponent(times):8.2f}")
    return "\n".join(lines)


def exponent(times: dict[int, float]) -> float:
    """k where time grows as layers^k; NaN where there is nothing to compare."""
    few, many = min(times), max(times)
    if few == many or times[few] <= 0 or times[many] <= 0:
        return math.nan
    return math.log(times[many] / times[few]) / math.log(many / few)


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_intermixed_args(arguments)
    if options.one:
        kinds = {"compile": lambda s: measure_compile(s, options.devices), "torch.compile": measure_torch_compile, "onnxruntime": measure_onnxruntime}
        print(json.dumps(kinds[options.one](options.models[0])))
        return 0
    unknown = [m for m in options.models if m not in MODELS]
    if unknown:
        print(f"there is no model {unknown[0]}; known: {', '.join(MODELS)}", file=sys.stderr)
        return 2
    print(f"{machine()}; {options.devices} devices, medians of {options.repeat}", flush=True)
    results: dict[str, Any] = {"machine": machine()}
    for name in options.models or MODELS:
        results[name] = measured("compile", MODELS[name], options.devices, options.repeat)
        print(stage_table(f"{name} ({MODELS[name]})", results[name]), flush=True)
        for other in ("torch.compile", "onnxruntime") if options.compare and name not in WITHOUT_DATA else ():
            results[f"{name}, {other}"] = measured(other, MODELS[name], options.devices, options.repeat)
            print("\n".join(row_text(n, [s]) for n, s in results[f"{name}, {other}"].items()), flush=True)
    if options.growth:
        found = {n: measured("compile", f"dmlc.tools.bench_compile:layers_{n}", options.devices, options.repeat) for n in options.layers}
        results["growth"] = found
        print(growth_table(found))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--devices", type=int, default=8, metavar="N")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="processes a measurement; default 3")
    parser.add_argument("--growth", action="store_true", help="the Llama shape with a growing number of layers")
    parser.add_argument("--layers", type=int, nargs="+", choices=LAYERS, default=LAYERS, help="numbers of layers for --growth")
    parser.add_argument("--compare", action="store_true", help="torch.compile and onnxruntime too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--one", choices=("compile", "torch.compile", "onnxruntime"), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
