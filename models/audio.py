"""Networks on sound: a convolutional recogniser of mel frames, WaveNet, a temporal convolutional network, a Conformer."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dmlc.models.common import normal, seeded, token_ids


class MelNet(nn.Module):
    """Waveform [batch, samples] -> logits [batch, labels]: frames by a strided view, a window, a product with a cosine and sine table, mel bands, logarithm; then 1-D convolutions."""

    window: torch.Tensor
    cosine: torch.Tensor
    sine: torch.Tensor
    bands: torch.Tensor

    def __init__(self, frame: int, hop: int, bands: int, width: int, labels: int):
        super().__init__()
        self.frame, self.hop = frame, hop
        angle = torch.arange(frame // 2 + 1)[:, None] * torch.arange(frame) * (2 * torch.pi / frame)
        self.register_buffer("window", torch.hann_window(frame))
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())
        self.register_buffer("bands", torch.rand(bands, frame // 2 + 1, generator=torch.Generator().manual_seed(5)))
        self.convs = nn.Sequential(nn.Conv1d(bands, width, 5, 2, 2), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(width, width, 3, padding="same"), nn.ReLU())
        self.head = nn.Linear(2 * width, labels)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        frames = F.pad(wave, (self.frame // 2, self.frame // 2), mode="reflect").unfold(-1, self.frame, self.hop) * self.window
        power = (frames @ self.cosine.mT) ** 2 + (frames @ self.sine.mT) ** 2
        mel = torch.log(power @ self.bands.mT + 1e-3).transpose(1, 2)
        y = self.convs((mel - mel.mean(-1, keepdim=True)) / (mel.std(-1, keepdim=True) + 1e-2))
        return self.head(torch.cat([y.mean(-1), y.amax(-1)], -1))


class WaveNet(nn.Module):
    """Samples as classes i64 [batch, time] -> logits [batch, classes, time]: gated causal convolutions with doubling dilation (van den Oord et al. 2016, https://arxiv.org/abs/1609.03499)."""

    def __init__(self, classes: int, width: int, layers: int):
        super().__init__()
        self.table = nn.Embedding(classes, width)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(layers))
        self.back, self.skip = (nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers)) for _ in range(2))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, classes, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids).transpose(1, 2)
        total = torch.zeros_like(x)
        for i, (gated, back, skip) in enumerate(zip(self.gated, self.back, self.skip)):
            signal, gate = gated(F.pad(x, (2**i, 0))).chunk(2, 1)
            y = torch.tanh(signal) * torch.sigmoid(gate)
            total = total + skip(y)
            x = x + back(y)
        return self.head(total)


