"""Architectures as rows of data: small models with random weights that show what the compiler takes (`tools/architectures.py`).

To add one: a line `Architecture(...)` in the list ROWS of a file `models/catalogue_*.py` (found by its name), which ends with

    globals().update(builders(ROWS))

so that `dmlc compile dmlc.models.catalogue_NAME:ROW` takes it too. `build` returns (module, args[, kwargs]); its first argument is one of
`attention`, where that is not empty. Weights must be seeded, dropout 0, dim 0 of every input the batch, the outputs tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = ("decoder", "encoder", "encoder-decoder", "mixture of experts", "state space", "vision", "vision and text", "audio", "detection", "segmentation", "recurrent", "recommender", "graph", "generative", "control flow")  # fmt: skip
LOSSES = {"ce": "cross-entropy", "mse": "mse", "bce": "bce", "squares": "dmlc.models.catalogue:squares", "own": ""}


@dataclass(frozen=True)
class Architecture:
    """One row. `name` is a Python identifier. `tied`: several parameters share their storage. `attention`: the implementations that the class
    allows, the usual one first. `loss`: how it is trained, a key of LOSSES (`own`: the model returns its loss); empty where it is not.
    `tests`: what of it the test suite runs, of forward (`eager`: with the second kind of attention), backward and emitted. `plan`: what it is
    compiled with on several devices where the tool's own does not fit, as for a model that has no batch. `half`: its weights are in bf16, so
    that eager itself is inexact."""

    name: str
    kind: str
    build: Callable[..., tuple]
    tied: bool = False
    attention: tuple[str, ...] = ()
    loss: str = ""
    tests: tuple[str, ...] = ()
    plan: str = ""
    half: bool = False

    def __post_init__(self) -> None:
        assert self.kind in KINDS and self.loss in ("", *LOSSES) and self.name.isidentifier(), self

    @property
    def variants(self) -> dict[str, str]:
        """Name of a builder -> the attention it has: the row's own name for the usual one, with its own behind it for the others."""
        return {self.name if i == 0 else f"{self.name}_{kind}": kind for i, kind in enumerate(self.attention)} or {self.name: ""}


def builders(rows: Sequence[Architecture]) -> dict[str, Callable[[], tuple]]:
    """The functions without arguments that `dmlc compile` takes, by name."""
    return {name: functools.partial(row.build, *([kind] if kind else [])) for row in rows for name, kind in row.variants.items()}


def squares(output: Any, target: Any) -> Any:
    """A loss for models with several results: the mean square of each's distance from `target`, summed."""
    import torch.utils._pytree as pytree

    return sum(((leaf.float() - target.float().mean()) ** 2).mean() for leaf in pytree.tree_leaves(output) if leaf.is_floating_point())
