"""What each decision about communication buys: the ablation of the per-rank decisions, predicted and measured, against PyTorch's DistributedDataParallel.

    sudo python tools/bench_joint.py [--models gpt resnet] [--rates 1 5] [--pairs 5] [--measured] [--json FILE]

The model is compiled once for each line of the table (`dmlc.pipelines.ABLATION`): none, buckets, + partition, + order, + fusion, joint. All these
programs and DDP with the best of its bucket sizes run in the same processes, on two hosts that are network namespaces of this machine (tools/virtual_cluster.py),
one core each, and are timed in turns. With --measured, the prices behind the predictions are measured on these hosts and this link first.
Two lines count as different where their medians are further apart than half the range of their differences, pair by pair.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dmlc.pipelines import ABLATION, TRAINING, deciding
from dmlc.tools import bench_training as training
from dmlc.tools.folders import Folder, cluster_of, compile_folder, training_step
from dmlc.tools.simulator_rounds import Subject
from dmlc.tools.virtual_cluster import VirtualCluster, why_not

HOSTS = training.HOSTS
IMAGES = {"small": ((1, 1), 8, 32, 4, 10), "full": ((2, 2, 2, 2), 64, 64, 16, 1000)}  # blocks a stage, width, image, batch of all hosts, labels
TOKENS = {"small": "small", "full": "30m"}
PICO = 1e12
PROFILED = 7  # steps in which ops are timed
Make = Callable[[], Callable[[], float]]  # makes a function that runs one step and returns the loss


def size() -> str:
    return os.environ.get("DMLC_BENCH_SIZE", "full")


def gpt() -> Any:
    """GPT-2's proportions with 30 million parameters; returns its loss."""
    return training.model(HOSTS * training.ROWS, TOKENS[size()])


def resnet() -> Any:
    """A ResNet-18 with 1000 labels on images of 64 x 64; returns its loss."""
    from dmlc.models import resnet

    return resnet.with_loss(*IMAGES[size()])


MODELS: dict[str, Callable[[], Any]] = {"gpt": gpt, "resnet": resnet}


# ---------------------------------------------------------------- in a rank's process


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Times of all lines and of DDP, or the profile of one folder's ops. Every rank runs this; the order of what is timed is the same on all."""
    if "profile" in settings:
        return Subject(Path(settings["profile"]), True).profile(True, settings["steps"])
    build, steps = MODELS[settings["model"]], settings["steps"]
    _, args = build()
    found: dict[str, Any] = {"buckets": training.bucket_times(settings["buckets"], steps, build)}
    found["bucket"] = best = training.best_of(found["buckets"])
    sides: dict[str, Make] = {"ddp": lambda: training.ddp_step(best, build)}
    for name, folder in settings["folders"].items():
        sides[name] = lambda folder=folder: training_step(Folder.load(Path(folder)), lambda i: tuple(x[i] for x in args))
    found["losses"], found["times"] = in_turns(sides, settings["pairs"], steps)
    return found


