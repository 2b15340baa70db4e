"""Running a whole module on all its ranks in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from dmlc.interpret.arguments import Arguments, Promote, cut, global_type, join, poison, result_name, signature_sharding
from dmlc.interpret.evaluate import Evaluator, promoted
from dmlc.interpret.exchange import Exchange
from dmlc.interpret.rank import Posted, Rank
from dmlc.ir.binding import bound_to
from dmlc.ir.core import Function, Module, Op
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType


def is_per_rank(module: Module) -> bool:
    """Whether `partition` has made this a per-rank program (module attribute `dmlc.spmd`)."""
    return "dmlc.spmd" in module.attrs


def run(
    module: Module,
    inputs: Mapping[str, Any] | None = None,
    seed: int = 0,
    promote: str | None = None,
    weights: Any = None,
    poison_pads: bool = False,
    watch: Callable[[Op, list[torch.Tensor]], None] | None = None,
) -> dict[str, Any]:
    """Run `module.main` on every rank of its mesh and return {result name: global numpy array}.

    `inputs` maps argument names to global arrays. `promote="f64"` computes with every float (casts too) as float64.
    `weights` resolves `dmlc.value` keys; what it lacks is drawn from a generator seeded by name. `poison_pads` writes NaN into
    every pad. bf16 results come back as float32. Raises `DmlcError` on a mismatch between ranks or a deadlock, naming the places.
    """
    with torch.no_grad():
        return _to_numpy(run_tensors(module, inputs or {}, seed, promote, weights, poison_pads, watch))


def run_tensors(module: Module, inputs: Mapping[str, Any], seed: int = 0, promote: str | None = None, weights: Any = None, poison_pads: bool = False, watch: Any = None) -> dict[str, torch.Tensor]:
    """`run` with tensors as results."""
    module = bound_to(module, {name: np.shape(x) for name, x in inputs.items()})
    mesh, outputs = run_ranks(module, inputs, seed, promote, weights, poison_pads, watch)
    return {result_name(module.main, i): joined(module.main, i, [o[i] for o in outputs], mesh) for i in range(len(module.main.results))}


def run_ranks(
    module: Module,
    inputs: Mapping[str, Any],
    seed: int = 0,
    promote: str | None = None,
    weights: Any = None,
    poison_pads: bool = False,
    watch: Any = None,
    others: Mapping[int, Module] | None = None,
    known: dict[Op, Evaluator] | None = None,
) -> tuple[Mesh, list[list[torch.Tensor]]]:
    """The mesh and what each rank returns. `others` gives ranks a program of their own, of the same arguments: that is an error to be found.
    `known` keeps what evaluates an op, for the next run of the same unchanged module."""
    module, known = bound_to(module, {name: np.shape(x) for name, x in inputs.items()}), {} if known is None else known
    promotion: Promote = promoted if promote == "f64" else lambda d: d
    mesh = Mesh.of(module) if is_per_rank(module) else Mesh.make()
    arguments = Arguments(module, inputs, weights, seed, promotion)
    generators = []
    for r in range(mesh.devices):
        own = (others or {}).get(r, module)
        rank = Rank(own, mesh, r, promotion, poison_pads, watch, known)
        generators.append(rank.block(own.main.body, _local_arguments(own.main, arguments, mesh, rank, poison_pads), {}))
    return mesh, _drive(generators, Exchange(mesh, poison_pads))


def _local_arguments(function: Function, arguments: Arguments, mesh: Mesh, rank: Rank, poison_pads: bool) -> list[torch.Tensor]:
    local = []
    for arg in function.args:
        x = arguments.value(arg)
        sharding = signature_sharding(arg.attrs)
        if sharding is not None and mesh.axes.sizes:
            x = cut(x, mesh, sharding, rank.coordinates, poison(x.dtype) if poison_pads and "dmlc.pad" not in arg.attrs else 0)
        local.append(x)
    return local


def joined(function: Function, index: int, parts: list[torch.Tensor], mesh: Mesh) -> torch.Tensor:
    """A result as one tensor, from the parts of all ranks."""
    attrs = function.result_attrs[index]
    held = dict(enumerate(parts))
    if "dmlc.stage" in attrs:  # the value lives on the ranks of one pipeline stage
        axis, stage = attrs["dmlc.stage"]
        held = {r: p for r, p in held.items() if mesh.coordinates(r)[axis] == stage}
    sharding = signature_sharding(attrs)
    if sharding is None or len(parts) == 1:
        return next(iter(held.values()))
    type_ = function.results[index].type
    assert isinstance(type_, TensorType)
    return join(held, mesh, sharding, tuple(int(n) for n in global_type(type_, attrs).shape))


def _drive(generators: list[Any], exchange: Exchange) -> list[list[torch.Tensor]]:
    """Round robin over the ranks until all have returned. A rank runs until it waits for something that is not there."""
    finished: dict[int, list[torch.Tensor]] = {}
    waiting: dict[int, Posted] = {}
    while len(finished) < len(generators):
        progress = False
        for rank, generator in enumerate(generators):
            if rank in finished or (rank in waiting and waiting[rank].results is None):
                continue
            progress = True
            waiting.pop(rank, None)
            _advance(rank, generator, exchange, finished, waiting)
        if not progress:
            raise exchange.stuck(list(waiting.values()), list(finished))
    if (wrong := exchange.left_over()) is not None:
        raise wrong
    return [finished[r] for r in range(len(generators))]


def _advance(rank: int, generator: Any, exchange: Exchange, finished: dict[int, list[torch.Tensor]], waiting: dict[int, Posted]) -> None:
    """Run one rank up to the next request it has to wait for."""
    while True:
        try:
            posted = next(generator)
        except StopIteration as stop:
            finished[rank] = stop.value
            return
        seen = posted.waits > 0
        exchange.post(posted)
        if seen and posted.results is None:
            waiting[rank] = posted
            return


def _to_numpy(values: dict[str, torch.Tensor]) -> dict[str, Any]:
    def convert(x: torch.Tensor) -> np.ndarray:
        if x.dtype == torch.bfloat16 or "float8" in str(x.dtype):
            x = x.float()
        return x.numpy()

    return {name: convert(x) for name, x in values.items()}
