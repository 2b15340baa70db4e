"""A standing pool of rank processes for tests: compiled folders run on Gloo without starting Python again for each.

The processes are forked from one server that has PyTorch loaded. Each run has a fresh process group and fresh modules of its folder. When
a rank fails or nothing comes back in time, all are ended and the next run starts new ones, since the others may hang in a collective.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fork_server import fork_server

RANKS = 8
OWN = ("model", "table", "sizes", "runtime", "prelude", "kernels", "launch", "bf16_interpreter", "state", "checkpoint", "data")


class RankError(Exception):
    """A rank failed; the message is its traceback."""


@dataclass(frozen=True)
class Job:
    """`folder` compiled for `ranks` ranks, its global inputs in the file `inputs`; `scratch` is a folder for the rendezvous.
    `inputs` of a training program holds its batches, one a step, and its scalars."""

    folder: str
    ranks: int
    inputs: str
    scratch: str
    seconds: float
    training: bool = False


@dataclass(frozen=True)
class Outcome:
    """Global results by name (bf16 as float32), and rank 0's matrix products: (operation, dtypes of its operands)."""

    results: dict[str, Any]
    products: list[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True)
class Trained:
    """Numbers that each step reports, and afterwards all that a step updates, as global tensors."""

    steps: list[dict[str, float]]
    state: dict[str, Any]


