"""A small GPT (learned positions, tied input and output embeddings) that learns, character by character, sentences of a generated language.

The modules return their loss; `logits` and `tiny_logits` return logits, for `--loss cross-entropy`. Data: `train_data`, `test_data`.
"""

from __future__ import annotations

import random

import torch
from torch import nn

from dmlc.models.common import seeded, token_ids

ALPHABET = "\n abcdefghijklmnopqrstuvwxyz.,"
IGNORED = -100  # the target of a position that has none
NOUNS = ("cat", "dog", "bird", "child", "farmer", "river", "stone", "garden")
ADJECTIVES = ("small", "old", "quiet", "red", "happy", "cold")
VERBS = ("see", "follow", "like", "find", "hear", "remember")
PLACES = ("under the tree", "in the rain", "near the house", "at night")


# ---------------------------------------------------------------- text


def noun_phrase(choose: random.Random) -> tuple[str, bool]:
    """(words, whether plural)."""
    plural = choose.random() < 0.5
    adjective = choose.choice(ADJECTIVES) + " " if choose.random() < 0.5 else ""
    return f"{'some' if plural else 'the'} {adjective}{choose.choice(NOUNS)}{'s' if plural else ''}", plural


def sentence(choose: random.Random) -> str:
    """Subject, verb that agrees with it, object, sometimes a place, sometimes a second clause."""
    subject, plural = noun_phrase(choose)
    ending = "" if plural else "s"
    text = f"{subject} {choose.choice(VERBS)}{ending} {noun_phrase(choose)[0]}"
    if choose.random() < 0.3:
        text += " " + choose.choice(PLACES)
    if choose.random() < 0.2:
        text += f", and {choose.choice(VERBS)}{ending} {noun_phrase(choose)[0]}"
    return text + "."


class Sentences(torch.utils.data.Dataset):
    """Samples (input_ids, target), i64 [sequence] each: whole sentences, the target one character ahead.

    The last sentence that would not fit is left out; the positions after the text hold 0 and have no target (`IGNORED`).
    """

    def __init__(self, count: int, sequence: int, seed: int):
        self.count, self.sequence, self.seed = count, sequence, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        codes = [ALPHABET.index(c) for c in self.text(index)]
        missing = self.sequence - (len(codes) - 1)
        return torch.tensor(codes[:-1] + [0] * missing), torch.tensor(codes[1:] + [IGNORED] * missing)

    def text(self, index: int) -> str:
        """The sentences of one sample, at most sequence + 1 characters, each with a line end before it and one after the last."""
        choose, text = random.Random(f"{self.seed}/{index}"), "\n"
        while len(text) < self.sequence:
            following = text + sentence(choose) + "\n"
            if len(following) > self.sequence + 1:
                break
            text = following
        return text


def train_data() -> Sentences:
    """8192 samples of 96 characters."""
    return Sentences(8192, 96, seed=1)


def test_data() -> Sentences:
    return Sentences(512, 96, seed=2)


# ---------------------------------------------------------------- model


class Block(nn.Module):
    """x [batch, sequence, hidden] -> the same shape; attention and a feed-forward network, each after a norm and with a residual around."""

    def __init__(self, hidden: int, heads: int, mlp: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value, self.project = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, mlp), nn.Linear(mlp, hidden)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attend(self.attention_norm(x)))
        y = torch.nn.functional.gelu(self.up(self.mlp_norm(x)), approximate="tanh")
        return x + self.dropout(self.down(y))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        y = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(y.transpose(1, 2).flatten(2))


class Gpt(nn.Module):
    """input_ids i64 [batch, sequence] -> logits [batch, sequence, vocabulary]."""

    def __init__(self, hidden: int, layers: int, heads: int, mlp: int, vocabulary: int, positions: int, dropout: float = 0.0):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, mlp, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class WithLoss(nn.Module):
    """input_ids, target i64 [batch, sequence] -> the mean cross entropy over the targets that are not `IGNORED`."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def build(hidden: int, layers: int, heads: int, mlp: int, vocabulary: int, sequence: int, batch: int, dropout: float = 0.0, loss: bool = True):
    """Token ids and, with `loss`, targets are random here."""
    model = Gpt(hidden, layers, heads, mlp, vocabulary, sequence, dropout)
    ids = token_ids(batch, sequence, vocabulary)
    if not loss:
        return seeded(model), (ids,)
    return seeded(WithLoss(model)), (ids, token_ids(batch, sequence, vocabulary, seed=2))


def on_text(hidden: int, layers: int, heads: int, sequence: int, batch: int, dropout: float, loss: bool):
    """For the generated language; the example is its first samples."""
    module, args = build(hidden, layers, heads, 4 * hidden, len(ALPHABET), sequence, batch, dropout, loss)
    columns = zip(*(Sentences(batch, sequence, seed=1)[i] for i in range(batch)))
    return module, tuple(torch.stack(column) for column in columns)[: len(args)]


def make():
    """Hidden 128, 4 layers, 4 heads, 96 characters, batch 16; returns its loss."""
    return on_text(128, 4, 4, 96, 16, 0.0, loss=True)


def logits():
    """`make` without its loss."""
    return on_text(128, 4, 4, 96, 16, 0.0, loss=False)


def tiny():
    """Hidden 32, 2 layers, 4 heads, 48 characters, batch 8, dropout 0.1; returns its loss."""
    return on_text(32, 2, 4, 48, 8, 0.1, loss=True)


def tiny_logits():
    """`tiny` without its loss and without dropout."""
    return on_text(32, 2, 4, 48, 8, 0.0, loss=False)


def thirty_million():
    """GPT-2's proportions with 30 million parameters: hidden 512, 6 layers, 8 heads, vocabulary 20480; sequence 64, batch 4; returns its loss."""
    return build(512, 6, 8, 2048, 20480, 64, 4)