def in_turns(sides: dict[str, Make], pairs: int, steps: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Losses of the first two steps of every side, and `pairs` times seconds a step; every second time in the opposite order. Each turn makes its
    side anew: programs that lie in memory together are not all as fast, by where they came to lie."""
    losses: dict[str, list[float]] = {}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for name in training.turns(sides, pairs):
        step = sides[name]()
        losses[name] = [training.mean(step()) for _ in range(2)]
        times[name].append(training.block(step, steps))
        del step
        gc.collect()
    return losses, times


# ---------------------------------------------------------------- from outside


def compile_line(model: str, line: str, gigabits: float, out: Path, **options: Any) -> dict[str, Any]:
    """One line's folder; its predicted picoseconds a step, and what the compiler took."""
    from dmlc.cost import CostModel
    from dmlc.simulate.step import simulate_step

    begin = time.perf_counter()
    pipeline = deciding(TRAINING, ABLATION[line])
    cluster = cluster_of(HOSTS, gigabits)
    compiled = compile_folder(
        f"dmlc.tools.bench_joint:{model}", out, HOSTS, f"dp={HOSTS}", cluster, train=True, clip=False, batch_norm="rank", pipeline=pipeline, **options
    )
    report = simulate_step(compiled.module, CostModel.of(compiled.module))
    return {"predicted": report.time / PICO, "exposed": report.exposed / PICO, "compile": time.perf_counter() - begin}


def run_model(model: str, gigabits: float, options: argparse.Namespace) -> dict[str, Any]:
    """Compile the lines, measure them, and set both beside each other."""
    with tempfile.TemporaryDirectory() as scratch:
        prices = profiled(model, gigabits, Path(scratch), options) if options.measured else {}
        folders = {line: str(Path(scratch) / f"line{i}") for i, line in enumerate(ABLATION) if line in options.lines}
        lines = {line: compile_line(model, line, gigabits, Path(folder), **prices) for line, folder in folders.items()}
        settings = {"model": model, "pairs": options.pairs, "steps": options.steps, "buckets": options.buckets, "folders": folders}
        return {"lines": lines, **training.run_at(gigabits, settings, options.seconds, "dmlc.tools.bench_joint")}


def profiled(model: str, gigabits: float, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Options of a compiler run that has the prices of these hosts, of this link, and of the ops of the program without any decision."""
    from dmlc.cli._profiles import load_program
    from dmlc.cost.database import add, show
    from dmlc.measure.fold import measurements_of

    times, folder, quick = scratch / "times.db", scratch / "priced", ["--quick"] if options.size == "small" else []
    cores = sorted(os.sched_getaffinity(0))
    with VirtualCluster(HOSTS, gigabits, [{cores[i % len(cores)]} for i in range(HOSTS)]) as cluster:
        link = cluster_of(HOSTS, gigabits).links[-1].name
        ranks = cluster.torchrun(["-m", "dmlc.measure.ranks", "-o", str(times), "--link", link, "--threads", "1", *quick])
        if any(cluster.wait(ranks, options.seconds)):
            raise RuntimeError("the hosts that time collectives failed")
    compile_line(model, "none", gigabits, folder)
    machine = [sys.executable, "-m", "dmlc", "profile", "--ranks", "1", "--threads", "1", "--device", "cpu", *quick, "-o"]
    # every host at once, since they share this machine's memory; what the first one finds counts
    running = [
        subprocess.Popen(["taskset", "-c", str(cores[i % len(cores)]), *machine, str(times if i == 0 else scratch / f"beside{i}.db")], stdout=subprocess.DEVNULL)
        for i in range(HOSTS)
    ]
    if any([process.wait() for process in running]):
        raise RuntimeError("dmlc profile failed")
    # and of the program in step: a rank is slower beside one that does the same
    profile = training.run_at(gigabits, {"profile": str(folder), "steps": PROFILED}, options.seconds, "dmlc.tools.bench_joint")
    add(measurements_of(profile, load_program(folder)), times)
    return {"measured": show(times)}


# ---------------------------------------------------------------- what it says


def report(model: str, gigabits: float, found: dict[str, Any]) -> str:
    """The table of one model at one link speed; seconds a step."""
    times = {name: statistics.median(values) for name, values in found["times"].items()}
    lines = [f"{model}, {gigabits:g} Gbit/s: {'':12} {'predicted':>9} {'measured':>9} {'spread':>15} {'exposed':>8} {'compiled in':>11}"]
    for name, line in found["lines"].items():
        values = found["times"][name]
        spread = f"{min(values):.3f} - {max(values):.3f}"
        lines.append(f"  {name:28} {line['predicted']:9.3f} {times[name]:9.3f} {spread:>15} {line['exposed']:8.3f} {line['compile']:9.1f} s")
    values = found["times"]["ddp"]
    lines.append(f"  {'DDP, ' + str(found['bucket']) + ' MB':28} {'':9} {times['ddp']:9.3f} {f'{min(values):.3f} - {max(values):.3f}':>15}")
    lines.append("  DDP by bucket: " + ", ".join(f"{bucket} MB {seconds:.3f} s" for bucket, seconds in found["buckets"].items()))
    errors = [line["predicted"] / times[name] - 1 for name, line in found["lines"].items()]
    lines.append(f"  predicted against measured: {statistics.mean(map(abs, errors)):.1%} off on average, {statistics.mean(errors):+.1%} bias")
    lines.append("  " + order_text(found))
    ratios = [a / b for a, b in zip(found["times"]["joint"], found["times"]["ddp"])]
    lines.append(f"  joint / DDP {statistics.median(ratios):.3f} (median of pairs; {min(ratios):.3f} to {max(ratios):.3f})")
    return "\n".join(lines)


def order_text(found: dict[str, Any]) -> str:
    wrong = misordered(found)
    if not wrong:
        return f"the order predicted is the order measured ({len(differing(found))} pairs of lines differ by more than the noise)"
    return "measured in another order than predicted: " + ", ".join(f"{fast} before {slow}" for fast, slow in wrong)


def differing(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of lines (fast, slow) whose measured times differ by more than the noise."""
    pairs = []
    for a, b in itertools.combinations(found["lines"], 2):
        differences = [y - x for x, y in zip(found["times"][a], found["times"][b])]
        middle = statistics.median(differences)
        if abs(middle) > (max(differences) - min(differences)) / 2:
            pairs.append((a, b) if middle > 0 else (b, a))
    return pairs


def misordered(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs (fast, slow as measured) that were predicted the other way round."""
    predicted = {name: line["predicted"] for name, line in found["lines"].items()}
    return [(fast, slow) for fast, slow in differing(found) if predicted[fast] > predicted[slow]]


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.work:
        return training.work(json.loads(options.work), measure)
    if "joint" not in options.lines:
        print("joint must be among the lines: it is what is compared with DDP", file=sys.stderr)
        return 2
    reason = why_not()
    if reason is not None:
        print(f"no two hosts to measure on: {reason}", file=sys.stderr)
        return 1
    os.environ["DMLC_BENCH_SIZE"] = options.size
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; one core a host, Gloo, float32", flush=True)
    results: dict[str, Any] = {}
    for model, rate in itertools.product(options.models, options.rates):
        results[f"{model} {rate:g}"] = found = run_model(model, rate, options)
        print(report(model, rate, found), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--lines", nargs="+", choices=ABLATION, default=list(ABLATION), help="lines of the table; joint has to be among them")
    training.add_turns(parser, seconds=3600)
    parser.add_argument("--measured", action="store_true", help="measure the prices on these hosts and this link first")
    parser.add_argument("--size", choices=TOKENS, default="full", help="small models show in seconds that everything runs")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
