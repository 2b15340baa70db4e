"""Times all calls of `dmlc.measure.calls` on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from dmlc.codegen.output.timing import machine
from dmlc.cost.measured import Features, Measurements
from dmlc.measure.calls import calls
from dmlc.measure.timer import time_calls

ROUNDS, QUICK_ROUNDS = 7, 3


def measure_calls(device: torch.device, quick: bool, say: Callable[[str], None]) -> tuple[Measurements, float]:
    """Times of single calls by kind, and the noise floor: by how many percent repeats of one call differ, on the median call."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    by_kind: dict[str, list] = {}
    for call in calls(device, quick):
        by_kind.setdefault(call.kind, []).append(call)
    samples: dict[tuple[str, str], list[tuple[Features, int]]] = {}
    spreads = []
    with torch.no_grad():
        for number, (kind, of_kind) in enumerate(by_kind.items(), 1):
            say(f"{kind} ({number} of {len(by_kind)} kinds of calls)")
            timings = time_calls([c.make() for c in of_kind], device, rounds)
            spreads += [t.spread for t in timings]
            for call, timing in zip(of_kind, timings):
                samples.setdefault((call.kind, call.dtype), []).append((call.features, timing.ps))
    return Measurements(samples=samples, machine=machine(device)), statistics.median(spreads)
