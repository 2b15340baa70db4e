"""Recurrent networks on nn.RNN, nn.GRU and nn.LSTM: language models, a tagger that reads both ways, a decoder that is given its state."""

from __future__ import annotations

import torch
from torch import nn

from dmlc.models.common import normal, seeded, token_ids

KINDS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class LanguageModel(nn.Module):
    """ids i64 [batch, time] -> logits [batch, time, vocabulary]; `layers` recurrent layers, the table tied to the head where sizes allow."""

    def __init__(self, kind: str, vocabulary: int, width: int, layers: int, **options):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.recurrent = KINDS[kind](width, width, layers, batch_first=True, **options)
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.table(ids))
        return self.head(hidden)


class Tagger(nn.Module):
    """x [time, batch, features] -> (logits [time, batch, tags], last hidden states of both directions [batch, 2 width])."""

    def __init__(self, kind: str, features: int, width: int, layers: int, tags: int):
        super().__init__()
        self.recurrent = KINDS[kind](features, width, layers, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, state = self.recurrent(x)
        last = state[0] if isinstance(state, tuple) else state
        return self.head(hidden), torch.cat([last[-2], last[-1]], -1)


class Stateful(nn.Module):
    """x [batch, time, features] and the states before -> (y [batch, time, outputs], states after). LSTM outputs are projected to `outputs` values."""

    def __init__(self, features: int, width: int, outputs: int):
        super().__init__()
        self.lstm = nn.LSTM(features, width, 1, batch_first=True, proj_size=outputs)
        self.gru = nn.GRU(outputs, outputs, 2, batch_first=True, bias=False)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, gated: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, (hidden, cell) = self.lstm(x, (hidden, cell))
        y, gated = self.gru(y, gated)
        return y, hidden, cell, gated


class Cells(nn.Module):
    """x [batch, time, features] -> y [batch, width]: nn.LSTMCell and nn.GRUCell stepped by the model's own loop."""

    def __init__(self, features: int, width: int):
        super().__init__()
        self.first, self.second, self.third = nn.LSTMCell(features, width), nn.GRUCell(width, width), nn.RNNCell(width, width, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = g = r = x.new_zeros(x.shape[0], self.first.hidden_size)
        for t in range(x.shape[1]):
            h, c = self.first(x[:, t], (h, c))
            g = self.second(h, g)
            r = self.third(g, r)
        return r


def lstm_lm():
    """Two LSTM layers of width 16, vocabulary 29, batch 8, 12 tokens."""
    return seeded(LanguageModel("lstm", 29, 16, 2)), (token_ids(8, 12, 29),)


def gru_lm():
    """Two GRU layers of width 16, vocabulary 29, batch 8, 6 tokens."""
    return seeded(LanguageModel("gru", 29, 16, 2)), (token_ids(8, 6, 29),)


def rnn_lm():
    """Two layers of ReLU units, width 16, vocabulary 29, batch 6, 7 tokens."""
    return seeded(LanguageModel("rnn", 29, 16, 2, nonlinearity="relu")), (token_ids(6, 7, 29),)


def lstm_tagger():
    """Two bidirectional LSTM layers, 5 features, width 8, 4 tags; 6 steps, batch 8."""
    return seeded(Tagger("lstm", 5, 8, 2, 4)), (normal(6, 8, 5),)


def gru_tagger():
    """One bidirectional GRU layer; 10 steps, batch 8."""
    return seeded(Tagger("gru", 5, 8, 1, 4)), (normal(10, 8, 5),)


def stateful():
    """Batch 8, 5 steps, 7 features, width 12, 6 outputs."""
    states = normal(1, 8, 6, seed=2), normal(1, 8, 12, seed=3), normal(2, 8, 6, seed=4)
    return seeded(Stateful(7, 12, 6)), (normal(8, 5, 7), *states)


def cells():
    """Batch 8, 4 steps, 5 features, width 8."""
    return seeded(Cells(5, 8)), (normal(8, 4, 5),)
