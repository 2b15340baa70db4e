"""Everything that needs a CUDA device, in under five minutes on one: kernels natively, whole models on one rank with NCCL, and their times.

    python3 tools/gpu_check.py [--dry-run] [--only kernels,models,…] [--models gpt2:make,…] [--seconds 280] [--json FILE]

Runs from a checkout, installed or not, without a network. Parts: `hand` (hand-written kernels against their PyTorch reference), `kernels`
(generated kernels: those of the tests and of every small model, dense and strided, against float64), `collectives` (the runtime's, on NCCL
with one rank), `launch` (a compiled folder through its own launch.py), `models` (each compiled for one device, against eager PyTorch and
`torch.compile`: largest difference, median times). `--dry-run` goes the same way on a processor: Triton's interpreter, Gloo, and
torch.compile without its code generator (which a GPU run leaves out for the small models, to stay within its time). Exit code 1 if anything is wrong; what there was no time for is named.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if importlib.util.find_spec("dmlc") is None:
    sys.path.insert(0, str(ROOT))

from dmlc.tools.gpu_parts import Wrong, cases_of_the_tests, collectives, generated, modules_of, one_rank  # noqa: E402

PARTS = ("hand", "kernels", "collectives", "launch", "models")
TINY = ("mlp:tiny", "resnet:tiny", "gpt2:tiny", "llama:tiny", "bert:tiny", "vit:tiny")
LARGER = ("gpt2:make", "llama:make", "resnet:small", "bert:base")
HAND = {"float16": 2e-3, "bfloat16": 1e-2}  # of the result's scale; 1e-5 in float32


@dataclass
class Line:
    """One thing that was checked. `state` is good, wrong or not reached."""

    name: str
    state: str
    said: str = ""
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)


@dataclass
class Session:
    dry: bool
    deadline: float
    repeat: int
    lines: list[Line] = field(default_factory=list)

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    def check(self, name: str, what: Callable[[], str | tuple[str, dict[str, float]]]) -> None:
        """Run one check, which gives a sentence and perhaps figures, and print what became of it."""
        begin = time.monotonic()
        line = Line(name, "not reached", "no time left")
        if begin < self.deadline:
            try:
                found = what()
                line.said, line.figures = (found, {}) if isinstance(found, str) else found
                line.state = "good"
            except Wrong as e:
                line.state, line.said = "wrong", str(e)
            except Exception:
                line.state, line.said = "wrong", traceback.format_exc().strip()
        line.seconds = round(time.monotonic() - begin, 1)
        self.lines.append(line)
        print(f"{line.state:11} {name}: {line.said} ({line.seconds} s)", flush=True)


# ---------------------------------------------------------------- the machine


def machine(dry: bool) -> dict[str, Any]:
    import torch
    import triton

    found = {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__, "cores": os.cpu_count()}
    if dry:
        return {"device": f"no GPU (dry run on {platform.processor() or platform.machine()})", **found}
    properties = torch.cuda.get_device_properties(0)
    capability = f"sm_{properties.major}{properties.minor}"
    return {"device": properties.name, "capability": capability, "memory_gb": round(properties.total_memory / 1e9), "cuda": torch.version.cuda, **found}


def exactly() -> None:
    """Float32 means float32: no TF32 in products or convolutions, here or in what is compared with."""
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


# ---------------------------------------------------------------- kernels and a compiled folder


def hand_written() -> str:
    """The runner of the tests, in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.json"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
        done = subprocess.run([sys.executable, str(ROOT / "ir_tests/hand_kernel_runner.py"), str(out)], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise Wrong(done.stderr.strip())
        found = json.loads(out.read_text())
    wrong = [f"{name}: {d}" for name, d in found.items() if isinstance(d, str) or not d <= HAND.get(name.split("torch.")[-1], 1e-5)]
    if wrong:
        raise Wrong(f"{len(wrong)} of {len(found)} cases: " + "\n".join(wrong))
    return f"{len(found)} cases agree with PyTorch"


@dataclass
class Built:
    """A model compiled for one device: its kernels' functions, the output folder, the example's inputs."""

    functions: list[Any]
    folder: Path
    inputs: dict[str, Any]


def build(loaded: Any, precision: str, target: str, folder: Path) -> Built:
    from dmlc import driver
    from dmlc.codegen.folder import write_folder
    from dmlc.codegen.triton_source import emit_kernels, kernel_functions

    copy = replace(loaded, module=loaded.module.clone())
    compiled = driver.compile_model(copy, driver.Options(1, precision=precision, target=target))
    kernels = emit_kernels(compiled.module) if kernel_functions(compiled.module) else None
    write_folder(compiled.module, folder, driver.final_weights(compiled), driver.plan_record(compiled), loaded.source, kernels)
    return Built(kernel_functions(compiled.module), folder, loaded.examples)


@functools.cache
def load(name: str) -> Any:
    from dmlc import driver

    return driver.load(f"dmlc.models.{name}", driver.Options(1))


def run_folder(built: Built, device: Any, repeat: int) -> tuple[list[Any], float]:
    """Results on the host, and the median time of `repeat` runs in milliseconds."""
    import torch

    with modules_of(built.folder):
        import launch  # type: ignore[import-not-found]

        given = {name: torch.as_tensor(x) for name, x in built.inputs.items()}
        results, _, times = launch.execute(given, device, 3 + repeat)
    return [x.cpu() for x in results], 1e3 * statistics.median(times[3:])


def launched(session: Session, name: str) -> str:
    """A folder through its own launcher, as a user starts it, compared with eager PyTorch's results."""
    import numpy

    loaded = load(name)
    with tempfile.TemporaryDirectory() as scratch:
        built = build(loaded, "fp32", "", Path(scratch) / "out")
        numpy.savez(f"{scratch}/x.npz", **built.inputs)
        numpy.savez(f"{scratch}/y.npz", **loaded.reference(built.inputs))
        command = [sys.executable, str(built.folder / "launch.py"), "--inputs", f"{scratch}/x.npz", "--check", f"{scratch}/y.npz"]
        done = subprocess.run([*command, "--kernels", "interpret" if session.dry else "triton"], capture_output=True, text=True)
    if done.returncode != 0 or "check passed" not in done.stdout or f"on {session.device}" not in done.stdout:
        raise Wrong(f"{done.stdout}{done.stderr}")
    return done.stdout.strip().replace("\n", "; ")


# ---------------------------------------------------------------- whole models


def whole_model(session: Session, name: str, precision: str) -> tuple[str, dict[str, float]]:
    """Compiled for one device, against eager PyTorch (float32: 1e-4 of scale; bf16: twice autocast's error) and torch.compile."""
    import torch

    device, loaded = torch.device(session.device, 0) if not session.dry else torch.device("cpu"), load(name)
    module = loaded.reference.eager.to(device)
    args = [torch.as_tensor(x).to(device) for x in loaded.examples.values()]
    with tempfile.TemporaryDirectory() as scratch, one_rank(session.device):
        built = build(loaded, precision, "h100" if session.dry else "", Path(scratch) / "out")
        ours, our_ms = run_folder(built, device, session.repeat)
    exact = outputs(module, args, "fp32", device.type)
    allowed = 1e-4 if precision == "fp32" else 2 * difference(outputs(module, args, "bf16", device.type), exact)
    off = difference(ours, exact)
    if not off <= allowed:
        raise Wrong(f"off by {off:.2e} of scale, allowed {allowed:.2e}")
    eager_ms = timed(session, lambda: outputs(module, args, precision, device.type))
    figures = {"difference": off, "ms": our_ms, "eager_ms": eager_ms, "kernels": float(len(built.functions))}
    said = f"off by {off:.1e} (allowed {allowed:.1e}); {our_ms:.3f} ms with {len(built.functions)} kernels, eager {eager_ms:.3f} ms"
    if name.endswith(":tiny") and not session.dry:  # its code generator takes half a minute a model
        return said, figures
    compiled_ms, cold = torch_compiled(session, module, args, precision)
    return f"{said}, torch.compile {compiled_ms:.3f} ms after {cold:.1f} s", figures | {"compile_ms": compiled_ms, "compile_cold_s": cold}


def outputs(module: Any, args: Sequence[Any], precision: str, device: str) -> list[Any]:
    import torch
    import torch.utils._pytree as pytree

    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
        return [x for x in pytree.tree_leaves(module(*args)) if isinstance(x, torch.Tensor)]


def difference(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    """Largest difference in parts of each output's scale."""
    pairs = [(a.detach().cpu().double(), b.detach().cpu().double()) for a, b in zip(actual, expected, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def torch_compiled(session: Session, module: Any, args: Sequence[Any], precision: str) -> tuple[float, float]:
    """Median milliseconds under torch.compile, and the seconds its first call took."""
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(module, backend="eager" if session.dry else "inductor")
    begin = time.perf_counter()
    outputs(compiled, args, precision, session.device)
    settle(session)
    cold = time.perf_counter() - begin
    return timed(session, lambda: outputs(compiled, args, precision, session.device)), cold


def timed(session: Session, call: Callable[[], Any]) -> float:
    """Median milliseconds of a call, the device idle before and after each."""
    times = []
    for _ in range(3 + session.repeat):
        settle(session)
        begin = time.perf_counter()
        call()
        settle(session)
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times[3:])


def settle(session: Session) -> None:
    import torch

    if not session.dry:
        torch.cuda.synchronize()


# ---------------------------------------------------------------- all of it


def run(session: Session, parts: Sequence[str], models: Sequence[str]) -> None:
    small = [m for m in models if m.endswith(":tiny")]
    if "hand" in parts:
        session.check("hand-written kernels", hand_written)
    if "kernels" in parts:
        session.check("generated kernels of the tests", lambda: generated(cases_of_the_tests(), session.device))
        for name in small:
            session.check(f"generated kernels of {name}", lambda name=name: kernels_of_model(session, name))
    if "collectives" in parts:
        session.check("collectives on one rank", lambda: collectives(session.device))
    if "launch" in parts and small:
        session.check(f"launch.py of {small[0]}", lambda: launched(session, small[0]))
    for name in models if "models" in parts else ():
        for precision in ("fp32", "bf16"):
            session.check(f"{name} {precision}", lambda name=name, precision=precision: whole_model(session, name, precision))


def kernels_of_model(session: Session, name: str) -> str:
    """In both precisions."""
    functions = []
    with tempfile.TemporaryDirectory() as scratch:
        for precision in ("fp32", "bf16"):
            made = build(load(name), precision, "h100", Path(scratch) / precision).functions
            for f in made:
                f.op.attrs["sym_name"] = f"{f.name}_{precision}"
            functions += made
    return generated(functions, session.device) if functions else "it has none"


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    os.environ["TRITON_INTERPRET"] = "1" if options.dry_run else "0"
    import torch

    if not options.dry_run and not torch.cuda.is_available():
        print("there is no CUDA device here; --dry-run goes the same way on a processor", file=sys.stderr)
        return 2
    exactly()
    about = machine(options.dry_run)
    print(", ".join(f"{k} {v}" for k, v in about.items()), flush=True)
    begin = time.monotonic()
    session = Session(options.dry_run, begin + options.seconds, 1 if options.dry_run else 20)
    run(session, options.only.split(","), options.models.split(","))
    counts = {state: sum(line.state == state for line in session.lines) for state in ("good", "wrong", "not reached")}
    print(f"{about['device']}: {', '.join(f'{n} {state}' for state, n in counts.items())} in {time.monotonic() - begin:.0f} s")
    if options.json:
        options.json.write_text(json.dumps({"machine": about, "lines": [asdict(line) for line in session.lines]}, indent=1) + "\n")
    return 1 if counts["wrong"] or not counts["good"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="on a processor, with Triton's interpreter and Gloo")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--models", default=",".join(TINY + LARGER), metavar="NAMES", help="builders of dmlc.models")
    parser.add_argument("--seconds", type=float, default=280, help="nothing is begun later than this; default 280")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
