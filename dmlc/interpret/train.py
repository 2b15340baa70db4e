"""Training in the interpreter: a step function run again and again, what it updates fed back.

It takes the whole-batch function that the passes begin with and the per-rank program that they end with alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dmlc.interpret.arguments import Arguments, Promote, global_type, poison, result_name, signature_sharding, to_torch
from dmlc.interpret.evaluate import DTYPES, Evaluator, promoted
from dmlc.interpret.run import is_per_rank, joined, run_ranks
from dmlc.ir.core import BlockArgument, Module, Op
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh

HELD = ("param", "buffer", "const", "state")
HYPERS = {"weight_decay": 0.0, "max_norm": float("inf")}  # what they are where a step does not say
GARBAGE = 3.0  # what padded rows of a batch hold where they are not poisoned


class Trainer:
    """A training program and the values it updates: `state` maps the names of parameters, buffers and optimizer state to global tensors.

    `module` is the whole-batch step function or the per-rank program. `weights` holds initial values, what it lacks is drawn from `seed`, which is
    also the seed of dropout. `promote="f64"` computes every float as float64. `poison_pads` writes NaN into all padding.
    """

    def __init__(self, module: Module, weights: Any = None, seed: int = 0, promote: str | None = None, poison_pads: bool = False):
        self.module, self.seed, self.promote, self.poison_pads = module, seed, promote, poison_pads
        promotion: Promote = promoted if promote == "f64" else lambda d: d
        self._dtype = promotion
        self._known: dict[Op, Evaluator] = {}
        arguments = Arguments(module, {}, weights, seed, promotion)
        self.state: dict[str, torch.Tensor] = {}
        for arg in module.main.args:
            if arg.attrs.get("dmlc.role") in HELD:
                self.state[arg.name] = self._initial(arg) if "dmlc.init" in arg.attrs else arguments.value(arg).clone()

    def _initial(self, arg: BlockArgument) -> torch.Tensor:
        """`dmlc.init` is a number for every element, or "param": a copy of the parameter that the state belongs to."""
        init, type_ = arg.attrs["dmlc.init"], global_type(arg.tensor, arg.attrs)
        dtype = DTYPES[self._dtype(type_.dtype)]
        if init == "param":
            return self.state[arg.attrs["dmlc.of"]].to(dtype, copy=True)
        return torch.full([int(n) for n in type_.shape], init, dtype=dtype)

    def step(self, inputs: Mapping[str, Any], microbatches: int | None = None, **hypers: Any) -> dict[str, Any]:
        """One step on global arrays of n samples; gives the results that update nothing (`loss`, `grad_norm`, …) as numbers.

        n may be less than the compiled batch, and `microbatches` other than the compiled number, in the per-rank program only.
        Raises `DmlcError` where a batch does not fit, where a hyper-parameter is missing, and where copies of a result differ between ranks.
        """
        with torch.no_grad():
            given = {**self.state, **self._hypers(hypers), **self._batch(inputs, microbatches)}
            mesh, outputs = run_ranks(self.module, given, self.seed, self.promote, None, self.poison_pads, known=self._known)
            return self._take(mesh, outputs)

    def _hypers(self, hypers: Mapping[str, Any]) -> dict[str, Any]:
        names = [a.name for a in self.module.main.args if a.attrs.get("dmlc.role") == "hyper"]
        values = {**{n: v for n, v in HYPERS.items() if n in names}, **hypers}
        if missing := [n for n in names if n not in values]:
            raise DmlcError(f"a step needs {', '.join(missing)}")
        return {n: torch.tensor(float(v), dtype=torch.float64) if n in names else v for n, v in values.items()}

    # -------------------------------------------------- the batch

    def _batch(self, inputs: Mapping[str, Any], microbatches: int | None) -> dict[str, Any]:
        """The inputs as the program takes them, with its sizes."""
        args = {a.name: a for a in self.module.main.args}
        found: dict[str, Any] = {}
        samples = 0
        for name, array in inputs.items():
            arg = args.get(name)
            if arg is None or "dmlc.micro" not in arg.attrs:
                found[name] = array
                continue
            x = to_torch(array, self._dtype(arg.tensor.dtype))
            samples = x.shape[arg.attrs.get("dmlc.batch_dim", 0)]
            found[name] = self._parts(arg, x, self._count(microbatches, arg))
        sizes = {"batch_size": samples, "microbatches": self._count(microbatches, None)}
        return {**found, **{n: v for n, v in sizes.items() if n in args}}

    def _count(self, microbatches: int | None, arg: BlockArgument | None) -> int:
        if microbatches is not None:
            return microbatches
        micro = [a for a in ([arg] if arg is not None else self.module.main.args) if "dmlc.micro" in a.attrs]
        return int(global_type(micro[0].tensor, micro[0].attrs).shape[0]) if micro else 1

    def _parts(self, arg: BlockArgument, x: torch.Tensor, count: int) -> torch.Tensor:
        """[…, n, …] as [count, …, rows of all ranks, …], in order, the last rows filled up."""
        dim = arg.attrs.get("dmlc.batch_dim", 0)
        rows = int(global_type(arg.tensor, arg.attrs).shape[dim + 1])
        if x.shape[dim] > count * rows:
            raise DmlcError(f"%{arg.name} has {x.shape[dim]} samples; {count} microbatches of {rows} take {count * rows}")
        shape = list(x.shape)
        shape[dim] = count * rows - x.shape[dim]
        poisoned = self.poison_pads and "dmlc.pad" not in arg.attrs
        fill = poison(x.dtype) if poisoned else GARBAGE if x.dtype.is_floating_point else 0
        x = torch.cat([x, torch.full(shape, fill, dtype=x.dtype)], dim)
        return x.unflatten(dim, (count, rows)).movedim(dim, 0)

    # -------------------------------------------------- what comes back

    def _take(self, mesh: Mesh, outputs: list[list[torch.Tensor]]) -> dict[str, Any]:
        function, numbers = self.module.main, {}
        for i, attrs in enumerate(function.result_attrs):
            parts = [o[i] for o in outputs]
            value = joined(function, i, parts, mesh)
            if is_per_rank(self.module):
                _check_copies(result_name(function, i), value, parts, mesh, attrs)
            if "dmlc.updates" in attrs:
                self.state[attrs["dmlc.updates"]] = value
            else:
                numbers[result_name(function, i)] = value.item() if value.ndim == 0 else value
        return numbers


def _check_copies(name: str, value: torch.Tensor, parts: list[torch.Tensor], mesh: Mesh, attrs: Mapping[str, Any]) -> None:
    """Every rank's part is, bit for bit, the part of the whole that it stands for."""
    sharding = signature_sharding(attrs)
    for rank, part in enumerate(parts):
        mine = value
        for d, axes in enumerate(sharding.dims if sharding is not None else ()):
            if axes:
                start, valid = mesh.window(value.shape[d], axes, mesh.coordinates(rank), sharding.grain(d))  # type: ignore[union-attr]
                mine, part = mine.narrow(d, min(start, value.shape[d]), valid), part.narrow(d, 0, valid)
        if not torch.equal(mine.nan_to_num(), part.nan_to_num()):
            raise DmlcError(f"rank {rank} holds another '{name}' than the ranks before it")
