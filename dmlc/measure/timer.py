"""Times calls by turns: every call once a round, so that a slow second of the machine falls on all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Run = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Median over the rounds in picoseconds, and by how many percent of it the middle half of them differs at most."""

    ps: int
    spread: float


def timing_of(seconds: Sequence[float]) -> Timing:
    ordered = sorted(seconds)
    middle = statistics.median(ordered)
    quarter = len(ordered) // 4
    width = ordered[len(ordered) - 1 - quarter] - ordered[quarter]
    return Timing(max(1, round(middle * 1e12)), 100 * width / 2 / middle if middle else 0.0)


def time_calls(runs: Sequence[Run], device: torch.device, rounds: int, tell: Callable[[int], None] = lambda n: None, least: float = 1e-3) -> list[Timing]:
    """Each call's time. A round repeats a call until `least` seconds are full; `tell(n)` is called with the number of rounds done."""
    repeats = [_repeats(run, device, least) for run in runs]
    found: list[list[float]] = [[] for _ in runs]
    for done in range(rounds):
        for run, n, seconds in zip(runs, repeats, found):
            seconds.append(_seconds(run, device, n) / n)
        tell(done + 1)
    return [timing_of(f) for f in found]


def _repeats(run: Run, device: torch.device, least: float) -> int:
    """How often a call is run at a time. Two runs before warm it up."""
    run()
    once = min(_seconds(run, device, 1) for _ in range(2))
    return max(1, min(1000, round(least / once))) if once else 1000


def _seconds(run: Run, device: torch.device, times: int) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    for _ in range(times):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin
