"""How far predicted step times are from measured ones: programs of five models, trained and run, on two ranks with one processor core each.

    sudo python tools/bench_simulator.py [--networks 1 5 loopback] [--cases "gpt train" ...] [--rounds 5] [--json FILE]

The ranks are two hosts of a virtual cluster with links of 1 and 5 Gbit/s (tools/virtual_cluster.py: needs root and iproute2), or two processes of this machine.
In each round, one after the other: the collectives of the network are timed; each program is profiled by one rank alone, its collectives replaced by local copies;
each program is run. What the first two say makes the prediction of that round, by `dmlc.simulate`; the program's own run has no part in it. The table
gives medians over the rounds, in milliseconds: the step, and the part of it in which computation waits for communication. The noise floor is the
median difference between a round's run and the next round's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dmlc.tools.folders import cluster_of
from dmlc.tools.simulator_cases import CASES, RANKS, Case
from dmlc.tools.virtual_cluster import VirtualCluster, why_not

PICO = 10**12
MODULE = "dmlc.tools.bench_simulator"


@dataclass(frozen=True)
class Row:
    """One program on one network: medians over the rounds, in seconds; `noise` is relative."""

    case: str
    network: str
    predicted: float
    measured: float
    predicted_exposed: float
    measured_exposed: float
    noise: float

    @property
    def error(self) -> float:
        """Of the step time, relative to the measured one."""
        return self.predicted / self.measured - 1

    @property
    def exposed_error(self) -> float:
        """Of the exposed communication, relative to the measured step."""
        return (self.predicted_exposed - self.measured_exposed) / self.measured


# ---------------------------------------------------------------- from what the ranks found to the table


def prediction(program: Any, gigabits: float | None, network: dict[str, Any], alone: dict[str, Any]) -> tuple[float, float]:
    """(step, exposed communication) in seconds, from one round's measurements of the network and of the program without one."""
    from dmlc.cost import CostModel
    from dmlc.cost.measured import Measurements
    from dmlc.measure.fold import measurements_of
    from dmlc.simulate.step import simulate_step

    cluster = cluster_of(RANKS, gigabits)
    link = cluster.links[-1].name
    curves: dict[tuple[str, int, str], list[tuple[int, int]]] = {}
    for kind, size, seconds in network["collectives"]:
        curves.setdefault((kind, RANKS, link), []).append((size, round(seconds * PICO)))
    traffic = Measurements(collectives=curves, cores={link: network["core"]}, overlaps={link: tuple(network["overlap"])}, calls={link: round(network["call"] * PICO)})
    program.attrs["dmlc.cluster"] = cluster.to_attr()
    report = simulate_step(program, CostModel(cluster, measurements_of(alone, program).merged(traffic)))
    return report.time / PICO, report.exposed / PICO


def measured(together: dict[str, Any]) -> tuple[float, float]:
    """(step, exposed communication) in seconds: the median step of the slower rank as the program is; the median part of its timed steps in which it waits."""
    steps = max(statistics.median(record["plain_ns"]) for record in together["ranks"])
    waits = [statistics.median(waiting(step, together["ops"]) for step in record["steps"]) for record in together["ranks"]]
    return steps / 1e9, statistics.mean(waits) / 1e9


def waiting(step: list, ops: dict[str, Any]) -> int:
    """Nanoseconds of a step in which a rank computes nothing: in waits and in collectives that it does not start ahead."""
    total = 0
    for op, _, begin, end, _, unpacking in step:
        if ops[op]["kind"] == "comm.wait" or ("axes" in ops[op] and not ops[op]["start"]):
            total += max(0, end - begin - unpacking)
    return total


def row_of(case: str, network: str, program: Any, gigabits: float | None, networks: Sequence[dict], found: dict[str, list]) -> Row:
    predicted = [prediction(program, gigabits, *pair) for pair in zip(networks, found["alone"])]
    runs = [measured(together) for together in found["together"]]
    steps = [step for step, _ in runs]
    noise = statistics.median(abs(b / a - 1) for a, b in zip(steps, steps[1:])) if len(steps) > 1 else float("nan")
    medians = [statistics.median(values) for values in (*zip(*predicted), *zip(*runs))]
    return Row(case, network, medians[0], medians[2], medians[1], medians[3], noise)


