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

from dmlc.cli._run_inputs import check_devices, check_inputs, check_kernels, check_output, check_sizes
from dmlc.cli._run_report import Watch
from dmlc.cli.arguments import Parser
from dmlc.ir.location import DmlcError


def parser() -> Parser:
    p = Parser(prog="dmlc run", description="Run a compiled folder: one process a rank, under torchrun.")
    p.add_argument("folder", metavar="OUT", nargs="?")
    p.add_argument("--nproc", type=int, metavar="N", help="number of ranks; must be the number compiled for")
    p.add_argument("--inputs", metavar="X.npz", help="one array an input; default: seeded synthetic data")
    p.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="without --inputs: an open size of the program")
    p.add_argument("--shape", action="append", default=[], metavar="INPUT=AxBxC", help="without --inputs: the shape of an input")
    p.add_argument("--save", metavar="Y.npz", help="write the results here")
    p.add_argument("--check", action="store_true", help="compare with the original's results stored by `dmlc compile --check`")
    p.add_argument("--kernels", choices=("auto", "triton", "torch", "interpret"), default="auto")
    p.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    p.add_argument("--repeat", type=int, default=5, metavar="N", help="timed runs after the first; default 5")
    p.add_argument(
        "--profile", type=int, nargs="?", const=5, metavar="STEPS", help="time every op in so many steps after the first ones (default 5): OUT/profile.json"
    )
    p.add_argument("--profile-to", metavar="FILE", help="write the profile there instead")
    p.add_argument("--trace", metavar="FILE", help="with --profile: one of these steps for Perfetto")
    p.add_argument("--measured", metavar="DB", help="predict by these measured times; with --profile, add what is found to the file")
    return p


def main(argv: Sequence[str]) -> int:
    p = parser()
    if (folder := training_folder(argv)) is not None:
        return train(folder, [word for word in argv if word not in (str(folder), "--")])
    args = p.parse(argv)
    if args.trace and args.profile is None:
        p.error("--trace needs --profile")
    if args.folder is None:
        p.error("no OUT given")
    if args.check and args.inputs:
        p.error("--check compares on the inputs it was made with; leave --inputs out")
    if (args.dim or args.shape) and (args.check or args.inputs):
        p.error("--dim and --shape are for synthetic inputs; those of --inputs and --check have their sizes")
    folder = Path(args.folder)
    ranks = ranks_of(folder)
    if args.nproc is not None and args.nproc != ranks:
        raise DmlcError(f"{folder} is compiled for {ranks} ranks, not {args.nproc}; compile it again with --devices {args.nproc}")
    if args.device == "cuda":
        check_devices(ranks)
    if args.kernels == "triton":
        check_kernels(args.device)
    with Watch(folder, ranks, args.measured, args.profile is not None, args.profile_to) as watch:
        return watch.report(launch(folder, ranks, launch_arguments(args, folder), watch.environment))


def training_folder(argv: Sequence[str]) -> Path | None:
    """The folder given, if it is one that trains."""
    folders = [Path(word) for word in argv if not word.startswith("-") and (Path(word) / "table.py").is_file()]
    return folders[0] if folders and (folders[0] / "train.py").is_file() else None


def train(folder: Path, arguments: list[str]) -> int:
    """Hand everything to the folder's own command line; of this one's options only --nproc and --measured are left out."""
    ranks = ranks_of(folder)
    given = taken(arguments, "--nproc")
    if given is not None and given != str(ranks):
        raise DmlcError(f"{folder} is compiled for {ranks} ranks, not {given or 'so many'}; compile it again, the checkpoints go with it")
    measured = taken(arguments, "--measured")
    profiles = any(word.split("=")[0] == "--profile" for word in arguments)
    to = next((after for word, after in zip(arguments, arguments[1:]) if word == "--profile-to"), None)
    with Watch(folder, ranks, measured, profiles, to) as watch:
        return watch.report(_train(folder, arguments, watch.environment))


def taken(arguments: list[str], option: str) -> str | None:
    """The value of an option of this command, which is taken out; "" where it has none, None where it is not given."""
    at = next((i for i, word in enumerate(arguments) if word.split("=")[0] == option), None)
    if at is None:
        return None
    if "=" in arguments[at]:
        return arguments.pop(at).split("=", 1)[1]
    value = "".join(arguments[at + 1 : at + 2])
    del arguments[at : at + 2]
    return value


def _train(folder: Path, arguments: list[str], environment: dict[str, str]) -> int:
    process = subprocess.Popen([sys.executable, str(folder.absolute() / "launch.py"), *arguments], env=environment, start_new_session=True)
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
    for option in ("inputs", "save", "trace", "profile-to"):
        value = getattr(args, option.replace("-", "_"))
        if value:
            given += [f"--{option}", str(Path(value).absolute())]
    given += ["--profile", str(args.profile)] if args.profile is not None else []
    for option in ("dim", "shape"):
        given += [word for text in getattr(args, option) for word in (f"--{option}", text)]
    if args.inputs:
        check_inputs(folder, Path(args.inputs))
    else:
        check_sizes(folder, args.dim, args.shape)
    if args.save:
        check_output(Path(args.save))
    if args.check:
        stored = folder.absolute() / "check_outputs.npz"
        if not stored.is_file():
            raise DmlcError(f"{folder} holds no results of the original; compile it with --check first")
        given += ["--check", str(stored), "--inputs", str(stored.with_name("check_inputs.npz"))]
    return given


def launch(folder: Path, ranks: int, arguments: list[str], environment: dict[str, str] | None = None) -> int:
    """Start the ranks in a process group of their own; an interrupt ends them all."""
    launcher = str(folder.absolute() / "launch.py")
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)), **os.environ, **(environment or {})}
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
