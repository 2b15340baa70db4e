"""Folders for benchmarks: compiled for ranks on a processor with a link of a given speed, and run step by step inside a rank's own process."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = ("table", "prelude", "runtime", "kernels", "model", "state", "data", "checkpoint", "launch", "timing", "timeline", "alone")  # of a folder; another folder's may be loaded
HYPERS = {"lr": 1e-4, "weight_decay": 0.01, "max_norm": float("inf"), "rng_seed": 0}


def cluster_of(ranks: int, gigabits: float | None, ranks_per_host: int = 1) -> Any:
    """`ranks` processor cores, each host with a link of `gigabits` a second (None: the catalogue's loopback)."""
    from dmlc.cluster import Cluster

    cluster = Cluster.named("cpu", ranks)
    if gigabits is None:
        return cluster
    link = replace(cluster.links[-1], name="network", kind="network", bandwidth=round(gigabits * 1e9 / 8), shared=ranks_per_host, source="as set up")
    return replace(cluster, links=(link,))


def compile_folder(source: str, out: Path, ranks: int, plan: str, cluster: Any, train: bool, **options: Any) -> Any:
    """What `dmlc compile SOURCE --devices RANKS --plan PLAN [--train]` does, for `cluster`; the model returns its loss, or has one of its own.

    `loss` names the loss of a training step, `clip` says whether it clips gradients, `batch_norm` over what its statistics are; the rest are
    `driver.Options`.
    """
    from dmlc import driver
    from dmlc.cli.compile import kernels_of
    from dmlc.codegen.folder import Evaluation, write_folder
    from dmlc.training import Training

    wanted = {name: options.pop(name) for name in ("loss", "optimizer", "clip", "batch_norm") if name in options}
    training = Training(**{"loss": "", "optimizer": "adamw", **wanted}) if train else None
    given = driver.Options(ranks, plan, cluster=cluster, train=training, **options)
    loaded = driver.load(source, given)
    compiled = driver.compile_model(loaded, given)
    evaluation = Evaluation(compiled.evaluation.module, kernels_of(compiled.evaluation)) if compiled.evaluation is not None else None
    weights, record = driver.final_weights(compiled), driver.plan_record(compiled)
    write_folder(compiled.module, out, weights, record, source, kernels_of(compiled), None, {}, {}, train, evaluation)
    return compiled


@dataclass
class Folder:
    """A folder's own modules, loaded beside those of other folders."""

    path: Path
    modules: dict[str, ModuleType]

    @classmethod
    def load(cls, path: Path) -> Folder:
        folder = cls(path, {})
        with folder.active():
            for name in MODULES:
                if (path / f"{name}.py").exists():
                    importlib.import_module(name)
        return folder

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside, `import model` and the like mean this folder's."""
        before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
        sys.modules.update(self.modules)
        sys.path.insert(0, str(self.path))
        try:
            yield
        finally:
            sys.path.remove(str(self.path))
            self.modules.update({name: sys.modules.pop(name) for name in MODULES if name in sys.modules})
            sys.modules.update(before)

    def __getattr__(self, name: str) -> ModuleType:
        try:
            return self.__dict__["modules"][name]
        except KeyError:
            raise AttributeError(f"{self.path} has no {name}.py") from None


def training_step(folder: Folder, samples: Callable[[int], tuple] | None = None, program: Any = None) -> Callable[[], float]:
    """A function that makes one step on the same batch of the compiled size and returns the loss. `samples` gives sample i's tensors (left out:
    synthetic ones), `program` replaces the folder's program (an instrumented one)."""
    import torch

    mesh, device = folder.runtime.Mesh(folder.table.MESH), torch.device("cpu")
    state = folder.state.State(folder.table, mesh, device)
    running = program(mesh, device) if program is not None else folder.model.Program(mesh, device)
    rows = folder.data.input_rows(folder.table)
    layout = folder.data.Layout(rows, mesh)
    batch, count = folder.table.TRAIN["batch"], layout.microbatches
    sample = folder.data.Synthetic(rows, batch, 0).__getitem__ if samples is None else samples
    inputs = layout.tensors({i: sample(i) for i in layout.needed(count, batch)}, count, batch)
    state.set(**HYPERS, batch_size=batch, microbatches=count)

    def step() -> float:
        with torch.no_grad(), folder.active():
            return float(state.update(running(state.values, inputs))["loss"])

    return step


def inference_step(folder: Folder, program: Any = None) -> Callable[[], float]:
    """A function that runs the program once on seeded inputs and returns a sum over the rank's first result."""
    import torch

    device = torch.device("cpu")
    with folder.active():
        mesh = folder.runtime.Mesh(folder.table.MESH)
        weights = folder.launch.load_weights(mesh, device, {})
        running = program(mesh, device) if program is not None else folder.model.Program(mesh, device)
        wanted = [a for a in folder.table.ARGUMENTS if a["role"] == "input"]
        given = {a["name"]: folder.launch.synthetic(a, i) for i, a in enumerate(wanted)}
        inputs = {a["name"]: folder.runtime.cut(given[a["name"]], mesh, mesh.rank, a["shape"], a["dims"], a["grains"]) for a in wanted}

    def step() -> float:
        with torch.no_grad(), folder.active():
            return float(running(weights, inputs)[0].sum())

    return step
