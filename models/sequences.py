"""Sequence models in plain PyTorch: nn.Transformer, a Llama with complex rotations, a mixture of experts dispatched by index, a selective state space."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from dmlc.models.common import normal, seeded, token_ids


class Translator(nn.Module):
    """Source i64 [batch, s] with its length in each row, what is written so far i64 [batch, t] -> logits [batch, t, vocabulary], by nn.Transformer (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762)."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, norm_first: bool):
        super().__init__()
        self.table, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(32, width))
        self.transformer = nn.Transformer(width, heads, layers, layers, 2 * width, 0.0, "gelu" if norm_first else "relu", batch_first=True, norm_first=norm_first)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
        padding = torch.arange(source.shape[1]) >= lengths[:, None]
        causal = nn.Transformer.generate_square_subsequent_mask(written.shape[1])
        x, y = (self.table(ids) + self.places[: ids.shape[1]] for ids in (source, written))
        return self.head(self.transformer(x, y, tgt_mask=causal, src_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_is_causal=True))


class AttentionPool(nn.Module):
    """x [batch, t, other] -> (y [batch, 1, width], weights [batch, 1, t]): nn.MultiheadAttention with keys and values of other sizes, and a learned row each."""

    def __init__(self, width: int, other: int, heads: int):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(1, 1, width))
        self.attention = nn.MultiheadAttention(width, heads, kdim=other, vdim=other, add_bias_kv=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.attention(self.query.expand(x.shape[0], -1, -1), x, x, need_weights=True)


def rotations(size: int, length: int, base: float = 10000.0) -> torch.Tensor:
    """Unit complex numbers c64 [length, size / 2] by the angle of place and pair."""
    angle = torch.outer(torch.arange(length), 1.0 / base ** (torch.arange(0, size, 2)[: size // 2].float() / size))
    return torch.polar(torch.ones_like(angle), angle)


def rotated(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """x [batch, t, heads, size] with neighbouring values as complex numbers, turned."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * by[None, :, None]).flatten(3).type_as(x)


class LlamaBlock(nn.Module):
    """Grouped attention with complex rotations, gated feed-forward layer (Touvron et al. 2023, https://arxiv.org/abs/2302.13971)."""

    def __init__(self, width: int, heads: int, groups: int):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.query, self.key, self.value = (nn.Linear(width, n * self.size, bias=False) for n in (heads, groups, groups))
        self.out, self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((width, width), (width, 2 * width), (width, 2 * width), (2 * width, width)))
        self.first, self.second = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)

    def forward(self, x: torch.Tensor, by: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        query, key, value = (p(y).unflatten(-1, (-1, self.size)) for p in (self.query, self.key, self.value))
        query, key = rotated(query, by).transpose(1, 2), rotated(key, by).transpose(1, 2)
        key, value = (v.repeat_interleave(self.heads // self.groups, 1) for v in (key, value.transpose(1, 2)))
        scores = (query @ key.mT / math.sqrt(self.size) + mask).float().softmax(-1).type_as(query)
        x = x + self.out((scores @ value).transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """ids i64 [batch, t] -> logits [batch, t, vocabulary]. The rotations are a complex buffer, or made anew in each call."""

    rotations: torch.Tensor | None

    def __init__(self, vocabulary: int, width: int, heads: int, groups: int, layers: int, kept: bool):
        super().__init__()
        self.size, self.table = width // heads, nn.Embedding(vocabulary, width)
        self.blocks, self.norm = nn.ModuleList(LlamaBlock(width, heads, groups) for _ in range(layers)), nn.RMSNorm(width, 1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("rotations", rotations(self.size, 32) if kept else None, persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        t = ids.shape[1]
        by = self.rotations[:t] if self.rotations is not None else rotations(self.size, t)
        mask = torch.full((t, t), float("-inf")).triu(1)
        x = self.table(ids)
        for block in self.blocks:
            x = block(x, by, mask)
        return self.head(self.norm(x))


class Experts(nn.Module):
    """Tokens [n, width] -> [n, width]: each goes to its two likeliest experts, which have `capacity` places; what finds none is dropped (Lepikhin et al. 2020, https://arxiv.org/abs/2006.16668).

    With `dense` every expert computes every token and a one-hot mask chooses; else tokens are written to places and read back by index.
    """

    def __init__(self, width: int, experts: int, capacity: int, dense: bool):
        super().__init__()
        self.experts, self.capacity, self.dense = experts, capacity, dense
        self.gate = nn.Linear(width, experts, bias=False)
        self.up, self.down = nn.Parameter(torch.zeros(experts, width, 2 * width)), nn.Parameter(torch.zeros(experts, 2 * width, width))

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """[experts, places, width] -> the same."""
        return torch.bmm(F.gelu(torch.bmm(x, self.up)), self.down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        if self.dense:
            mask = (F.one_hot(chosen, self.experts) * weights.unsqueeze(-1)).sum(1)
            every = self.compute(x.expand(self.experts, -1, -1))
            return torch.einsum("ne,end->nd", mask, every)
        expert, weight = chosen.flatten(), weights.flatten()
        taken = F.one_hot(expert, self.experts)
        place = ((taken.cumsum(0) - 1) * taken).sum(1)
        fits = place < self.capacity
        at = torch.where(fits, expert * self.capacity + place, self.experts * self.capacity)
        token = torch.arange(len(x)).repeat_interleave(2)
        places = x.new_zeros(self.experts * self.capacity + 1, x.shape[1])
        places = places.index_copy(0, at, x[token])
        done = self.compute(places[:-1].view(self.experts, self.capacity, -1)).flatten(0, 1)
        done = torch.cat([done, done.new_zeros(1, done.shape[1])])
        return torch.zeros_like(x).index_add(0, token, done[at] * (weight * fits)[:, None])


class MixtureModel(nn.Module):
    """ids i64 [batch, t] -> logits [batch, t, vocabulary]: one layer of attention, one of experts."""

    def __init__(self, vocabulary: int, width: int, experts: int, capacity: int, dense: bool):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.experts, self.head = Experts(width, experts, capacity, dense), nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.experts(self.second(x).flatten(0, 1)).unflatten(0, ids.shape)
        return self.head(x)


class StateSpace(nn.Module):
    """x [batch, t, width] -> the same: a recurrence whose rates depend on the input (Gu and Dao 2023, https://arxiv.org/abs/2312.00752), written as a loop or by cumulative sums."""

    def __init__(self, width: int, states: int, loop: bool):
        super().__init__()
        self.loop, self.states = loop, states
        self.widen, self.out = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.conv = nn.Conv1d(2 * width, 2 * width, 3, groups=2 * width, padding=2)
        self.select, self.step = nn.Linear(2 * width, 2 * states + 1, bias=False), nn.Linear(1, 2 * width)
        self.rates, self.around = nn.Parameter(torch.zeros(2 * width, states)), nn.Parameter(torch.zeros(2 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        signal, gate = self.widen(x).chunk(2, -1)
        signal = F.silu(self.conv(signal.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, into, out = self.select(signal).split([1, self.states, self.states], -1)
        step = F.softplus(self.step(step))
        decay = step.unsqueeze(-1) * -torch.exp(self.rates)  # [batch, t, 2 width, states]
        fed = (step * signal).unsqueeze(-1) * into.unsqueeze(2)
        states = self.by_loop(decay, fed) if self.loop else self.by_sums(decay, fed)
        y = (states * out.unsqueeze(2)).sum(-1) + self.around * signal
        return self.out(y * F.silu(gate))

    def by_loop(self, decay: torch.Tensor, fed: torch.Tensor) -> torch.Tensor:
        state, states = torch.zeros_like(fed[:, 0]), []
        for t in range(fed.shape[1]):
            state = state * decay[:, t].exp() + fed[:, t]
            states.append(state)
        return torch.stack(states, 1)

    def by_sums(self, decay: torch.Tensor, fed: torch.Tensor) -> torch.Tensor:
        """Sum over s <= t of fed_s exp(decay_(s+1) + … + decay_t), as differences of cumulative sums under a causal mask."""
        total = decay.cumsum(1)
        between = total.unsqueeze(2) - total.unsqueeze(1)
        causal = torch.ones(decay.shape[1], decay.shape[1], dtype=torch.bool).tril()
        kept = between.masked_fill(~causal[None, :, :, None, None], -torch.inf).exp()
        return torch.einsum("btsdn,bsdn->btdn", kept, fed)


class StateSpaceModel(nn.Module):
    """ids i64 [batch, t] -> logits [batch, t, vocabulary]."""

    def __init__(self, vocabulary: int, width: int, states: int, layers: int, loop: bool):
        super().__init__()
        self.table, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.table.weight
        self.layers, self.norms = nn.ModuleList(StateSpace(width, states, loop) for _ in range(layers)), nn.ModuleList(nn.RMSNorm(width) for _ in range(layers + 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for layer, norm in zip(self.layers, self.norms):
            x = x + layer(norm(x))
        return self.head(self.norms[-1](x))


def translator():
    """One layer each way, norms after, width 16, 2 heads, vocabulary 31; 7 and 5 tokens, batch 4."""
    return seeded(Translator(31, 16, 2, 1, False)), (token_ids(4, 7, 31), torch.tensor([7, 4, 5, 6]), token_ids(4, 5, 31, seed=2))


def translator_norm_first():
    """`translator` with norms before and GELU, two layers each way."""
    return seeded(Translator(31, 16, 2, 2, True)), (token_ids(4, 7, 31), torch.tensor([7, 4, 5, 6]), token_ids(4, 5, 31, seed=2))


def attention_pool():
    """Width 8, inputs of 6 features, 2 heads; 5 steps, batch 8."""
    return seeded(AttentionPool(8, 6, 2)), (normal(8, 5, 6),)


def llama_complex():
    """Two blocks of width 32, 4 heads in 2 groups; the rotations are a complex buffer."""
    return seeded(Llama(29, 32, 4, 2, 2, True)), (token_ids(8, 6, 29),)


def llama_polar():
    """One block; the rotations are made in the call."""
    return seeded(Llama(29, 32, 4, 2, 1, False)), (token_ids(8, 6, 29),)


def experts():
    """Four experts with six places each for 24 tokens, written and read by index."""
    return seeded(MixtureModel(29, 16, 4, 10, False)), (token_ids(4, 6, 29),)


def experts_dense():
    """`experts` with a one-hot mask over what every expert computed."""
    return seeded(MixtureModel(29, 16, 4, 10, True)), (token_ids(4, 6, 29),)


def state_space():
    """Two layers of width 8 with 4 states, by cumulative sums; 6 tokens, batch 8."""
    return seeded(StateSpaceModel(29, 8, 4, 2, False)), (token_ids(8, 6, 29),)


def state_space_loop():
    """One layer, the recurrence a loop over 6 steps."""
    return seeded(StateSpaceModel(29, 8, 4, 1, True)), (token_ids(8, 6, 29),)
