"""run a compiled folder on its ranks

Starts torchrun on the folder's launch.py; Ctrl-C leaves no ranks behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dmlc.cli._run_inputs import check_devices, check_inputs, check_kernels, check_output
from dmlc.cli.arguments import Parser
from dmlc.ir.location import DmlcError


def parser() -> Parser:
    p = Parser(prog="dmlc run", description="Run a compiled folder: one process a rank, under torchrun.")
    p.add_argument("folder", metavar="OUT", nargs="?")
    p.add_argument("--nproc", type=int, metavar="N", help="number of ranks; must be the number compiled for")
    p.add_argument("--inputs", metavar="X.npz", help="one array an input; default: seeded synthetic data")
    p.add_argument("--save", metavar="Y.npz", help="write the results here")
    p.add_argument("--check", action="store_true", help="compare with the original's results stored by `dmlc compile --check`")
    p.add_argument("--kernels", choices=("auto", "triton", "torch", "interpret"), default="auto")
    p.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    p.add_argument("--repeat", type=int, default=5, metavar="N", help="timed runs after the first; default 5")
    return p


def main(argv: Sequence[str]) -> int:
    p = parser()
    if (folder := training_folder(argv)) is not None:
        return train(folder, [word for word in argv if word not in (str(folder), "--")])
    args = p.parse(argv)
    if args.folder is None:
        p.error("no OUT given")
    if args.check and args.inputs:
        p.error("--check compares on the inputs it was made with; leave --inputs out")
    folder = Path(args.folder)
    ranks = ranks_of(folder)
    if args.nproc is not None and args.nproc != ranks:
        raise DmlcError(f"{folder} is compiled for {ranks} ranks, not {args.nproc}; compile it again with --devices {args.nproc}")
    if args.device == "cuda":
        check_devices(ranks)
    if args.kernels == "triton":
        check_kernels(args.device)
    return launch(folder, ranks, launch_arguments(args, folder))


def training_folder(argv: Sequence[str]) -> Path | None:
    """The folder given, if it is one that trains."""
    folders = [Path(word) for word in argv if not word.startswith("-") and (Path(word) / "table.py").is_file()]
    return folders[0] if folders and (folders[0] / "train.py").is_file() else None


def train(folder: Path, arguments: list[str]) -> int:
    """Hand everything to the folder's own command line; of this one's options only --nproc is left out."""
    ranks = ranks_of(folder)
    if "--nproc" in arguments:
        at = arguments.index("--nproc")
        given = arguments[at + 1 : at + 2]
        if given != [str(ranks)]:
            raise DmlcError(f"{folder} is compiled for {ranks} ranks, not {''.join(given) or 'so many'}; compile it again, the checkpoints go with it")
        del arguments[at : at + 2]
    process = subprocess.Popen([sys.executable, str(folder.absolute() / "launch.py"), *arguments], start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()  # its own end: the step is finished and a checkpoint written
    try:
        process.wait()
        raise KeyboardInterrupt
    finally:
        if process.poll() is None:  # interrupted a second time
            os.killpg(process.pid, signal.SIGKILL)


def ranks_of(folder: Path) -> int:
    table = folder / "table.py"
    if not table.is_file():
        raise DmlcError(f"{folder} is not a compiled folder (it has no table.py); make one with dmlc compile")
    for line in table.read_text().splitlines():
        if line.startswith("RANKS = "):
            return int(line.removeprefix("RANKS = "))
    raise DmlcError(f"{table} does not say how many ranks it is for")


def launch_arguments(args, folder: Path) -> list[str]:
    given = ["--kernels", args.kernels, "--device", args.device, "--repeat", str(args.repeat)]
    for option in ("inputs", "save"):
        value = getattr(args, option)
        if value:
            given += [f"--{option}", str(Path(value).absolute())]
    if args.inputs:
        check_inputs(folder, Path(args.inputs))
    if args.save:
        check_output(Path(args.save))
    if args.check:
        stored = folder.absolute() / "check_outputs.npz"
        if not stored.is_file():
            raise DmlcError(f"{folder} holds no results of the original; compile it with --check first")
        given += ["--check", str(stored), "--inputs", str(stored.with_name("check_inputs.npz"))]
    return given


def launch(folder: Path, ranks: int, arguments: list[str]) -> int:
    """Start the ranks in a process group of their own; an interrupt ends them all."""
    launcher = str(folder.absolute() / "launch.py")
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)), **os.environ}
    command = (
        [sys.executable, launcher] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), launcher]
    )
    process = subprocess.Popen([*command, *arguments], env=environment, start_new_session=True)
    try:
        return 1 if process.wait() else 0
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        raise
