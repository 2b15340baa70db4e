"""Training programs of the small models, compiled once a plan, what they are run on, and the same steps in eager PyTorch."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from model_cases import emit
from rank_pool import shared_pool
from torch.nn import functional as F
from training_models import BATCH, CLASSES, IGNORED, TIME

from dmlc import driver
from dmlc.interpret.train import Trainer
from dmlc.ir.core import Module
from dmlc.passmanager.context import Context
from dmlc.passmanager.manager import PassManager
from dmlc.passmanager.pipeline import parse_pipeline
from dmlc.pipelines import PIPELINES
from dmlc.training import Training

Batch = dict[str, torch.Tensor]
STEP = "simplify,raise-composites,unflatten,canonicalize,cse,dce,loss,autodiff,optimizer,canonicalize,cse,dce"
PARTITIONED = PIPELINES["training"].partition(",overlap-split")[0]  # before buckets and fusion, which take most of the time
FILE = Path(__file__).parent / "training_models.py"
OPTIMIZERS = {
    "adamw": Training(loss="cross-entropy", optimizer="adamw"),
    "sgd": Training(loss="cross-entropy", optimizer="sgd", momentum=0.9, nesterov=True),
}
HYPERS = {"adamw": {"lr": 0.02, "weight_decay": 0.1, "max_norm": 0.6}, "sgd": {"lr": 0.05, "weight_decay": 0.01, "max_norm": 0.6}}


@functools.cache
def loaded(model: str, optimizer: str = "adamw") -> driver.Loaded:
    return driver.load(f"{FILE}:{model}", driver.Options(train=OPTIMIZERS[optimizer]))


def passed(model: driver.Loaded, pipeline: str, options: driver.Options) -> tuple[Module, Any]:
    """A copy of the program after some passes, and the weights that belong to it."""
    module = model.module.clone()
    driver.annotate(module, options)
    context = Context(model.weights)
    PassManager(parse_pipeline(pipeline, PIPELINES)).run(module, context)
    return module, context.weights


@functools.cache
def whole(model: str, optimizer: str = "adamw") -> tuple[Module, Any]:
    """The whole-batch step."""
    return passed(loaded(model, optimizer), STEP, driver.Options(train=OPTIMIZERS[optimizer]))


@functools.cache
def ranked(model: str, plan: str, devices: int, microbatches: int = 2, optimizer: str = "adamw") -> driver.Compiled:
    """The per-rank program after the whole pipeline."""
    options = driver.Options(train=OPTIMIZERS[optimizer], plan=plan, devices=devices, microbatches=microbatches)
    source = loaded(model, optimizer)
    return driver.compile_model(replace(source, module=source.module.clone(), evaluation=None), options)


@functools.cache
def partitioned(model: str, plan: str, devices: int, microbatches: int = 2, optimizer: str = "adamw") -> tuple[Module, Any]:
    """The per-rank program as it is before buckets and fusion."""
    options = driver.Options(train=OPTIMIZERS[optimizer], plan=plan, devices=devices, microbatches=microbatches)
    return passed(loaded(model, optimizer), PARTITIONED, options)


# ---------------------------------------------------------------- what they are run on


def valid_targets(n: int, per: int, number: int) -> torch.Tensor:
    """Which targets count, [n, per]: none, 1 and 3 of the neighbours among them, so that groups of any size have differing counts."""
    g = torch.Generator().manual_seed(1000 + number)
    mask = torch.rand(n, per, generator=g) < 0.6
    mask[0 : n // 4] = False  # the first quarter: a rank of four has nothing in its first microbatch
    mask.view(-1)[n * per // 4] = True  # then one
    if per > 1:
        mask[n // 2] = torch.arange(per) < 3
    return mask


def batch(model: str, number: int, n: int = BATCH, ragged: bool = True) -> Batch:
    """Batch `number` of n samples, in float64."""
    g = torch.Generator().manual_seed(number)
    kind = model.removesuffix("_plain").removesuffix("_weighted")
    per = TIME if kind == "transformer" else 1
    target = torch.randint(0, CLASSES, (n, per), generator=g)
    if ragged:
        target[~valid_targets(n, per, number)] = IGNORED
    if kind == "transformer":
        return {"ids": torch.randint(0, 11, (n, TIME), generator=g), "target": target}
    shape = {"perceptron": (n, 6), "cnn": (n, 2, 6, 6)}[kind]
    return {"x": torch.randn(shape, generator=g, dtype=torch.float64), "target": target[:, 0]}


# ---------------------------------------------------------------- training

Run = tuple[list[float], list[float], dict[str, torch.Tensor]]  # losses, gradient norms, parameters and buffers


def interpreted(module: Module, weights: Any, model: str, steps: int, optimizer: str = "adamw", n: int = BATCH, **options: Any) -> Run:
    """Steps in the interpreter. Options: promote, poison_pads, microbatches, ragged."""
    microbatches, ragged = options.pop("microbatches", None), options.pop("ragged", True)
    trainer = Trainer(module, weights, **options)
    found = [trainer.step(batch(model, i, n, ragged), microbatches, **HYPERS[optimizer]) for i in range(steps)]
    return [f["loss"] for f in found], [f["grad_norm"] for f in found], model_state(module, trainer.state)


def model_state(module: Module, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Parameters and buffers by the model's own names; what a pass has divided is put together."""
    found: dict[str, torch.Tensor] = {}
    for arg in module.main.args:
        if arg.attrs.get("dmlc.role") not in ("param", "buffer"):
            continue
        part, value = arg.attrs.get("dmlc.part"), values[arg.name]
        if part is None:
            found[arg.name] = value
            continue
        whole = found.setdefault(part["names"][0].replace(".", "_"), torch.full(part["shape"], float("nan"), dtype=value.dtype))
        place = whole.view(part["split"]).narrow(part["dim"], part["start"], part["stop"] - part["start"])
        place.copy_(value.reshape(place.shape))
    return found


