"""PyTorch models with branches and loops that depend on their data; a function each that gives (module, arguments)."""

from __future__ import annotations

import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

BATCH, TIME, WIDTH, CLASSES = 8, 10, 6, 5


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def seeded(module: nn.Module) -> nn.Module:
    for i, p in enumerate(module.parameters()):
        p.data = 0.5 * normal(*p.shape, seed=100 + i)
    return module


class Gated(nn.Module):
    """Which of two experts sees the batch depends on it; a branch in the branch, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def inner(h: torch.Tensor) -> torch.Tensor:
            return torch.cond(h.mean() > 0.1, lambda h: self.second(h).tanh(), lambda h: self.third(h).sigmoid() * h, (h,))

        h = self.head(x)
        y, scale = torch.cond(x.sum() > 0, lambda h: (self.first(h).relu(), h * 2), lambda h: (inner(h), h - 1), (h,))
        return self.out(y + scale)


class Recurrent(nn.Module):
    """A state over the steps of x [batch, time, features], with a branch in every step that the state decides."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.hidden, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(h: torch.Tensor, row: torch.Tensor):
            h = torch.tanh(self.inputs(row) + self.hidden(h))
            h = torch.cond(h.sum() > 0, lambda h: h * 1.5, lambda h: h + self.hidden(h), (h,))
            return h, h * 2

        last, rows = scan(step, x[:, 0] * 0, x.transpose(0, 1), dim=0)
        return self.out(last + rows.mean(0))


class Layer(nn.Module):
    """The same without the branch: samples do not meet."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.hidden, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(h: torch.Tensor, row: torch.Tensor):
            h = torch.tanh(self.inputs(row) + self.hidden(h))
            return h, h * row

        last, rows = scan(step, x[:, 0] * 0, x.transpose(0, 1), dim=0, reverse=True)
        return self.out(last + rows.mean(0))


class Mapped(nn.Module):
    """The same function of every row of x [rows, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return map_rows(lambda row: self.linear(row).softmax(-1), x)


class Converging(nn.Module):
    """A fixed point: until a step moves nothing much, or thirty times; a loop of known length inside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def going(n: torch.Tensor, moved: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (n < 30) & (moved > 1e-2)

        def step(n: torch.Tensor, moved: torch.Tensor, y: torch.Tensor):
            (new,), _ = scan(lambda c, r: ([torch.tanh(0.3 * self.linear(c[0]) + r)], r * 1), [y], torch.stack([x, 0.5 * x]))
            return n + 1, (new - y).abs().max(), new

        n, _, y = while_loop(going, step, (torch.zeros((), dtype=torch.int64), torch.ones(()), torch.zeros_like(x)))
        return y, n


def gated():
    return seeded(Gated()), (normal(BATCH, WIDTH),)


def recurrent():
    return seeded(Recurrent()), (normal(BATCH, TIME, WIDTH),)


def layer():
    return seeded(Layer()), (normal(BATCH, TIME, WIDTH),)


def mapped():
    return seeded(Mapped()), (normal(BATCH, WIDTH),)


def converging():
    return seeded(Converging()), (normal(BATCH, WIDTH),)
