"""What a rank does for `tools/bench_simulator.py`: round by round it times collectives, profiles each program alone, and runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dmlc.measure.collectives import FEW, LONG, SIZES, aligned, call_seconds, core_percent, expected, make, overlap
from dmlc.tools.folders import Folder, inference_step, training_step

DEVICE = torch.device("cpu")
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
BESIDE = 16 * 2**20  # bytes of the all-reduce that computation is timed beside
REPEATS = 9


class Target:
    """A program that another one can be put in the place of, between two steps."""

    def __init__(self) -> None:
        self.program: Any = None

    def __call__(self, weights: Any, inputs: Any) -> Any:
        return self.program(weights, inputs)


class Subject:
    """One folder's program as this rank runs it with the others, and as it plays its rank alone."""

    def __init__(self, path: Path, trains: bool):
        self.folder = Folder.load(path)
        make_step = training_step if trains else inference_step
        self.targets: dict[bool, Target] = {}
        self.meshes: dict[bool, Any] = {}
        self.steps: dict[bool, Callable[[], float]] = {}
        for alone in (True, False):
            self.targets[alone] = Target()
            self.steps[alone] = make_step(self.folder, program=lambda mesh, device, alone=alone: self._keep(alone, mesh))

    def _keep(self, alone: bool, mesh: Any) -> Target:
        self.meshes[alone] = mesh
        return self.targets[alone]

    def profile(self, alone: bool, steps: int) -> dict[str, Any]:
        """The record of all ranks, as profile.json holds it."""
        with self.folder.active(), self._collectives(alone):
            import timing  # type: ignore[import-not-found]

            mesh = self.meshes[alone]
            profiled = timing.Profiled(self.folder.model.Program(mesh, DEVICE), mesh, DEVICE, steps, lambda _: None)
            self.targets[alone].program = profiled
            for _ in range(profiled.needed):
                dist.barrier()  # also alone: ranks of one machine share its memory, at the same time
                self.steps[alone]()
            record, ops = profiled.record(), timing.read_ops()
        records: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(records, record)
        return {"version": 1, "mesh": dict(mesh.axes), "alone": alone, "ops": ops, "ranks": records}

    @contextlib.contextmanager
    def _collectives(self, alone: bool) -> Iterator[None]:
        """The runtime's collectives as local copies, or as they are."""
        runtime: Any = self.folder.runtime
        before = runtime.dist
        if alone:
            runtime.dist = self.folder.alone.Alone("gloo")
        try:
            yield
        finally:
            runtime.dist = before


def network() -> dict[str, Any]:
    """One round of every kind and size of collective, and of what they and computation take from each other."""
    ranks = dist.get_world_size()
    points = []
    for kind in KINDS:
        for size in SIZES:
            run = make(kind, size, ranks, DEVICE, None)
            run()
            times = [aligned(run, kind, DEVICE, None)]
            if times[0] < LONG:
                times += [aligned(run, kind, DEVICE, None) for _ in range(REPEATS - 1)]
            points.append([kind, size, expected(times)])
    return {"collectives": points, "core": core_percent(BESIDE), "overlap": overlap(DEVICE, BESIDE, FEW), "call": call_seconds(DEVICE)}


def rounds(settings: dict[str, Any]) -> dict[str, Any]:
    """All rounds: what `network` finds in each, and of each program the profile alone and the profile with the others."""
    subjects = {name: Subject(Path(path), trains) for name, path, trains in settings["programs"]}
    found: dict[str, Any] = {"networks": [], "programs": {name: {"alone": [], "together": []} for name in subjects}}
    for _ in range(settings["rounds"]):
        found["networks"].append(network())
        for name, subject in subjects.items():
            found["programs"][name]["alone"].append(subject.profile(True, settings["steps"]))
            found["programs"][name]["together"].append(subject.profile(False, settings["steps"]))
    return found
