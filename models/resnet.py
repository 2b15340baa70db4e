"""Residual networks in plain PyTorch (He et al. 2015, https://arxiv.org/abs/1512.03385), with basic and bottleneck blocks."""

from __future__ import annotations

import torch
from torch import nn

from dmlc.models.common import normal, seeded, token_ids


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """Convolutions of the given (size, stride, channels) with batch norm, ReLU between them, and the identity around."""

    def __init__(self, inputs: int, layers: tuple[tuple[int, int, int], ...]):
        super().__init__()
        channels = [inputs, *(c for _, _, c in layers)]
        self.convs = nn.ModuleList(_conv(a, c, size, stride) for a, (size, stride, c) in zip(channels, layers))
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in channels[1:])
        stride = max(s for _, s, _ in layers)
        same = stride == 1 and channels[-1] == inputs
        self.shortcut = nn.Identity() if same else nn.Sequential(_conv(inputs, channels[-1], 1, stride), nn.BatchNorm2d(channels[-1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            y = norm(conv(y))
            if i + 1 < len(self.convs):
                y = torch.relu(y)
        return torch.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """x [batch, 3, height, width] -> logits [batch, labels]."""

    def __init__(self, depths: tuple[int, ...], width: int, bottleneck: bool, labels: int):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
        stages, channels = [], width
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                stride, inner = 2 if i and j == 0 else 1, width * 2**i
                layers = ((1, 1, inner), (3, stride, inner), (1, 1, 4 * inner)) if bottleneck else ((3, stride, inner), (3, 1, inner))
                blocks.append(Block(channels, layers))
                channels = layers[-1][2]
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.flatten(self.pool(self.stages(self.stem(x))), 1))


class WithLoss(nn.Module):
    """x [batch, 3, height, width], target i64 [batch] -> the mean cross entropy."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(x), target)


def with_loss(depths: tuple[int, ...], width: int, image: int, batch: int, labels: int):
    """Basic blocks; a fixed batch with random targets, and the loss is the model's result."""
    return seeded(WithLoss(ResNet(depths, width, False, labels))), (normal(batch, 3, image, image), token_ids(batch, 1, labels).flatten())


def build(depths: tuple[int, ...], width: int, bottleneck: bool, image: int, batch: int, labels: int):
    """The batch is free: it is a symbolic size of the exported program."""
    free = {"x": {0: torch.export.Dim("batch", min=1, max=4096)}}
    return seeded(ResNet(depths, width, bottleneck, labels)), (normal(batch, 3, image, image),), {}, free


def make():
    """ResNet-50 (bottlenecks 3, 4, 6, 3), images of 64 x 64, free batch (8 in the example)."""
    return build((3, 4, 6, 3), 64, True, 64, 8, 1000)


def small():
    """ResNet-18 (basic blocks 2, 2, 2, 2), images of 64 x 64, free batch (8 in the example)."""
    return build((2, 2, 2, 2), 64, False, 64, 8, 1000)


def tiny():
    """Two stages of one basic block, width 12, images of 20 x 20, free batch (6 in the example)."""
    return build((1, 1), 12, False, 20, 6, 7)
