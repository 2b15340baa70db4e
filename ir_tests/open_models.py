"""Models whose sizes are open, for tests: PyTorch ones with dynamic shapes as `dmlc compile` takes them, and how to run one at given sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.export import Dim

from dmlc import driver
from dmlc.driver import Compiled, Options
from dmlc.interpret.run import run
from dmlc.models import bert, gpt2
from dmlc.models.common import seeded
from dmlc.passmanager.check import relative_error, seeded_inputs


def bert_classifier():
    module, example = bert.build(32, 1, 4, 60, 97, 9, 6)
    batch, seq = Dim("batch", max=64), Dim("seq", max=32)
    return module, example, {}, {"input_ids": {0: batch, 1: seq}, "attention_mask": {0: batch, 1: seq}}


def gpt_decoder():
    module, example = gpt2.build(32, 1, 4, 60, 97, 9, 6, positions=32)
    return module, example, {}, {"input_ids": {0: Dim("batch", max=64), 1: Dim("seq", max=32)}}


class ConvNet(torch.nn.Module):
    """x [n, 3, h, w] -> logits [n, 5] and what the pool leaves [n, 8, …]."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.BatchNorm2d(6)
        self.second, self.head = torch.nn.Conv2d(6, 8, 3, stride=2, padding=1), torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor):
        x = torch.relu(self.second(torch.relu(self.norm(self.first(x)))))
        x = torch.nn.functional.max_pool2d(x, 2)
        return self.head(x.mean((2, 3))), x


def conv_net():
    free = {0: Dim("batch", max=64), 2: Dim("height", min=8, max=128), 3: Dim("width", min=8, max=128)}
    return seeded(ConvNet()), (torch.randn(4, 3, 12, 20),), {}, {"x": free}


class Halves(torch.nn.Module):
    """x [n, 2 t] as pairs, times what is counted along t."""

    def forward(self, x: torch.Tensor):
        pairs = x.reshape(x.shape[0], x.shape[1] // 2, 2)
        return pairs.sum(2) * torch.arange(pairs.shape[1]), x.var(1)


def halves():
    return Halves(), (torch.randn(4, 10),), {}, {"x": {0: Dim("batch", max=64), 1: 2 * Dim("half", max=50)}}


class Automatic(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor):
        return torch.softmax(x @ y.transpose(1, 2), -1) * x.shape[1]


def automatic():
    """Sizes that torch.export finds out itself: those of x and y that have to agree are one."""
    free = {0: Dim.AUTO, 1: Dim.AUTO}
    return Automatic(), (torch.randn(4, 5, 8), torch.randn(4, 7, 8)), {}, {"x": free, "y": free}


@cache
def compiled(name: str, plan: str, target: str = "cpu", **like: int) -> Compiled:
    """A model of this file, or a file, compiled for two ranks with its sizes left open."""
    source = name if "." in name else f"{__file__}:{name}"
    options = Options(devices=2, plan=plan, target=target, open_sizes=True, like=like)
    return driver.compile_model(driver.load(source, options), options)


def inputs_at(program: Compiled, numbers: Mapping[str, int], seed: int = 0) -> dict[str, Any]:
    """Seeded inputs of given sizes; a mask lets at least its first token through."""
    made = seeded_inputs(program.module, seed, numbers)
    for name, x in made.items():
        if "mask" in name:
            x[:] = np.arange(x.shape[1]) < x.shape[1] - np.arange(x.shape[0])[:, None] % x.shape[1]
    return {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in made.items()}


def difference(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> float:
    """The largest difference of any output, of scale."""
    assert {n: x.shape for n, x in wanted.items()} == {n: found[n].shape for n in wanted}
    return max(relative_error(x, found[name]) for name, x in wanted.items())


def off_at(program: Compiled, numbers: Mapping[str, int]) -> float:
    """How far the interpreted ranks are from the original model at these sizes; pads hold NaN where a rank may not read them."""
    inputs = inputs_at(program, numbers)
    assert program.loaded.reference is not None
    return difference(program.loaded.reference(inputs), run(program.module, inputs, weights=program.weights, poison_pads=True))
