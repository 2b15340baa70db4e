"""A perceptron: linear layers with GELU between them."""

from __future__ import annotations

import itertools

import torch

from dmlc.models.common import normal, seeded


class Mlp(torch.nn.Module):
    """x [batch, widths[0]] -> [batch, widths[-1]]."""

    def __init__(self, widths: tuple[int, ...]):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.nn.functional.gelu(layer(x))
        return self.layers[-1](x)


def build(widths: tuple[int, ...], batch: int):
    return seeded(Mlp(widths)), (normal(batch, widths[0]),)


def make():
    """Three layers of 256 -> 1024 -> 1024 -> 256, batch 8."""
    return build((256, 1024, 1024, 256), 8)


def tiny():
    """Two layers, widths 24 -> 37 -> 10 (37 divides by nothing), batch 6."""
    return build((24, 37, 10), 6)
