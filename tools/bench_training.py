"""Step time of an emitted training program against PyTorch's DistributedDataParallel, on two hosts with slow links between them.

    sudo python tools/bench_training.py [--rates 1 5] [--pairs 5] [--ddp-only] [--json FILE]

The hosts are network namespaces of this machine (tools/virtual_cluster.py: needs root and iproute2), one rank and one core each. The model is
`dmlc.models.gpt_text` in GPT-2's proportions with 30 million parameters, float32, trained with AdamW. DDP gets the best of four bucket sizes.
Both programs live in the same processes and are timed in turns, so that what disturbs the machine disturbs both. Beside the medians stand
each side's step without communication, and the bound max(computation, bytes / bandwidth) that no order of communication can beat.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dmlc.tools.folders import Folder, cluster_of, compile_folder, training_step
from dmlc.tools.virtual_cluster import VirtualCluster, why_not

HOSTS = 2
ROWS = 4  # samples a host
BUCKETS_MB = (1, 5, 25, 100)
RATE, DECAY = 1e-4, 0.01
MODELS = {"small": (64, 2, 4, 256, 512, 16), "30m": (512, 6, 8, 2048, 20480, 64)}  # gpt_text.build's arguments without the batch


def model(batch: int, size: str = "") -> Any:
    from dmlc.models import gpt_text

    return gpt_text.build(*MODELS[size or os.environ.get("DMLC_BENCH_SIZE", "30m")], batch)


def whole() -> Any:
    """The batch of all hosts; what the program for them is compiled from."""
    return model(HOSTS * ROWS)


def part() -> Any:
    """One host's batch; what the program without communication is compiled from."""
    return model(ROWS)


# ---------------------------------------------------------------- the two sides, in a rank's process


def ddp_step(bucket_mb: int | None, build: Callable[[], Any] = whole) -> Callable[[], float]:
    """A function that makes one step and returns the loss; without a bucket size nothing is exchanged. `build` gives a model that returns its
    loss, and the batch of all hosts."""
    import torch

    module, args = build()
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    mine = [x.chunk(ranks)[rank] for x in args]
    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), RATE, weight_decay=DECAY, fused=True)
    if bucket_mb is not None:
        ddp = torch.nn.parallel.DistributedDataParallel
        left_alone = "forward_sync_buffers" if "forward_sync_buffers" in inspect.signature(ddp).parameters else "broadcast_buffers"
        module = ddp(module, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True, **{left_alone: False})

    def step() -> float:
        optimizer.zero_grad()
        loss = module(*mine)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def emitted_step(path: Path, hosts: int) -> Callable[[], float]:
    """The same with the program in `path`, through the folder's own modules."""
    _, args = whole() if hosts > 1 else part()
    return training_step(Folder.load(path), lambda i: tuple(x[i] for x in args))


def block(step: Callable[[], float], steps: int) -> float:
    """Seconds a step, over `steps` of them, from when all ranks begin to when all are done."""
    import torch.distributed as dist

    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    dist.barrier()
    return (time.perf_counter() - begin) / steps


def exchange(count: int) -> float:
    """Seconds for one all-reduce of `count` float32 values with nothing beside it; the best of three."""
    import torch
    import torch.distributed as dist

    x = torch.zeros(count)
    return min(block(lambda: dist.all_reduce(x) and 0.0, 1) for _ in range(3))


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """All figures of one link speed. Every rank runs this; the order of what is timed is the same on all."""
    pairs, steps, folder = settings["pairs"], settings["steps"], settings["folder"]
    parameters = sum(p.numel() for p in part()[0].parameters())
    found: dict[str, Any] = {"parameters": parameters, "exchange": exchange(parameters), "buckets": bucket_times(settings["buckets"], steps)}
    found["bucket"] = best = best_of(found["buckets"])
    sides: dict[str, Callable[[], float]] = {"ddp": ddp_step(best)}
    sides["ddp compute"] = ddp_step(None)
    if folder:
        sides["dmlc"] = emitted_step(Path(folder) / "whole", HOSTS)
        sides["dmlc compute"] = emitted_step(Path(folder) / "part", 1)
    found["losses"] = {name: [mean(step()) for _ in range(2)] for name, step in sides.items() if "compute" not in name}
    for step in (step for name, step in sides.items() if "compute" in name):
        step()
    found["times"] = in_turns(sides, pairs, steps)
    return found


def bucket_times(buckets: Sequence[int], steps: int, build: Callable[[], Any] = whole) -> dict[int, float]:
    """DDP's seconds a step by bucket size."""
    found = {}
    for bucket in buckets:
        step = ddp_step(bucket, build)
        step()
        found[bucket] = block(step, steps)
    return found


def best_of(times: dict[int, float]) -> int:
    """The bucket size that is fastest on the average of the ranks."""
    return min(times, key=lambda b: mean(times[b]))


