"""Measures collectives as one rank of a job: start it on every rank of a cluster by any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

    torchrun --nnodes 2 --node-rank I --master-addr HOST --nproc-per-node 1 -m dmlc.measure.ranks -o cluster.db --link ethernet

Rank 0 adds what it finds to the database. `--link` is the link's name in the cluster file that the times are for.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from dmlc.codegen.output.timing import machine
from dmlc.cost.database import add
from dmlc.cost.measured import Measurements
from dmlc.measure.collectives import Found, expected, measure_collectives
from dmlc.measure.timer import timing_of


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m dmlc.measure.ranks", description=(__doc__ or "").splitlines()[0])
    p.add_argument("-o", "--output", required=True, metavar="DB", help="database to add to (rank 0 writes it)")
    p.add_argument("--link", default="loopback", metavar="NAME", help="name of the link between the ranks, as the cluster file has it")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--threads", type=int, metavar="N", help="threads a rank computes with; default: PyTorch's")
    p.add_argument("--quick", action="store_true", help="few sizes, few rounds")
    return p


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        print("collectives need at least two ranks: start this under torchrun", file=sys.stderr)
        return 2
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if args.threads:
        torch.set_num_threads(args.threads)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    speaks = dist.get_rank() == 0
    try:
        found = measure_collectives(device, args.quick, lambda text: print(f"  {text}", flush=True) if speaks else None)
        if speaks:
            print(f"  repeats differ by ± {noise(found):.0f} % (median over {len(found.seconds)} collectives)")
            add(measurements(found, args.link, device), Path(args.output))
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return 0


def measurements(found: Found, link: str, device: torch.device) -> Measurements:
    collectives: dict[tuple[str, int, str], list[tuple[int, int]]] = {}
    for (kind, ranks, size), seconds in found.seconds.items():
        collectives.setdefault((kind, ranks, link), []).append((size, round(expected(seconds) * 1e12)))
    cores = {link: found.core} if found.core is not None else {}
    overlaps = {link: found.overlap} if found.overlap is not None else {}
    calls = {link: round(found.call * 1e12)} if found.call is not None else {}
    return Measurements(collectives=collectives, cores=cores, overlaps=overlaps, calls=calls, machine=machine(device))


def noise(found: Found) -> float:
    return statistics.median(timing_of(s).spread for s in found.seconds.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