class Tcn(nn.Module):
    """x [batch, channels, time] -> y [batch, outputs]: causal residual blocks with weight-normed convolutions (Bai et al. 2018, https://arxiv.org/abs/1803.01271)."""

    def __init__(self, channels: int, width: int, levels: int, outputs: int):
        super().__init__()
        sizes = [channels, *[width] * levels]
        norm = nn.utils.parametrizations.weight_norm
        self.first = nn.ModuleList(norm(nn.Conv1d(a, width, 3, padding=2 * 2**i, dilation=2**i)) for i, a in enumerate(sizes[:-1]))
        self.second = nn.ModuleList(norm(nn.Conv1d(width, width, 3, padding=2 * 2**i, dilation=2**i)) for i in range(levels))
        self.around = nn.ModuleList(nn.Conv1d(a, width, 1) if a != width else nn.Identity() for a in sizes[:-1])
        self.head = nn.Linear(width, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, (first, second, around) in enumerate(zip(self.first, self.second, self.around)):
            y = F.relu(first(x)[..., : -2 * 2**i])
            x = F.relu(F.relu(second(y)[..., : -2 * 2**i]) + around(x))
        return self.head(x[:, :, -1])


class ConformerBlock(nn.Module):
    """Half a feed-forward layer, attention with relative positions, a convolution, the other half (Gulati et al. 2020, https://arxiv.org/abs/2005.08100)."""

    def __init__(self, width: int, heads: int, size: int):
        super().__init__()
        self.heads = heads
        self.before, self.after = (nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)) for _ in range(2))
        self.norm, self.projections, self.places, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.content, self.place = (nn.Parameter(torch.zeros(heads, width // heads)) for _ in range(2))
        self.conv_norm, self.widen, self.narrow = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depthwise, self.batch_norm, self.last = nn.Conv1d(width, width, size, padding=size // 2, groups=width), nn.BatchNorm1d(width), nn.LayerNorm(width)

    def attention(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Scores of content and of distance; the latter shifted from [t, 2t - 1] to [t, t] by padding and reshaping (Dai et al. 2019, https://arxiv.org/abs/1901.02860)."""
        b, t, width = x.shape
        query, key, value = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.projections(self.norm(x)).chunk(3, -1))
        distance = self.places(places).unflatten(-1, (self.heads, -1)).transpose(0, 1)
        by_place = (query + self.place[:, None]) @ distance.mT
        by_place = F.pad(by_place, (1, 0)).view(b, self.heads, 2 * t, t)[:, :, 1:].reshape(b, self.heads, t, 2 * t - 1)[..., :t]
        scores = ((query + self.content[:, None]) @ key.mT + by_place) / (width // self.heads) ** 0.5
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(b, t, width))

    def convolution(self, x: torch.Tensor) -> torch.Tensor:
        y = F.glu(self.widen(self.conv_norm(x).transpose(1, 2)), 1)
        return self.narrow(F.silu(self.batch_norm(self.depthwise(y)))).transpose(1, 2)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.before(x)
        x = x + self.attention(x, places)
        x = x + self.convolution(x)
        return self.last(x + 0.5 * self.after(x))


class Conformer(nn.Module):
    """Mel frames [batch, frames, bands] -> log probabilities [batch, frames/4, tokens], two strided convolutions before the blocks."""

    def __init__(self, bands: int, width: int, heads: int, blocks: int, tokens: int):
        super().__init__()
        self.width = width
        self.reduce = nn.Sequential(nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())
        self.project = nn.Linear(width * ((bands + 3) // 4), width)
        self.blocks, self.head = nn.ModuleList(ConformerBlock(width, heads, 5) for _ in range(blocks)), nn.Linear(width, tokens)

    def places(self, t: int) -> torch.Tensor:
        """Sines and cosines of the distances t - 1 … -(t - 1), [2 t - 1, width]."""
        distance = torch.arange(t - 1, -t, -1.0)[:, None]
        rate = torch.exp(torch.arange(0, self.width, 2) * (-torch.log(torch.tensor(10000.0)) / self.width))
        return torch.stack([torch.sin(distance * rate), torch.cos(distance * rate)], -1).flatten(1)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        x = self.project(self.reduce(mel[:, None]).transpose(1, 2).flatten(2))
        places = self.places(x.shape[1])
        for block in self.blocks:
            x = block(x, places)
        return self.head(x).log_softmax(-1)


def mel_net():
    """Frames of 16 samples every 8, 6 bands; 160 samples, batch 8."""
    return seeded(MelNet(16, 8, 6, 8, 5)), (normal(8, 160),)


def wavenet():
    """16 classes, width 8, dilations 1, 2, 4; 20 samples, batch 8."""
    return seeded(WaveNet(16, 8, 3)), (token_ids(8, 20, 16),)


def tcn():
    """Three channels, width 8, two levels; 14 steps, batch 8."""
    return seeded(Tcn(3, 8, 2, 4)), (normal(8, 3, 14),)


def conformer():
    """One block of width 12 with 3 heads, 9 tokens; 26 frames of 10 bands, batch 4."""
    return seeded(Conformer(10, 12, 3, 1, 9)), (normal(4, 26, 10),)
