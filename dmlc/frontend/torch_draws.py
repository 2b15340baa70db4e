"""Eager PyTorch with the random numbers that a compiled program draws, so that the two can be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dmlc.interpret.prelude_nn import random_normal, random_uniform

NORMAL = ("randn", "randn_like", "normal", "normal_", "normal_functional")
UNIFORM = ("rand", "rand_like", "uniform", "uniform_", "bernoulli", "bernoulli_", "exponential", "exponential_", "randint", "randint_like", "randperm")


def draws(func: Any) -> str:
    """The name of an operator that draws numbers; empty for another, and for those that are not made of uniform or normal numbers."""
    parts = str(func).split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 and parts[1] in (*NORMAL, *UNIFORM) else ""


class Drawn(TorchDispatchMode):
    """Call k that draws takes its numbers from stream k of `seed` and `step`; nothing else changes."""

    def __init__(self, seed: int = 0, step: int = 0):
        super().__init__()
        self.seed, self.step, self.stream = torch.tensor(seed), torch.tensor(step), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = draws(func)
        if not name:
            return made
        given = {a.name: args[i] if i < len(args) else (kwargs or {}).get(a.name, a.default_value) for i, a in enumerate(func._schema.arguments)}
        found = _numbers(name, self._draw(name, made), made, given).to(made.dtype)
        self.stream += 1
        return made.copy_(found) if name.endswith("_") else found

    def _draw(self, name: str, like: torch.Tensor) -> torch.Tensor:
        draw = random_normal if name in NORMAL else random_uniform
        dtype = torch.float32 if name.startswith("bernoulli") else like.dtype if like.is_floating_point() else torch.float64
        return draw(self.seed, self.step, self.stream, like.shape, tuple(like.shape), (), dtype)


def _numbers(name: str, x: torch.Tensor, made: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    """What an operator makes of uniform or standard normal numbers `x`."""
    kind = name.removesuffix("_").removesuffix("_like").removesuffix("_functional")
    if kind == "normal":
        return x * given["std"] + given["mean"]
    if kind == "uniform":
        return x * (given["to"] - given["from"]) + given["from"]
    if kind == "bernoulli":
        return x < (given["p"] if given.get("p") is not None else given["self"])
    if kind == "exponential":
        return -torch.log1p(-x) / given["lambd"]
    if kind == "randint":
        low = given.get("low") or 0
        return (x * (given["high"] - low)).floor() + low
    return x.argsort(stable=True) if kind == "randperm" else x
