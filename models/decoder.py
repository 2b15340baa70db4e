"""A decoder in Llama's shape as plain PyTorch: RMS norm, rotary positions, grouped-query attention, a gated MLP, input and output embeddings apart.

The modules return their loss. `make_7b` and `make_70b` have the sizes of Llama-7B and Llama-2-70B and lie on the meta device: shapes
without bytes, so that plans and simulated steps of models of any size need no more memory than those of a small one.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dmlc.models.common import seeded, token_ids

IGNORED = -100  # the target of a position that has none


def rotary_tables(sequence: int, size: int, base: float = 10000.0) -> tuple[torch.Tensor, torch.Tensor]:
    """(cosine, sine) of each position's angles, f32 [sequence, size]; the two halves of the last dim are equal."""
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(sequence, dtype=torch.float32), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """x [batch, heads, sequence, size], turned by its position (Su et al., RoFormer)."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Layer(nn.Module):
    """x [batch, sequence, hidden] -> the same shape; attention and a gated MLP, each after a norm and with a residual around."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, mlp: int):
        super().__init__()
        self.size = hidden // heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.query, self.project = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.key, self.value = (nn.Linear(hidden, kv_heads * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(hidden, mlp, bias=False) for _ in range(2))
        self.down = nn.Linear(mlp, hidden, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.attention_norm(x), cosine, sine)
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def attend(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        query, key, value = (layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=key.shape[1] != query.shape[1])
        return self.project(y.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    """input_ids, target i64 [batch, sequence] -> the mean cross entropy over the targets that are not `IGNORED`."""

    def __init__(self, hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, vocabulary: int, sequence: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, kv_heads, mlp) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden, eps=1e-5), nn.Linear(hidden, vocabulary, bias=False)
        cosine, sine = rotary_tables(sequence, hidden // heads)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, input_ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def build(hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, vocabulary: int, sequence: int, batch: int, device: str = "meta"):
    """On the meta device unless another is asked for; token ids and targets are random elsewhere."""
    with torch.device(device):
        model = Decoder(hidden, layers, heads, kv_heads, mlp, vocabulary, sequence)
    if device != "meta":
        seeded(model)
    ids, target = (token_ids(batch, sequence, vocabulary, seed).to(device) for seed in (1, 2))
    return model, (ids, target)


def tiny(layers: int = 2, device: str = "cpu"):
    """Hidden 64, 2 layers, 8 heads over 2 key/value heads, MLP 100, vocabulary 257, sequence 12, batch 8."""
    return build(64, layers, 8, 2, 100, 257, 12, 8, device)


def make_7b(layers: int = 32, batch: int = 64, sequence: int = 2048):
    """Llama-7B: hidden 4096, 32 heads, MLP 11008, vocabulary 32000."""
    return build(4096, layers, 32, 32, 11008, 32000, sequence, batch)


def make_70b(layers: int = 80, batch: int = 128, sequence: int = 4096):
    """Llama-2-70B: hidden 8192, 64 heads over 8 key/value heads, MLP 28672, vocabulary 32000."""
    return build(8192, layers, 64, 8, 28672, 32000, sequence, batch)