HEAD = f"{'program':17} {'network':>9} {'predicted':>10} {'measured':>10} {'error':>7} {'noise':>6}   {'exposed: predicted':>18} {'measured':>9} {'difference':>10}"


def line(row: Row) -> str:
    times = f"{row.predicted * 1e3:7.1f} ms {row.measured * 1e3:7.1f} ms {row.error:+7.1%} {row.noise:6.1%}"
    return f"{row.case:17} {row.network:>9} {times}   {row.predicted_exposed * 1e3:15.1f} ms {row.measured_exposed * 1e3:6.1f} ms {row.exposed_error:+10.1%}"


def summary(rows: Sequence[Row]) -> str:
    errors, exposed = [abs(r.error) for r in rows], [abs(r.exposed_error) for r in rows]
    ordered = sorted(errors)
    return (
        f"step time: mean error {statistics.mean(errors):.1%}, median {statistics.median(errors):.1%}, p90 {ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]:.1%}, "
        f"worst {max(errors):.1%}, bias {statistics.mean(r.error for r in rows):+.1%}; exposed communication: mean difference {statistics.mean(exposed):.1%} of the step, "
        f"worst {max(exposed):.1%}; noise floor {statistics.median(r.noise for r in rows):.1%} ({len(rows)} rows)"
    )


# ---------------------------------------------------------------- the ranks


def run_network(network: str, settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What the ranks found. Raises `RuntimeError` when one failed."""
    cores = sorted(os.sched_getaffinity(0))
    pinned = [{cores[i % len(cores)]} for i in range(RANKS)]
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        script = ["-m", MODULE, "--work", json.dumps({**settings, "result": str(result), "cores": [sorted(p) for p in pinned]})]
        if network == "loopback":
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), *script]
            codes = [subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}, timeout=seconds).returncode]
        else:
            with VirtualCluster(RANKS, float(network), pinned) as cluster:
                codes = cluster.wait(cluster.torchrun(script), seconds)
        if any(codes):
            raise RuntimeError(f"the ranks on network {network} ended with {codes}")
        return json.loads(result.read_text())


def work(settings: dict[str, Any]) -> int:
    """A rank's process."""
    import torch
    import torch.distributed as dist

    from dmlc.tools.simulator_rounds import rounds

    rank = int(os.environ["RANK"])
    os.sched_setaffinity(0, settings["cores"][rank])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = rounds(settings)
    if rank == 0:
        Path(settings["result"]).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def compile_cases(cases: Sequence[Case], folder: Path, gigabits: float | None) -> dict[str, tuple[Path, Any]]:
    """Case -> its folder and its per-rank program. Those that are there already are taken as they are."""
    from dmlc.cli._profiles import load_program

    found = {}
    for case in cases:
        out = folder / case.name.replace(" ", "-")
        if not (out / "program.mlir").exists():
            case.compile(out, cluster_of(RANKS, gigabits))
        found[case.name] = (out, load_program(out))
    return found


def speed_of(network: str) -> float | None:
    return None if network == "loopback" else float(network)


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.work:
        return work(json.loads(options.work))
    reason = why_not() if any(n != "loopback" for n in options.networks) else None
    if reason is not None:
        print(f"no two hosts to measure on: {reason}; --networks loopback needs none", file=sys.stderr)
        return 1
    cases = [CASES[name] for name in options.cases]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {RANKS} ranks, one core each, Gloo, {options.rounds} rounds", flush=True)
    rows: list[Row] = []
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        programs = compile_cases(cases, options.folder or Path(scratch), speed_of(options.networks[0]))
        settings = {"programs": [(c.name, str(programs[c.name][0]), c.trains) for c in cases], "rounds": options.rounds, "steps": options.steps}
        print(HEAD, flush=True)
        for network in options.networks:
            found = run_network(network, settings, options.seconds)
            if options.keep:
                (options.keep / f"{network}.json").write_text(json.dumps(found))
            for case in cases:
                rows.append(row_of(case.name, network, programs[case.name][1], speed_of(network), found["networks"], found["programs"][case.name]))
                print(line(rows[-1]), flush=True)
    print(summary(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["1", "5", "loopback"], metavar="GBIT", help="link speeds in Gbit/s, or loopback")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="plain and timed steps a round")
    parser.add_argument("--seconds", type=float, default=3600, help="time limit of one network")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="compiled programs go here, or are here already")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write what the ranks measured here")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
