"""Classifiers of handwritten digits, on the real images that scikit-learn carries with it: nothing is downloaded.

The data set (https://archive.ics.uci.edu/dataset/80, CC BY 4.0) has 1797 images of 8 x 8 pixels. Labels are classes, so train with
`--loss cross-entropy --data dmlc.models.digits:train_data --eval-data dmlc.models.digits:test_data`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dmlc.models.common import seeded, without_notices

TRAINING = 1437  # images; the other 360 are for testing


class Digits(torch.utils.data.Dataset):
    """Samples (x f32 [1, 8, 8] with mean 0 and deviation 1 over the training images, target i64 [])."""

    def __init__(self, training: bool):
        from sklearn.datasets import load_digits

        found: Any = load_digits()
        order = np.random.RandomState(0).permutation(len(found.target))  # a stream that NumPy promises never to change
        images = found.images[order].astype(np.float32)
        known = images[:TRAINING]
        part = slice(0, TRAINING) if training else slice(TRAINING, None)
        self.images = torch.from_numpy((images - known.mean()) / known.std())[part, None]
        self.targets = torch.from_numpy(found.target[order].astype(np.int64))[part]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.targets[index]


def train_data() -> Digits:
    """1437 images; the split is the same for ever."""
    return Digits(training=True)


def test_data() -> Digits:
    """360 images, none of them in `train_data`."""
    return Digits(training=False)


class Perceptron(nn.Module):
    """x [batch, 1, 8, 8] -> logits [batch, 10]."""

    def __init__(self, hidden: int):
        super().__init__()
        self.up, self.down = nn.Linear(64, hidden), nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x.flatten(1))))


class Cnn(nn.Module):
    """x [batch, 1, 8, 8] -> logits [batch, 10]; two convolutions, a pool, one linear layer."""

    def __init__(self, width: int, batch_norm: bool, dropout: float):
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1, bias=not batch_norm)
        self.second = nn.Conv2d(width, 2 * width, 3, padding=1, bias=not batch_norm)
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) if batch_norm else nn.Identity() for c in (width, 2 * width))
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.head = nn.Linear(2 * width * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norms[0](self.first(x)))
        x = torch.relu(self.norms[1](self.second(x)))
        x = torch.nn.functional.max_pool2d(x, 2)
        return self.head(self.dropout(x.flatten(1)))


def example(batch: int) -> torch.Tensor:
    """The first training images, f32 [batch, 1, 8, 8]."""
    return train_data().images[:batch].clone()


def build_perceptron(hidden: int, batch: int):
    return seeded(Perceptron(hidden)), (example(batch),)


def build_cnn(width: int, batch: int, batch_norm: bool = True, dropout: float = 0.0):
    return seeded(Cnn(width, batch_norm, dropout)), (example(batch),)


def perceptron():
    """64 -> 64 -> 10, batch 64; about 97 % after 200 steps of AdamW."""
    return build_perceptron(64, 64)


def cnn():
    """16 and 32 channels, batch norm, dropout 0.3, batch 64; about 99 % after 200 steps of AdamW with learning rate 3e-3."""
    return build_cnn(16, 64, dropout=0.3)


def plain_cnn():
    """`cnn` without batch norm and dropout: a step that has no state but the weights."""
    return build_cnn(16, 64, batch_norm=False)


def tiny_perceptron():
    """Hidden width 37, which divides by nothing; batch 6."""
    return build_perceptron(37, 6)


def tiny():
    """The CNN with 5 and 10 channels, batch norm, no dropout; batch 6."""
    return build_cnn(5, 6)


def write_onnx(path: str | Path, make: Callable = plain_cnn) -> Path:
    """Export the model of builder `make` in evaluation mode, input `x` and output `logits`; the batch is free."""
    module, args = make()
    free = {"x": {0: torch.export.Dim("batch", min=1, max=4096)}}
    names = {"input_names": ["x"], "output_names": ["logits"]}
    with without_notices():
        program = torch.onnx.export(module, args, dynamo=True, dynamic_shapes=free, verbose=False, **names)
    assert program is not None
    program.save(str(path))
    return Path(path)