class RankPool:
    def __init__(self, ranks: int = RANKS):
        self.size = ranks
        self._workers: list[tuple[Any, Connection]] = []

    def run(self, folder: Path, inputs: Mapping[str, Any], seconds: float = 120) -> Outcome:
        """Run a compiled folder on global inputs. Raises `RankError` when a rank fails or `seconds` pass."""
        import numpy

        def save(path: str) -> None:
            numpy.savez(path, **inputs)

        return self._do(folder, save, seconds, training=False)

    def train(self, folder: Path, steps: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], seconds: float = 120) -> Trained:
        """Run a training program's steps, each (inputs by name: tensors of n samples, scalars by name: hypers, and `microbatches` if not all)."""
        import torch

        def save(path: str) -> None:
            torch.save([(dict(inputs), dict(scalars)) for inputs, scalars in steps], path)

        return self._do(folder, save, seconds, training=True)

    def _do(self, folder: Path, save: Callable[[str], None], seconds: float, training: bool) -> Any:
        ranks = _ranks_of(folder)
        if ranks > self.size:
            raise ValueError(f"{folder} is for {ranks} ranks; the pool has {self.size}")
        self._start()
        with tempfile.TemporaryDirectory() as scratch:
            save(f"{scratch}/inputs.npz")
            for _, connection in self._workers[:ranks]:
                connection.send(Job(str(folder), ranks, f"{scratch}/inputs.npz", scratch, seconds, training))
            try:
                return self._collect(ranks, seconds)
            except BaseException:
                self.close()
                raise

    def _collect(self, ranks: int, seconds: float) -> Outcome:
        waiting = {connection: rank for rank, (_, connection) in enumerate(self._workers[:ranks])}
        found: dict[int, Any] = {}
        while waiting:
            ready = wait(list(waiting), seconds)
            if not ready:
                raise RankError(f"ranks {sorted(waiting.values())} gave nothing within {seconds} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                found[rank] = _received(connection, rank)
        return found[0]

    def _start(self) -> None:
        if self._workers:
            return
        for rank in range(self.size):
            here, there = fork_server().Pipe()
            process = fork_server().Process(target=_serve, args=(rank, there), daemon=True)
            process.start()
            there.close()
            self._workers.append((process, here))

    def close(self) -> None:
        """End all ranks; the next run starts new ones."""
        for process, connection in self._workers:
            connection.close()
            process.kill()
        for process, _ in self._workers:
            process.join()
        self._workers = []


@functools.cache
def shared_pool() -> RankPool:
    """The pool of this test session."""
    pool = RankPool()
    atexit.register(pool.close)
    return pool


def _received(connection: Connection, rank: int) -> Any:
    try:
        good, value = connection.recv()
    except EOFError:
        raise RankError(f"rank {rank} died") from None
    if not good:
        raise RankError(f"rank {rank} failed:\n{value}")
    return value


def _ranks_of(folder: Path) -> int:
    line = next(line for line in (folder / "table.py").read_text().splitlines() if line.startswith("RANKS = "))
    return int(line.removeprefix("RANKS = "))


# ---------------------------------------------------------------- in a rank


def _serve(rank: int, connection: Connection) -> None:
    """Run jobs until the pipe is closed."""
    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            answer = True, (_train if job.training else _execute)(rank, job)
        except BaseException:  # a launcher may raise SystemExit too
            answer = False, traceback.format_exc()
        connection.send(answer)


def _execute(rank: int, job: Job) -> Outcome | None:
    import argparse

    import torch

    with _modules_of(job.folder) as launch, _group(rank, job), recorder() as products:
        given = launch.load_inputs(argparse.Namespace(inputs=job.inputs))
        results, *_ = launch.execute(given, torch.device("cpu"))
        import table  # type: ignore[import-not-found]

        names = [r["name"] for r in table.RESULTS]
    if results is None:
        return None
    return Outcome({name: (x.float() if x.dtype == torch.bfloat16 else x).numpy() for name, x in zip(names, results)}, products.seen)


def _train(rank: int, job: Job) -> Trained | None:
    import torch

    with _modules_of(job.folder), _group(rank, job), torch.no_grad():
        import data  # type: ignore[import-not-found]
        import model  # type: ignore[import-not-found]
        import runtime  # type: ignore[import-not-found]
        import state  # type: ignore[import-not-found]
        import table  # type: ignore[import-not-found]

        mesh, device = runtime.Mesh(table.MESH), torch.device("cpu")
        held, program, layout = state.State(table, mesh, device), model.Program(mesh, device), data.Layout(data.input_rows(table), mesh)
        held.set(rng_seed=0)
        found = []
        for inputs, scalars in torch.load(job.inputs):
            samples = len(next(iter(inputs.values())))
            count = scalars.get("microbatches", layout.microbatches)
            held.set(**{"batch_size": samples, **scalars, "microbatches": count})
            loaded = {i: {name: x[i] for name, x in inputs.items()} for i in layout.needed(count, samples)}
            results = held.update(program(held.values, layout.tensors(loaded, count, samples)))
            found.append({name: x.item() for name, x in results.items()})
        whole = {}
        for row in table.RESULTS:
            if (name := row["updates"]) is not None:
                r = held.rows[name]
                whole[name] = runtime.gather_result(held.values[name], mesh, r["shape"], r["dims"], r["grains"])
    return Trained(found, whole) if rank == 0 else None


@contextlib.contextmanager
def _modules_of(folder: str) -> Iterator[Any]:
    """The folder's launcher; its modules are forgotten afterwards, since every folder has some of the same names."""
    sys.path.insert(0, folder)
    try:
        import launch  # type: ignore[import-not-found]

        yield launch
    finally:
        sys.path.remove(folder)
        for name in OWN:
            sys.modules.pop(name, None)


@contextlib.contextmanager
def _group(rank: int, job: Job) -> Iterator[None]:
    """A process group of its own for each job, met over a file."""
    from datetime import timedelta

    import torch.distributed as dist

    if job.ranks > 1:
        limit = timedelta(seconds=job.seconds)
        dist.init_process_group("gloo", init_method=f"file://{job.scratch}/store", rank=rank, world_size=job.ranks, timeout=limit)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def recorder() -> Any:
    """A mode that notes what every matrix product, convolution and attention gets."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[tuple[str, tuple[str, ...]]] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            if name in ("mm", "bmm", "addmm", "baddbmm", "convolution") or "attention" in name:
                self.seen.append((name, tuple(str(a.dtype).removeprefix("torch.") for a in args if hasattr(a, "dtype"))))
            return func(*args, **(kwargs or {}))

    return Recorder()
