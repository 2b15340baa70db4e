"""Trains a small CNN on scikit-learn's digits on four ranks of this machine, from a compiled program: accuracy, time, utilisation.

    python3 tools/train_digits.py [--devices 4] [--plan dp=4] [--steps 160] [--out FOLDER]

Installs the test extra into `.venv` where this Python has no dmlc or no scikit-learn. Utilisation is achieved over measured peak: the
multiply-adds of the forward and backward matrix products and convolutions, as PyTorch's own counter counts them on the eager model, a second of
training, over those a second of the fastest of ten products of 1024 x 1024 float32 matrices on all cores. On layers this small it is low.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from environment import ROOT, SetupError, prepare  # the file beside this one

MODEL = "dmlc.models.digits"
WANTED = 0.97  # test accuracy
RATE, WARMUP = 3e-3, 20


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        if any(importlib.util.find_spec(name) is None for name in ("dmlc", "sklearn", "torch")):
            return subprocess.run([str(prepare("test")), __file__, *arguments], cwd=ROOT).returncode
        with tempfile.TemporaryDirectory() as scratch:
            return demonstrate(options, options.out or Path(scratch) / "digits")
    except SetupError as e:
        print(e, file=sys.stderr)
        return 1


def demonstrate(options: argparse.Namespace, out: Path) -> int:
    peak, work = peak_multiply_adds(), multiply_adds_a_sample()
    begin = time.monotonic()
    request = ["--loss", "cross-entropy", "--optimizer", "adamw", "--devices", str(options.devices), "--plan", options.plan or f"dp={options.devices}"]
    run("-m", "dmlc", "compile", f"{MODEL}:cnn", "--train", *request, "--target", "cpu", "--no-kernel-report", "-o", str(out), "--force")
    compiled = time.monotonic() - begin
    data = ["--data", f"{MODEL}:train_data", "--eval-data", f"{MODEL}:test_data", "--log", str(out / "metrics.jsonl")]
    schedule = ["--steps", str(options.steps), "--lr", str(RATE), "--warmup", str(WARMUP), "--schedule", "cosine"]
    run(str(out / "launch.py"), *data, *schedule, "--eval-every", str(max(options.steps // 4, 1)), "--log-every", str(options.steps))
    seconds = time.monotonic() - begin
    rows = table_rows((out / "metrics.jsonl").read_text().splitlines())
    print(table(rows, work, peak))
    print(f"{seconds:.0f} s in all on {os.cpu_count()} cores: {compiled:.0f} s to compile, {rows[-1].seconds:.1f} s of steps, the rest to start and evaluate")
    if rows[-1].accuracy < WANTED or seconds > options.seconds:
        print(f"wanted: {WANTED:.0%} within {options.seconds:.0f} s", file=sys.stderr)
        return 1
    return 0


def run(*command: str) -> None:
    print(f"$ {' '.join(['python', *command])}", flush=True)
    if subprocess.run([sys.executable, *command], cwd=ROOT).returncode != 0:
        raise SetupError(f"'{' '.join(command[:3])} …' failed.")


# ---------------------------------------------------------------- the table


@dataclass(frozen=True)
class Row:
    """At an evaluation: steps, samples and seconds of training until then."""

    step: int
    accuracy: float
    loss: float
    samples: int
    seconds: float


def table_rows(lines: Sequence[str]) -> list[Row]:
    """The evaluations in a log of steps. Raises `SetupError` when there is none."""
    rows, samples, seconds = [], 0, 0.0
    for record in map(json.loads, lines):
        if "accuracy" in record:
            rows.append(Row(record["step"], record["accuracy"], record["eval_loss"], samples, seconds))
        else:
            samples, seconds = samples + record["samples"], seconds + record["seconds"]
    if not rows:
        raise SetupError("The training's log holds no evaluation.")
    return rows


def table(rows: Sequence[Row], work: float, peak: float) -> str:
    """`work` in multiply-adds a sample, `peak` in multiply-adds a second."""
    lines = [f"{'steps':>6} {'test accuracy':>14} {'test loss':>10} {'seconds':>8} {'samples/s':>10} {'utilisation':>12}"]
    for r in rows:
        rate = r.samples / r.seconds
        lines.append(f"{r.step:6} {r.accuracy:14.1%} {r.loss:10.4f} {r.seconds:8.1f} {rate:10.0f} {rate * work / peak:12.2%}")
    lines.append(f"{work / 1e6:.2f} million multiply-adds a sample, forward and backward; peak {peak / 1e9:.1f} billion a second (measured)")
    return "\n".join(lines)


def multiply_adds_a_sample() -> float:
    """Of matrix products and convolutions, forward and backward."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from dmlc.models import digits

    module, (x,) = digits.cnn()
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(module.train()(x), torch.zeros(len(x), dtype=torch.int64)).backward()
    return counter.get_total_flops() / 2 / len(x)


def peak_multiply_adds(size: int = 1024, repeat: int = 10) -> float:
    """A second, of float32 matrix products on all cores."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    a, b = torch.randn(size, size), torch.randn(size, size)
    fastest = float("inf")
    for _ in range(repeat):
        begin = time.perf_counter()
        torch.mm(a, b)
        fastest = min(fastest, time.perf_counter() - begin)
    return size**3 / fastest


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=4, metavar="N")
    parser.add_argument("--plan", default="", help="default: data parallel over all devices")
    parser.add_argument("--steps", type=int, default=160, metavar="N")
    parser.add_argument("--seconds", type=float, default=120, metavar="S", help="how long it may take from the compilation's start")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the compiled program and its log here")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