def in_turns(sides: dict[str, Callable[[], float]], pairs: int, steps: int) -> dict[str, list[float]]:
    """Seconds a step of every side, `pairs` times; every second time in the opposite order."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for name in turns(sides, pairs):
        found[name].append(block(sides[name], steps))
    return found


def turns(names: Iterable[str], pairs: int) -> Iterator[str]:
    """All names `pairs` times; every second time in the opposite order."""
    names = list(names)
    for i in range(pairs):
        yield from names[:: 1 if i % 2 == 0 else -1]


def mean(value: float) -> float:
    """Over the ranks: all of them know it and choose alike."""
    import torch
    import torch.distributed as dist

    x = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(x)
    return float(x) / dist.get_world_size()


def work(settings: dict[str, Any], measure: Callable[[dict[str, Any]], dict[str, Any]] = measure) -> int:
    """A rank's process: the first rank writes what `measure` finds."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = measure(settings)
    if dist.get_rank() == 0:
        Path(settings["result"]).write_text(json.dumps(found))
    dist.destroy_process_group()
    return 0


# ---------------------------------------------------------------- from outside


def compile_program(name: str, hosts: int, gigabits: float, out: Path) -> None:
    """What `dmlc compile dmlc.tools.bench_training:NAME --train --plan dp=HOSTS --target cpu` does, told how fast the link is."""
    compile_folder(f"dmlc.tools.bench_training:{name}", out, hosts, f"dp={hosts}", cluster_of(hosts, gigabits), train=True, clip=False)


def run_at(gigabits: float, settings: dict[str, Any], seconds: float, program: str = "dmlc.tools.bench_training") -> dict[str, Any]:
    """All figures at one link speed, from `program`'s ranks. Raises `RuntimeError` when a host failed."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        text = json.dumps({**settings, "result": str(result)})
        cores = sorted(os.sched_getaffinity(0))
        with VirtualCluster(HOSTS, gigabits, [{cores[i % len(cores)]} for i in range(HOSTS)]) as cluster:
            codes = cluster.wait(cluster.torchrun(["-m", program, "--work", text]), seconds)
        if any(codes):
            raise RuntimeError(f"the hosts ended with {codes}")
        return json.loads(result.read_text())


def report(gigabits: float, found: dict[str, Any]) -> str:
    """One link speed's figures as a table; seconds a step."""
    times = {name: statistics.median(values) for name, values in found["times"].items()}
    volume = 2 * (HOSTS - 1) / HOSTS * 4 * found["parameters"]  # bytes a rank sends in a ring all-reduce
    wire = volume / (gigabits * 1e9 / 8)
    lines = [f"{gigabits:g} Gbit/s: {found['parameters'] / 1e6:.1f} M parameters, each rank sends {volume / 1e6:.0f} MB a step: {wire:.3f} s at that speed"]
    lines.append(f"  one all-reduce of everything, alone {found['exchange']:8.3f} s")
    lines.append("  DDP by bucket: " + ", ".join(f"{bucket} MB {seconds:.3f} s" for bucket, seconds in found["buckets"].items()))
    lines.append(f"  {'median of ' + str(len(found['times']['ddp'])):16} {'step':>8} {'spread':>15} {'no exchange':>12} {'bound':>8} {'over bound':>11}")
    for side, title in (("ddp", f"DDP, {found['bucket']} MB"), ("dmlc", "dmlc")):
        if side in times:
            bound = max(times[f"{side} compute"], wire)
            spread = f"{min(found['times'][side]):.3f} - {max(found['times'][side]):.3f}"
            lines.append(f"  {title:16} {times[side]:8.3f} {spread:>15} {times[f'{side} compute']:12.3f} {bound:8.3f} {times[side] / bound:10.2f}x")
    if "dmlc" in times:
        ratios = [a / b for a, b in zip(found["times"]["dmlc"], found["times"]["ddp"])]
        lines.append(f"  losses of the first steps: DDP {losses(found, 'ddp')}, dmlc {losses(found, 'dmlc')}")
        lines.append(f"  dmlc / DDP {statistics.median(ratios):.3f} (median of pairs; {min(ratios):.3f} to {max(ratios):.3f})")
    return "\n".join(lines)


def losses(found: dict[str, Any], side: str) -> str:
    return " ".join(f"{loss:.5f}" for loss in found["losses"][side])


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.work:
        return work(json.loads(options.work))
    reason = why_not()
    if reason is not None:
        print(f"no two hosts to measure on: {reason}", file=sys.stderr)
        return 1
    if options.size:
        os.environ["DMLC_BENCH_SIZE"] = options.size
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; one core a host, Gloo, float32 gradients", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"pairs": options.pairs, "steps": options.steps, "buckets": options.buckets, "folder": "" if options.ddp_only else folder}
        results = {}
        for rate in options.rates:
            for name, hosts in (("whole", HOSTS), ("part", 1)) if not options.ddp_only else ():
                compile_program(name, hosts, rate, Path(folder) / name)
            results[rate] = run_at(rate, settings, options.seconds)
            print(report(rate, results[rate]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_turns(parser, seconds=1800)
    parser.add_argument("--ddp-only", action="store_true", help="without the emitted program")
    parser.add_argument("--size", choices=MODELS, default="", help="a small model shows in seconds that everything runs")
    return parser


def add_turns(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Options of every benchmark that times its sides in turns on two hosts; `seconds` is the usual time limit of one link speed."""
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 5.0], metavar="GBIT", help="link speeds in Gbit/s")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="how often the sides take turns")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="steps a turn")
    parser.add_argument("--buckets", type=int, nargs="+", default=BUCKETS_MB, metavar="MB", help="DDP's bucket sizes to choose from")
    parser.add_argument("--seconds", type=float, default=seconds, help="time limit of one model at one link speed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--work", help=argparse.SUPPRESS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
