"""How long the simulation of a deep model's training step takes, and how much memory: building, import, the pipeline, the simulated step.

    python tools/bench_simulation.py [7b] [70b] [--repeat 3]

7b is Llama-7B on 64 H100 (dp=8,tp=8), 70b Llama-2-70B on 1,024 (dp=128,tp=8,zero=1); both lie on the meta device. Every measurement is a process of
its own on one core; medians of processor seconds are shown, and the most private memory (RssAnon) at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MODELS = {"7b": ("dmlc.models.llama:make_7b", 64, "dp=8,tp=8"), "70b": ("dmlc.models.llama:make_70b", 1024, "dp=128,tp=8,zero=1")}
STAGES = ("build and import", "pipelines", "simulation", "after import")
PAUSE = 0.02  # seconds between two looks at the memory


class Watch(threading.Thread):
    """Keeps the most private memory of the process, in MB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.done = 0.0, threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            self.peak = max(self.peak, private_mb())
            time.sleep(PAUSE)


def private_mb() -> float:
    """RssAnon of this process (Linux)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def measure(source: str, devices: int, plan: str) -> dict[str, Any]:
    """Processor seconds of each stage, the peak, and what was simulated. Raises `ValueError` for a model that is not deep."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import scipy.optimize  # noqa: F401  (loading it is no work of the pipeline)
    import torch

    from dmlc import deep, driver
    from dmlc.cost import CostModel
    from dmlc.simulate.depth import extended
    from dmlc.simulate.step import simulate_step
    from dmlc.training import Training

    torch.set_num_threads(1)
    watch = Watch()
    watch.start()
    options = driver.Options(devices, plan, target="h100", train=Training())
    loaded, importing = timed(lambda: driver.load(source, options))
    layers, compiling = timed(lambda: deep.layers_of(loaded, options))
    if layers is None:
        raise ValueError(f"{source} has no {deep.MANY} equal layers")
    cost = CostModel.of(layers.more)
    report, simulating = timed(lambda: extended(simulate_step(layers.fewer, cost), simulate_step(layers.more, cost), layers.left_out))
    watch.done.set()
    times = dict(zip(STAGES, (importing, compiling, simulating, compiling + simulating), strict=True))
    return {**times, "RssAnon MB": max(watch.peak, private_mb()), "step s": report.time / 1e12, "peak GB": report.peak / 1e9, "layers": layers.count}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    return work(), time.process_time() - start


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="processes a measurement; default 3")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = [m for m in options.models if m not in MODELS]
    if unknown:
        print(f"there is no model {unknown[0]}; known: {', '.join(MODELS)}", file=sys.stderr)
        return 2
    if options.one:
        print(json.dumps(measure(*MODELS[options.models[0]])))
        return 0
    for name in options.models or MODELS:
        runs = [run_once(name) for _ in range(options.repeat)]
        medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        source, devices, plan = MODELS[name]
        print(f"{source}, {medians['layers']:.0f} layers, {devices} devices, {plan}: step {medians['step s']:.3f} s, peak {medians['peak GB']:.1f} GB a rank")
        print("\n".join(f"  {stage:18} {medians[stage]:7.2f} s" for stage in STAGES) + f"\n  {'RssAnon':18} {medians['RssAnon MB']:7.0f} MB", flush=True)
    return 0


def run_once(name: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "dmlc.tools.bench_simulation", "--one", name], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
