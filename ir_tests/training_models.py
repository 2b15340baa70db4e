"""Small models for the training tests, as functions that `dmlc compile` could be given: (module, arguments, keyword arguments)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 16
CLASSES = 5
TIME = 4
IGNORED = -100


class Perceptron(nn.Module):
    """x [batch, 6] -> logits [batch, 5]."""

    def __init__(self, dropout: float):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(6, 9), nn.Linear(9, CLASSES), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.drop(F.gelu(self.up(x))))


class Layer(nn.Module):
    """Attention and two linear layers on residual paths, each behind a norm; x [batch, time, 8]."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.drop = nn.Linear(width, 12), nn.Linear(12, width), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (y.reshape(b, t, 2, d // 2).transpose(1, 2) for y in self.qkv(self.norms[0](x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.drop(self.out(a))
        return x + self.drop(self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh")))


class Transformer(nn.Module):
    """ids [batch, time] -> logits [batch, time, 11]; the head is the embedding's own weight."""

    def __init__(self, dropout: float, layers: int = 2, width: int = 8, words: int = 11):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(TIME, width)
        self.layers = nn.ModuleList(Layer(width, dropout) for _ in range(layers))
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(dropout)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Cnn(nn.Module):
    """x [batch, 2, 6, 6] -> logits [batch, 5], with batch norm and a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(6)])
        self.head = nn.Linear(6 * 3 * 3, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norms[0](self.first(x))), 3, 1, 1)
        x = F.relu(self.norms[1](self.second(x)))
        return self.head(x.flatten(1))


class Weighted(Perceptron):
    """Samples are scaled by a table that has a row for each of the batch, as exporters leave position ids expanded to the batch."""

    def __init__(self, dropout: float):
        super().__init__(dropout)
        self.register_buffer("scales", 1 + torch.arange(BATCH) / 8, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * self.scales[:, None].expand(-1, 6))  # type: ignore[index]


def seeded(make: Any) -> nn.Module:
    torch.manual_seed(3)
    return make().train()


def features(n: int = BATCH) -> dict[str, torch.Tensor]:
    return {"x": torch.zeros(n, 6)}


def perceptron():
    return seeded(lambda: Perceptron(0.25)), (), features()


def perceptron_plain():
    return seeded(lambda: Perceptron(0.0)), (), features()


def perceptron_weighted():
    return seeded(lambda: Weighted(0.0)), (), features()


def transformer():
    return seeded(lambda: Transformer(0.1)), (), {"ids": torch.zeros(BATCH, TIME, dtype=torch.int64)}


def transformer_plain():
    return seeded(lambda: Transformer(0.0)), (), {"ids": torch.zeros(BATCH, TIME, dtype=torch.int64)}


def cnn():
    return seeded(Cnn), (), {"x": torch.zeros(BATCH, 2, 6, 6)}
