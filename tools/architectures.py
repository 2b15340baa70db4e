"""Which architectures compile, and how exactly: forward and a training step's gradients, on one and on several devices, against eager PyTorch.

    python tools/architectures.py [--devices 1 8] [--plan dp=2,tp=4] [--forward] [--emitted] [--json FILE] [PART OF A NAME ...]

The rows stand in `models/catalogue_*.py`; how to add one, in `models/catalogue.py`. Forward: all ranks interpreted as typed, the error in
parts of each output's scale. Backward: one step of plain gradient descent at rate 1 without clipping, so that each parameter's change is
its gradient, against autograd in float64, in parts of the largest gradient. `--emitted` runs the emitted program on as many processes too.
Of a model in bf16, forward is compared with the same model in float64, and may be off twice as far as eager is.
`work` is the part of the multiply-adds that a rank of the last number of devices does, counted from the programs' texts.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dmlc import driver
from dmlc.ir.location import DmlcError
from dmlc.models.catalogue import LOSSES, Architecture

TOLERANCE = 1e-4  # of scale, float32
DEVICES = (1, 8)
PLAN = "dp=2,tp=4"
STEP = {"lr": 1.0, "weight_decay": 0.0, "max_norm": math.inf}


@dataclass
class Verdict:
    """What became of a builder: errors by number of devices, in parts of scale; seconds of each stage; the first thing that went wrong."""

    name: str
    kind: str
    attention: str = ""
    tied: bool = False
    forward: dict[int, float] = field(default_factory=dict)
    backward: dict[int, float] = field(default_factory=dict)
    emitted: float | None = None
    work: float = 1.0
    seconds: dict[str, float] = field(default_factory=dict)
    allowed: float = TOLERANCE
    error: str = ""

    @property
    def costliest(self) -> str:
        return max(self.seconds, key=lambda s: self.seconds[s]) if self.seconds else ""


# ---------------------------------------------------------------- rows


def rows() -> Iterator[tuple[str, Architecture]]:
    """(module, row) of every file `models/catalogue_*.py`."""
    for path in sorted((Path(__file__).parents[1] / "models").glob("catalogue_*.py")):
        name = f"dmlc.models.{path.stem}"
        yield from ((name, row) for row in importlib.import_module(name).ROWS)


# ---------------------------------------------------------------- one builder


def load(source: str, loss: str | None = None) -> driver.Loaded:
    """The imported model; to train it, with a loss by its key in LOSSES."""
    return driver.load(source, driver.Options(train=training(loss) if loss is not None else None))


def training(loss: str) -> Any:
    from dmlc.training import Training

    return Training(loss=LOSSES[loss], optimizer="sgd", clip=False)


def compiled(loaded: driver.Loaded, devices: int, plan: str = PLAN, loss: str | None = None) -> driver.Compiled:
    """A copy of the model, compiled."""
    options = driver.Options(devices=devices, plan=plan if devices > 1 else "auto", train=training(loss) if loss is not None else None)
    return driver.compile_model(replace(loaded, module=loaded.module.clone(), evaluation=None), options)


def forward_error(program: driver.Compiled, wanted: Mapping[str, Any]) -> float:
    """All ranks interpreted on the example, as typed."""
    from dmlc.interpret.run import run

    return difference(wanted, run(program.module, program.loaded.examples, weights=program.weights))


def difference(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> float:
    from dmlc.passmanager.check import relative_error

    return max(relative_error(want, found[name]) for name, want in wanted.items())


def expected(loaded: driver.Loaded) -> dict[str, Any]:
    """Eager's outputs on the example. Raises where they depend on no input."""
    import numpy

    from dmlc.cli._check import refuse_vacuous

    assert loaded.reference is not None
    first = loaded.reference(loaded.examples)
    other = {name: numpy.flip(x).copy() if x.ndim > 1 else x for name, x in loaded.examples.items()}
    refuse_vacuous(first, loaded.reference(other), loaded.source)
    return first


