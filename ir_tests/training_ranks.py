"""Training folders run in tests: every rank is a process forked from a server that has PyTorch loaded, its output in a file."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fork_server import fork_server


@dataclass(frozen=True)
class Ended:
    """Exit statuses by rank, and all that the ranks printed."""

    statuses: list[int]
    output: str


class Job:
    """The ranks of a folder, started with command line arguments."""

    def __init__(self, folder: Path, ranks: int, arguments: Sequence[object], environment: dict[str, str] | None = None):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self._outputs = [tempfile.NamedTemporaryFile(prefix="rank") for _ in range(ranks)]  # noqa: SIM115
        base = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), **(environment or {})}
        self.processes = []
        for rank, output in enumerate(self._outputs):
            own = {**base, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = fork_server().Process(target=_rank, args=(str(folder), own, output.name, [str(a) for a in arguments]))
            process.start()
            self.processes.append(process)

    def end(self, seconds: float = 60) -> Ended:
        """Wait for all ranks; those that run after `seconds` are killed and have status -9."""
        for process in self.processes:
            process.join(seconds)
            if process.is_alive():
                process.kill()
                process.join()
        texts = [Path(o.name).read_text() for o in self._outputs]
        return Ended([p.exitcode for p in self.processes], "".join(texts))


def train(folder: Path, ranks: int, *arguments: object, environment: dict[str, str] | None = None) -> str:
    """Train to the end; what the ranks printed."""
    ended = Job(folder, ranks, ["--device", "cpu", *arguments], environment).end()
    assert ended.statuses == [0] * ranks, ended.output
    return ended.output


def logged(path: Path, key: str = "loss") -> dict[int, float]:
    """Step -> value, from a log of steps."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["step"]: line[key] for line in lines if key in line}


def _rank(folder: str, environment: dict[str, str], output: str, arguments: list[str]) -> None:
    """Be one rank: like `python launch.py ARGUMENTS` in the given environment."""
    handle = os.open(output, os.O_WRONLY)
    for n in (1, 2):
        os.dup2(handle, n)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    os.environ.update(environment)
    if environment["RANK"] != "0":
        folder = environment.get("OTHER_FOLDER", folder)  # for a test of ranks that do not fit together
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sys.path.insert(0, folder)
    sys.argv = [f"{folder}/launch.py", *arguments]
    import torch

    torch.set_num_threads(1)
    status: object = 1
    with contextlib.suppress(SystemExit):
        try:
            import launch  # type: ignore[import-not-found]

            status = launch.main()
        except SystemExit as end:
            status = end.code
        except BaseException:
            traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)
