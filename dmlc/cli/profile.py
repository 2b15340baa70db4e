"""measure this machine, or the ops of a compiled folder

`dmlc profile` times single PyTorch calls and collectives; `dmlc profile OUT` every op of a program, in one process that plays one rank.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmlc.cli.arguments import Parser
from dmlc.ir.location import DmlcError

if TYPE_CHECKING:
    from dmlc.cost.measured import Measurements

STEPS = 5


def parser() -> Parser:
    p = Parser(
        prog="dmlc profile",
        description="Measure this machine, or the ops of a compiled folder, for prices that are its own (compile, simulate, opt: --measured DB).",
    )
    p.add_argument("folder", metavar="OUT", nargs="?", help="a compiled folder: time each of its ops, as one rank, collectives left out")
    p.add_argument("-o", "--output", metavar="DB", help="file to put the times in, beside what it holds; default: a file of its own in ~/.cache/dmlc/measured")
    p.add_argument("--quick", action="store_true", help="few sizes, few rounds: seconds instead of a minute")
    p.add_argument("--ranks", type=int, metavar="N", help="processes to time collectives between; default: one a GPU, else 2; 1 leaves them out")
    p.add_argument("--threads", type=int, metavar="N", help="threads a rank computes with; default: the cores shared out over the ranks, as dmlc run does")
    p.add_argument("--link", default="loopback", metavar="NAME", help="name of the link between the ranks in the cluster the times are for; default loopback")
    p.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    return p


def main(argv: Sequence[str]) -> int:
    p = parser()
    args = p.parse(argv)
    for name in ("ranks", "threads"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            p.error(f"--{name} must be at least 1")
    begin = time.perf_counter()
    measured = measure_folder(args) if args.folder else measure_machine(args)
    path = put(measured, args.output)
    print(f"measured in {time.perf_counter() - begin:.0f} s; use it with --measured {path}")
    return 0


def put(measured: Measurements, output: str | None) -> Path:
    """Into the file asked for, else under its hash into the store."""
    from dmlc.cost.database import add, keep

    if output is None:
        return keep(measured)
    add(measured, Path(output))
    return Path(output)


# ---------------------------------------------------------------- the machine


def measure_machine(args: argparse.Namespace) -> Measurements:
    import torch

    from dmlc.cost.database import read
    from dmlc.measure.suite import measure_calls

    device = torch.device("cuda" if args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available()) else "cpu")
    ranks = args.ranks or (torch.cuda.device_count() if device.type == "cuda" else 2)
    threads = args.threads or max(1, (os.cpu_count() or 1) // ranks)
    torch.set_num_threads(threads)
    print(f"measuring {device.type}, {threads} thread{'s' if threads > 1 else ''} a rank; let the machine do nothing else meanwhile", flush=True)
    measured, noise = measure_calls(device, args.quick, lambda text: print(f"  {text}", flush=True))
    print(f"  repeats differ by ± {noise:.0f} % (median over {sum(map(len, measured.sampled.values()))} calls)")
    if ranks == 1:
        return measured
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "collectives"
        start_ranks(ranks, threads, ["-o", str(path), "--link", args.link, "--device", device.type, *(["--quick"] if args.quick else [])])
        return measured.merged(read(path))


def start_ranks(ranks: int, threads: int, arguments: list[str]) -> None:
    """Run `dmlc.measure.ranks` on this machine. Raises `DmlcError` when it fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", "dmlc.measure.ranks"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if subprocess.run([*command, *arguments, "--threads", str(threads)], env=environment).returncode:
        raise DmlcError("the ranks that time collectives failed (their message is above)", notes=("--ranks 1 leaves collectives out",))


# ---------------------------------------------------------------- a folder


def measure_folder(args: argparse.Namespace) -> Measurements:
    """Times of the ops of a compiled folder, as one of its ranks runs them."""
    from dmlc.cli._profiles import load_program
    from dmlc.measure.fold import measurements_of

    folder = Path(args.folder)
    module, ranks = load_program(folder), ranks_of(folder)
    with tempfile.TemporaryDirectory() as scratch:
        profile = run_alone(folder, Path(scratch) / "profile.json", args, args.threads or max(1, (os.cpu_count() or 1) // ranks))
    measured = measurements_of(profile, module)
    print(f"{len(measured.ops)} different ops timed over {len(profile['ranks'][0]['steps'])} steps")
    return measured


def ranks_of(folder: Path) -> int:
    from dmlc.cli.run import ranks_of as found

    return found(folder)


def run_alone(folder: Path, to: Path, args: argparse.Namespace, threads: int) -> dict[str, Any]:
    steps = 2 if args.quick else STEPS
    command = [sys.executable, str(folder.absolute() / "launch.py"), "--alone", "--profile", str(steps), "--profile-to", str(to), "--device", args.device]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, capture_output=True, text=True)
    if done.returncode or not to.exists():
        raise DmlcError(f"{folder} cannot be run by one process: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return json.loads(to.read_text())