def batch_of(program: driver.Compiled) -> dict[str, Any]:
    """The example, and a seeded target where the loss takes one that the example lacks."""
    from dmlc.cli._check import inputs_for

    made = inputs_for(program, 0)
    parts = {a.name: made[a.name].reshape(-1, *made[a.name].shape[2:]) for a in program.module.main.args if "dmlc.micro" in a.attrs}
    return {**made, **parts, **program.loaded.examples}


def gradients(loaded: driver.Loaded, loss: str, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Autograd's, in float64, by all names of each parameter."""
    from dmlc.frontend.torch_training import TrainingStep

    _, changes = TrainingStep(loaded.reference, training(loss).to_attr())(batch, STEP["lr"], 0.0, STEP["max_norm"])  # type: ignore[arg-type]
    return changes


def backward_error(program: driver.Compiled, batch: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """A step of all ranks: the largest difference of a parameter's change over the largest change."""
    from dmlc.cli._check_training import hypers, of_argument
    from dmlc.interpret.train import Trainer

    trainer = Trainer(program.module, program.weights)
    before = {name: x.clone() for name, x in trainer.state.items()}
    trainer.step(batch, **{n: STEP[n] for n in hypers(program.module)})
    params = [a for a in program.module.main.args if a.attrs.get("dmlc.role") == "param"]
    scale = max(float(x.abs().max()) for x in wanted.values() if x.numel())
    if not scale > 0:
        raise DmlcError("no gradient reaches a parameter")
    off = {a.name: float((trainer.state[a.name] - before[a.name] - of_argument(a, wanted)).abs().max()) for a in params if a.tensor.numel}
    return max(off.values()) / scale


def ties(loaded: driver.Loaded) -> tuple[set[frozenset[str]], set[frozenset[str]]]:
    """Names of parameters that share storage: in the eager model, and as the import found them."""
    eager: dict[Any, set[str]] = {}
    for name, p in loaded.reference.eager.named_parameters(remove_duplicate=False):  # type: ignore[union-attr]
        eager.setdefault((p.data_ptr(), tuple(p.shape), p.stride()), set()).add(name)
    named = [a.attrs.get("dmlc.names", ()) for a in loaded.module.main.args if a.attrs.get("dmlc.role") == "param"]
    return {frozenset(n) for n in eager.values() if len(n) > 1}, {frozenset(n) for n in named if len(n) > 1}


def share_of(program: driver.Compiled, alone: driver.Compiled) -> float:
    """The part of the work that one rank does."""
    from dmlc.ir.printer import print_module
    from dmlc.tools.count_shares import read, total_work

    mine, whole = (total_work(read(print_module(p.module))) for p in (program, alone))
    return mine / max(1, whole)


# ---------------------------------------------------------------- verdicts


def judge(module: str, row: Architecture, name: str, options: argparse.Namespace) -> Verdict:
    """Everything about one builder; what goes wrong stands in the verdict."""
    verdict = Verdict(name, row.kind, row.variants[name], row.tied)
    try:
        _forward(verdict, f"{module}:{name}", row, options)
        if row.loss and name == row.name and not options.forward:
            backward(verdict, f"{module}:{name}", row, options)
    except DmlcError as e:
        verdict.error = "; ".join((e.message if not e.loc.known else f"{e.loc}: {e.message}", *e.notes))
    except Exception as e:  # a fault of the compiler's: the table is there to show it
        last = traceback.extract_tb(e.__traceback__)[-1]
        verdict.error = f"FAULT {type(e).__name__}: {str(e).strip()[:300]} ({Path(last.filename).name}:{last.lineno})"
    return verdict


def _forward(verdict: Verdict, source: str, row: Architecture, options: argparse.Namespace) -> None:
    begin = time.perf_counter()
    loaded = load(source)
    verdict.seconds["import"] = time.perf_counter() - begin
    eager, found = ties(loaded)
    if eager != found or bool(eager) != row.tied:
        raise DmlcError(f"tied are {sorted(map(sorted, eager))}, and the import found {sorted(map(sorted, found))}")
    wanted = expected(loaded)
    if row.half:
        exact = loaded.reference(loaded.examples, double=True)  # type: ignore[misc]
        verdict.allowed, wanted = 2 * difference(exact, wanted), exact
    programs = {devices: compiled(loaded, devices, row.plan or options.plan) for devices in options.devices}
    for devices, program in programs.items():
        verdict.forward[devices] = forward_error(program, wanted)
    verdict.work = share_of(program, programs[options.devices[0]])
    for report in program.reports:
        verdict.seconds[report.name] = verdict.seconds.get(report.name, 0.0) + report.seconds
    if options.emitted:
        verdict.emitted = _emitted(program, wanted)


def _emitted(program: driver.Compiled, wanted: Mapping[str, Any]) -> float:
    """The folder, run by its own launch script."""
    import subprocess

    import numpy

    from dmlc.tools.corpus_table import _emit

    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        _emit(program, out)
        numpy.savez(Path(scratch) / "x.npz", **program.loaded.examples)
        command = [sys.executable, "-m", "dmlc", "run", str(out), "--inputs", f"{scratch}/x.npz", "--save", f"{scratch}/y.npz", "--repeat", "0"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise DmlcError(f"the emitted program failed: {(done.stderr.strip().splitlines() or [''])[-1]}")
        return difference(wanted, dict(numpy.load(Path(scratch) / "y.npz")))


def backward(verdict: Verdict, source: str, row: Architecture, options: argparse.Namespace) -> None:
    loaded = load(source, row.loss)
    programs = {devices: compiled(loaded, devices, row.plan or options.plan, row.loss) for devices in options.devices}
    batch = batch_of(programs[options.devices[0]])
    wanted = gradients(loaded, row.loss, batch)
    for devices, program in programs.items():
        verdict.backward[devices] = backward_error(program, batch, wanted)


# ---------------------------------------------------------------- the table


def passes(verdict: Verdict) -> bool:
    errors = [*verdict.forward.values(), *verdict.backward.values(), *([verdict.emitted] if verdict.emitted is not None else [])]
    return not verdict.error and all(e <= verdict.allowed for e in errors)


def line(v: Verdict) -> str:
    def listed(errors: Mapping[int, float]) -> str:
        return " ".join(f"{e:.0e}" for e in errors.values())

    emitted = "" if v.emitted is None else f"{v.emitted:.0e}"
    slow = f"{sum(v.seconds.values()):5.1f} {v.costliest} {v.seconds[v.costliest]:.1f}" if v.seconds else ""
    return f"{v.name:30} {v.kind:18} {'tied' if v.tied else '':5} {v.attention:6} {listed(v.forward):12} {listed(v.backward):12} {emitted:6} {v.work:5.2f} {slow:26} {v.error}".rstrip()


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    verdicts = []
    print(f"{'architecture':30} {'kind':18} {'':5} {'attn.':6} {'forward':12} {'backward':12} {'run':6} {'work':5} seconds, costliest stage")
    for module, row in rows():
        for name in row.variants:
            if not options.parts or any(part in name for part in options.parts):
                verdicts.append(judge(module, row, name, options))
                print(line(verdicts[-1]), flush=True)
    print(summary(verdicts, options.devices))
    if options.json:
        options.json.write_text(json.dumps([asdict(v) for v in verdicts], indent=1) + "\n")
    return 0 if verdicts and all(map(passes, verdicts)) else 1


def summary(verdicts: Sequence[Verdict], devices: Sequence[int]) -> str:
    good = [v for v in verdicts if passes(v)]
    seconds = sorted(sum(v.seconds.values()) for v in verdicts if v.seconds)
    middle = f"; compile time {seconds[len(seconds) // 2]:.1f} s in the middle, {seconds[-1]:.1f} s at most" if seconds else ""
    return f"{len(good)} of {len(verdicts)} within {TOLERANCE:g} of eager on {' and '.join(map(str, devices))} devices, {sum(bool(v.backward) for v in good)} of them forward and backward{middle}"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("parts", nargs="*", metavar="PART", help="only rows whose name has one of these in it")
    made.add_argument("--devices", type=int, nargs="+", default=list(DEVICES), metavar="N")
    made.add_argument("--plan", default=PLAN, help=f"for more than one device; default {PLAN}")
    made.add_argument("--forward", action="store_true", help="no training steps")
    made.add_argument("--emitted", action="store_true", help="run the emitted programs too")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts here too")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