def eager(
    model: str, steps: int, optimizer: str = "adamw", microbatches: int = 1, n: int = BATCH, dtype: torch.dtype = torch.float64, ragged: bool = True
) -> Run:
    """The same steps in plain PyTorch: gradients accumulated over microbatches, the mean taken over the valid targets of the whole batch."""
    network = getattr(importlib.import_module("training_models"), model)()[0].to(dtype)
    h = HYPERS[optimizer]
    kind: Any = torch.optim.AdamW if optimizer == "adamw" else functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True)
    steps_of = kind(network.parameters(), lr=h["lr"], weight_decay=h["weight_decay"])
    losses, norms = [], []
    for i in range(steps):
        given = batch(model, i, n, ragged)
        loss = _accumulate(network, given, microbatches, dtype)
        norms.append(float(torch.nn.utils.clip_grad_norm_(network.parameters(), h["max_norm"])))
        steps_of.step()
        steps_of.zero_grad()
        losses.append(loss)
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return losses, norms, {name.replace(".", "_"): x.detach() for name, x in state.items()}


def _accumulate(network: torch.nn.Module, given: Mapping[str, torch.Tensor], microbatches: int, dtype: torch.dtype) -> float:
    target = given["target"]
    count = (target != IGNORED).sum().clamp(min=1)
    rows, total = math.ceil(len(target) / microbatches), 0.0
    for i in range(0, len(target), rows):
        inputs = {k: (x.to(dtype) if x.is_floating_point() else x)[i : i + rows] for k, x in given.items() if k != "target"}
        logits = network(**inputs)
        loss = F.cross_entropy(logits.flatten(0, -2), target[i : i + rows].flatten(), ignore_index=IGNORED, reduction="sum") / count
        loss.backward()
        total += loss.item()
    return total


def difference(got: Run, want: Run) -> tuple[float, float, float]:
    """Parameters and running statistics that both have count. Largest differences of losses and of norms (relative to those), and of parameters (absolute)."""
    losses = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(got[0], want[0], strict=True))
    norms = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(got[1], want[1], strict=True))
    assert all(math.isfinite(x) for x in [*want[0], *want[1], *got[0], *got[1]])
    shared = [n for n, x in want[2].items() if n in got[2] and x.is_floating_point()]  # PyTorch counts microbatches as batches seen
    assert shared
    return losses, norms, max(float((got[2][n].double() - want[2][n].double()).abs().max()) for n in shared)


# ---------------------------------------------------------------- emitted programs


def emitted(model: str, plan: str, devices: int, out: Path, steps: int, optimizer: str = "adamw", microbatches: int | None = None, n: int = BATCH) -> Run:
    """Steps of the emitted program on a process a rank."""
    compiled = ranked(model, plan, devices, 2, optimizer)
    scalars = {**HYPERS[optimizer], **({"microbatches": microbatches} if microbatches else {})}
    found = shared_pool().train(emit(compiled, out), [(batch(model, i, n), scalars) for i in range(steps)])
    return [s["loss"] for s in found.steps], [s["grad_norm"] for s in found.steps], model_state(compiled.module, found.state)
