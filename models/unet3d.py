"""A 3-D U-Net (Çiçek et al. 2016, https://arxiv.org/abs/1606.06650) that segments generated phantoms: bright ellipsoids with a core, in noise.

Train with `--loss dmlc.models.unet3d:loss --data dmlc.models.unet3d:train_data`; `dice` is the metric.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import nn

from dmlc.models.common import normal, seeded

CLASSES = 3  # background, shell, core


# ---------------------------------------------------------------- data


class Phantoms(torch.utils.data.Dataset):
    """Samples (x f32 [1, size, size, size], target i64 [size, size, size]), a function of seed and index alone."""

    def __init__(self, count: int, size: int, seed: int, noise: float = 0.3):
        self.count, self.size, self.seed, self.noise = count, size, seed, noise

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        rng = np.random.default_rng([self.seed, index])
        distance = ellipsoid(self.size, rng)
        target = (distance < 1).astype(np.int64) + (distance < rng.uniform(0.2, 0.5))
        image = np.array((0.0, 1.0, 2.0))[target] + rng.normal(0, self.noise, target.shape)
        return torch.from_numpy(image[None].astype(np.float32)), torch.from_numpy(target)


def ellipsoid(size: int, rng: np.random.Generator) -> np.ndarray:
    """For each voxel, (distance from the centre)² in units of a random rotated ellipsoid's half axes, [size, size, size]."""
    centre = rng.uniform(0.35, 0.65, 3) * size
    half_axes = rng.uniform(0.2, 0.35, 3) * size
    rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    grid = np.stack(np.meshgrid(*[np.arange(size)] * 3, indexing="ij"), -1) - centre
    return ((grid @ rotation / half_axes) ** 2).sum(-1)


def train_data() -> Phantoms:
    """256 phantoms of 16³ voxels."""
    return Phantoms(256, 16, seed=1)


def test_data() -> Phantoms:
    return Phantoms(32, 16, seed=2)


# ---------------------------------------------------------------- model


def norm(kind: str, channels: int) -> nn.Module:
    """`kind` is group (4 groups at most) or batch."""
    return nn.BatchNorm3d(channels) if kind == "batch" else nn.GroupNorm(min(4, channels), channels)


class DoubleConv(nn.Module):
    """Two convolutions of 3³, each with norm and ReLU; [batch, inputs, d, h, w] -> [batch, outputs, d, h, w]."""

    def __init__(self, inputs: int, outputs: int, kind: str):
        super().__init__()
        channels = (inputs, outputs, outputs)
        self.convs = nn.ModuleList(nn.Conv3d(a, b, 3, padding=1, bias=False) for a, b in itertools.pairwise(channels))
        self.norms = nn.ModuleList(norm(kind, c) for c in channels[1:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm_ in zip(self.convs, self.norms):
            x = torch.relu(norm_(conv(x)))
        return x


class Up(nn.Module):
    """Doubles each spatial size: a transposed convolution, or nearest neighbours and a convolution of 1³."""

    def __init__(self, inputs: int, outputs: int, transposed: bool):
        super().__init__()
        self.transposed = transposed
        self.conv = nn.ConvTranspose3d(inputs, outputs, 2, 2) if transposed else nn.Conv3d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x if self.transposed else torch.nn.functional.interpolate(x, scale_factor=2, mode="nearest"))


class UNet(nn.Module):
    """x [batch, 1, d, h, w] -> logits [batch, classes, d, h, w]; d, h, w divide by 2^levels. Level i has width * 2^i channels."""

    def __init__(self, width: int, levels: int, kind: str, transposed: bool, classes: int = CLASSES):
        super().__init__()
        channels = [width * 2**i for i in range(levels + 1)]
        self.down = nn.ModuleList(DoubleConv(a, b, kind) for a, b in itertools.pairwise([1, *channels]))
        self.up = nn.ModuleList(Up(2 * c, c, transposed) for c in channels[:-1])
        self.join = nn.ModuleList(DoubleConv(2 * c, c, kind) for c in channels[:-1])
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for block in self.down[:-1]:
            x = block(x)
            skipped.append(x)
            x = torch.nn.functional.max_pool3d(x, 2)
        x = self.down[-1](x)
        for level in reversed(range(len(skipped))):
            x = self.join[level](torch.cat([skipped[level], self.up[level](x)], 1))
        return self.head(x)


# ---------------------------------------------------------------- loss and metric


def overlap(share: torch.Tensor, target: torch.Tensor, smoothing: float = 1.0) -> torch.Tensor:
    """Dice coefficient 2|A∩B| / (|A| + |B|) of each sample and class, [batch, classes]; share of a class in each voxel [batch, classes, d, h, w].

    `smoothing` is added above and below: a class that is nowhere, and is found nowhere, has coefficient 1.
    """
    truth = nn.functional.one_hot(target, share.shape[1]).movedim(-1, 1).to(share.dtype)
    common = (share * truth).sum((2, 3, 4))
    return (2 * common + smoothing) / (share.sum((2, 3, 4)) + truth.sum((2, 3, 4)) + smoothing)


def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """1 - soft Dice (Milletari et al. 2016, https://arxiv.org/abs/1606.04797) of what is not background, plus the voxels' cross entropy."""
    soft = overlap(logits.softmax(1), target)[:, 1:]
    return (1 - soft).mean() + nn.functional.cross_entropy(logits, target)


def dice(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean Dice coefficient of what is not background, each voxel given to its likeliest class; the metric."""
    found = nn.functional.one_hot(logits.argmax(1), logits.shape[1]).movedim(-1, 1).to(logits.dtype)
    return overlap(found, target)[:, 1:].mean()


class WithLoss(nn.Module):
    """x, target -> `loss`."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss(self.model(x), target)


def build(width: int, levels: int, size: int, batch: int, kind: str = "group", transposed: bool = True):
    """`kind` of norm: group or batch; transposed convolutions or nearest neighbours on the way up."""
    return seeded(UNet(width, levels, kind, transposed)), (normal(batch, 1, size, size, size),)


def make():
    """Widths 8, 16, 32, group norms, transposed convolutions; volumes of 16³, batch 4."""
    return build(8, 2, 16, 4)


def batch_norm():
    """`make` with batch norms and nearest-neighbour upsampling."""
    return build(8, 2, 16, 4, "batch", transposed=False)


def tiny():
    """Widths 4, 8; group norms, transposed convolutions; volumes of 8³, batch 4."""
    return build(4, 1, 8, 4)


def tiny_batch_norm():
    """Widths 3, 6; batch norms, nearest-neighbour upsampling; volumes of 8³, batch 4."""
    return build(3, 1, 8, 4, "batch", transposed=False)


def tiny_with_loss():
    """`tiny` that takes targets and returns its loss."""
    model, (x,) = tiny()
    return WithLoss(model).eval(), (x, torch.stack([Phantoms(len(x), x.shape[-1], seed=1)[i][1] for i in range(len(x))]))
