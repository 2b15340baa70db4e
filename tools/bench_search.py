"""How long a trial of the joint search takes beside a whole simulation, and how far a search gets.

    python tools/bench_search.py [--layers 81] [--effort 1000000]

The program is a training step of plain layers (nine units each) as data, with slow-down and a host's queue: what the tests search in. A trial is a
random shift or merge, simulated from where it begins to where it makes no difference, in the unscheduled program and in the one found.
Processor time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ir_tests"))

from test_joint_search import larger

from dmlc.simulate.engine import replay
from dmlc.simulate.joint import Plan, Problem, as_units, numbered, search
from dmlc.simulate.joint_moves import merges, pulled, pushed
from dmlc.simulate.joint_state import Change, Schedule
from dmlc.simulate.ordering import find_order

TRIALS = 2000


def seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def changes(schedule: Schedule) -> list[Change]:
    draw, found = random.Random(1), []
    while len(found) < TRIALS:
        at, far = draw.randrange(len(schedule)), draw.randint(1, 16)
        kind = draw.randrange(3)
        if kind == 2:
            change = next(iter(merges(schedule, draw.choice(schedule.layout.atoms))), None)
        else:
            change = pulled(schedule, at, max(at - far, 0)) if kind else pushed(schedule, at, min(at + far, len(schedule) - 1))
        if change is not None:
            found.append(change)
    return found


def report(name: str, problem: Problem, plan: Plan) -> None:
    schedule = Schedule(*numbered(problem, plan))
    units, tried = as_units(schedule), changes(schedule)
    whole = min(seconds(lambda: replay(units, range(len(units)))) for _ in range(9))
    before = schedule.replayed
    trial = min(seconds(lambda: [schedule.trial(c) for c in tried]) for _ in range(3)) / TRIALS
    short = (schedule.replayed - before) / 3 / TRIALS
    print(f"{name}: {len(units)} units; a whole simulation {whole * 1e6:.0f} us, a trial {trial * 1e6:.0f} us ({short:.0f} units)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=81)
    parser.add_argument("--effort", type=int, default=1_000_000)
    options = parser.parse_args()
    problem = larger(0, options.layers)
    plan = Plan.of(problem)
    report("as written", problem, plan)
    units = as_units(Schedule(*numbered(problem, plan)))
    order: list[int] = []
    spent = seconds(lambda: order.extend(find_order(units)))
    print(f"order alone: {replay(units, range(len(units))) / 1e9:.3f} -> {replay(units, order) / 1e9:.3f} ms in {spent:.1f} s")
    begin = time.process_time()
    found = search(problem, [plan], effort=options.effort)
    spent = time.process_time() - begin
    print(f"joint: {found.starts[0] / 1e9:.3f} -> {found.time / 1e9:.3f} ms in {spent:.1f} s; no order of its units beats {found.bound / 1e9:.3f} ms")
    print("  " + ", ".join(f"{s.name} {s.time / 1e9:.3f}" for s in found.trace))
    report("as found", problem, found.plan)


if __name__ == "__main__":
    main()
