"""Published step times beside predicted ones: GPT on A100 (vTrain's tables), MPT with FSDP (llm-foundry's), and rows collected from papers and blogs.

A few rows calibrate a few factors and are never scored: every n-th row of a table in its own order.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import log
from pathlib import Path

from dmlc.cluster import Cluster
from dmlc.tools.gpt_steps import Gpt, Knobs, Step

Pairs = list[tuple[float, float]]
Line = Callable[[str, Iterable[tuple[float, float]]], str]
CALIBRATED = 40
FACTORS = ("compute", "memory", "host", "network", "step")


def rows_of(path: Path) -> list[list[str]]:
    """Rows under the head; none where the file is not there."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]


def dicts_of(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- Megatron on A100


def megatron(row: Sequence[str], recompute: bool) -> tuple[Gpt, float]:
    """GPUs, global batch, microbatch, hidden size, heads, layers, sequence, tensor, data and pipeline parallelism, milliseconds."""
    _, batch, micro, hidden, heads, layers, sequence, tp, dp, _ = map(int, row[:10])
    shape = Gpt(layers, hidden, heads, heads, 4 * hidden, 51200, sequence, batch, micro, tp, dp, flash=False, recompute=recompute, dtype="f16")
    return shape, float(row[10]) / 1000


def calibrated(steps: Sequence[tuple[Step, float]], knobs: Knobs, factors: Sequence[str]) -> Knobs:
    """The factors of least mean squared logarithmic error, one after the other by ever smaller changes."""

    def error(k: Knobs) -> float:
        return sum(log(step.seconds(k) / measured) ** 2 for step, measured in steps) / len(steps)

    best, change = error(knobs), 0.5
    while change > 0.01:
        better = False
        for name in factors:
            for factor in (1 + change, 1 / (1 + change)):
                trial = replace(knobs, **{name: max(getattr(knobs, name), 100.0 if name == "step" else 0.0) * factor})
                if (found := error(trial)) < best - 1e-9:
                    best, knobs, better = found, trial, True
        change = change if better else change / 2
    return knobs


def report_megatron(folder: Path, line: Line) -> None:
    single = [r for r in rows_of(folder / "ground_truth_single.csv") if r[9] == "1"]
    multi = [r[1:] for r in rows_of(folder / "ground_truth_multi.csv") if r[10] == "1"]
    if not single:
        return
    every = max(1, -(-len(single) // CALIBRATED))
    found = []
    for recompute in (False, True):
        steps = [(Step.of(shape, Cluster.named("a100", shape.tp * shape.dp)), t) for shape, t in (megatron(r, recompute) for r in single)]
        knobs = calibrated(steps[::every], Knobs(), FACTORS)
        error = statistics.fmean(abs(log(s.seconds(knobs) / t)) for s, t in steps[::every])
        found.append((error, recompute, knobs, steps))
    _, recompute, knobs, steps = min(found, key=lambda f: f[0])
    scored = [pair for i, pair in enumerate(steps) if i % every]
    print(line("GPT, one node of A100, no calibration", [(s.seconds(Knobs()), t) for s, t in scored]))
    factors = ", ".join(f"{name} {getattr(knobs, name):.2f}" for name in FACTORS)
    print(f"    calibrated on {len(steps[::every])} rows: {factors} (step in us); layers recomputed: {'yes' if recompute else 'no'}")
    print(line("GPT, one node of A100", [(s.seconds(knobs), t) for s, t in scored]))
    if multi:
        wide = [(Step.of(shape, Cluster.named("a100", shape.tp * shape.dp)), t) for shape, t in (megatron(r, recompute) for r in multi)]
        print(line("GPT, 64 and more A100, the same factors", [(s.seconds(knobs), t) for s, t in wide]))


# ---------------------------------------------------------------- MPT with FSDP

MPT = {  # layers, hidden size, heads
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20), "7b": (32, 4096, 32),
    "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64),
}  # fmt: skip
GPUS = {"h100_80gb": "h100", "a100_80gb": "a100", "a100_40gb": "a100-40"}


def mpt(row: dict[str, str]) -> tuple[str, Step, float] | None:
    shape = MPT.get(row["model"])
    if shape is None or row["gpu"] not in GPUS or not row["samples_per_s"] or float(row["tokens_per_s"]) <= 0 or row["act_cpu_offload"] == "True":
        return None
    layers, hidden, heads = shape
    sequence, gpus, device = int(row["seq_len"]), int(row["n_gpus"]), GPUS[row["gpu"]]
    low = "f8E4M3FN" if "fp8" in row["precision"] else ""
    g = Gpt(
        layers, hidden, heads, heads, 4 * hidden, 50368, sequence, int(row["global_bs"]), int(row["micro_bs"]), 1, gpus,
        recompute=row["act_ckpt"] == "True", sharded=True, products=low,
    )  # fmt: skip
    return device + (" fp8" if low else ""), Step.of(g, Cluster.named(device, gpus)), g.batch * sequence / float(row["tokens_per_s"])


def report_by_device(title: str, found: Sequence[tuple[str, Step, float]], line: Line, each: int = 3) -> None:
    """One efficiency figure a device: the median of measured / predicted of a few of its rows, which are not scored."""
    pairs: Pairs = []
    for device in dict.fromkeys(d for d, _, _ in found):
        rows = [(s.seconds(Knobs()), t) for d, s, t in found if d == device]
        if len(rows) <= each:
            continue
        every = len(rows) // each
        used = {i * every for i in range(each)}
        efficiency = statistics.median(rows[i][1] / rows[i][0] for i in used)
        scored = [(p * efficiency, t) for i, (p, t) in enumerate(rows) if i not in used]
        print(line(f"{title}, {device}: measured / model {efficiency:.2f}", scored))
        pairs += scored
    if pairs:
        print(line(f"{title}, all", pairs))


# ---------------------------------------------------------------- collected rows

NAMES = {"A100-80GB-SXM": "a100", "H100-SXM-80GB": "h100", "H100-SXM-80GB-700W": "h100", "H100-96GB-HBM2e-2.4TBps-500W": "h100", "DGX-H100": "h100", "H200-SXM": "h200", "DGX-B200": "b200"}
SHAPES = {"LLAMA3_8B": (32, 4096, 32, 8, 14336, 128256), "LLAMA3_70B": (80, 8192, 64, 8, 28672, 128256)}


def collected(row: dict[str, str]) -> tuple[str, Step, float] | None:
    """A row of a dense model without pipeline or context parallelism, or None."""
    time = row["step_s_measured"] or row["step_s_derived"]
    device, one = NAMES.get(row["gpu"]), ("", "1", "n/a", "0")
    if device is None or not time or row["pp"] not in one or row["cp"] not in one or row["ep"] not in one or not row["gbs"] or not row["seq"]:
        return None
    shape = SHAPES.get(row["model"])
    if shape is None:
        if not all(row[k] for k in ("layers", "hidden", "heads", "ffn", "vocab")):
            return None
        shape = tuple(int(row[k] or row["heads"]) for k in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"))
    tp, gpus = int(row["tp"] or 1), int(row["n_gpus"])
    dp, batch, old = gpus // tp, int(row["gbs"]), "GPT" in row["model"]
    low = "" if any(p in row["precision"].lower() for p in ("bf16", "fp16")) else "f8E4M3FN"
    g = Gpt(
        *shape, int(row["seq"]), batch, int(row["mbs"] or 1), tp, dp, gated=not old, flash=not old,
        recompute=row["recompute"] == "full", sharded=not old, products=low, dtype="f16" if row["precision"] == "fp16" else "bf16",
    )  # fmt: skip
    return device + (" fp8" if low else ""), Step.of(g, Cluster.named(device, gpus)), float(time)


def report_steps(data: Path, line: Line) -> None:
    report_megatron(data / "vtrain", line)
    rows = dicts_of(data / "llm_foundry" / "mpt_fsdp_throughput.csv")
    report_by_device("MPT with FSDP", [found for r in rows if (found := mpt(r)) is not None], line)
    rows = dicts_of(data / "published" / "published_training_rows.csv")
    report_by_device("published", [found for r in rows if (found := collected(r)) is not None], line, each=2)
