"""Networks that make pictures: a variational autoencoder that draws its noise, one that is given it, a DCGAN generator, a super-resolver, a diffusion step."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from dmlc.models.common import normal, seeded, token_ids


class Vae(nn.Module):
    """x [batch, 1, 8, 8] in 0..1 -> (x again, evidence bound): mean and deviation of a code, a draw from it (Kingma and Welling 2013, https://arxiv.org/abs/1312.6114)."""

    def __init__(self, width: int, code: int):
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ELU(), nn.Linear(width, 2 * code))
        self.decode = nn.Sequential(nn.Linear(code, width), nn.ELU(), nn.Linear(width, 64), nn.Unflatten(1, (1, 8, 8)))

    def noise(self, mean: torch.Tensor) -> torch.Tensor:
        return torch.randn_like(mean)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encode(x).chunk(2, 1)
        logits = self.decode(mean + torch.exp(0.5 * log_variance) * self.noise(mean))
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
        fit = F.binary_cross_entropy_with_logits(logits, x, reduction="none").flatten(1).sum(1)
        return logits.sigmoid(), (fit + divergence).mean()


class Autoencoder(nn.Module):
    """x [batch, channels, h, w] -> x again: strided convolutions down, transposed ones up, and instance norms."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(channels, width, 3, 2, 1), nn.InstanceNorm2d(width, affine=True), nn.LeakyReLU(0.2), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.Tanh())
        self.up = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 3, 2, 1, output_padding=1), nn.InstanceNorm2d(width), nn.PReLU(width), nn.ConvTranspose2d(width, channels, 4, 2, 1), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(x))


class Generator(nn.Module):
    """Noise [batch, code, 1, 1] -> pictures [batch, 3, 16, 16] (Radford et al. 2015, https://arxiv.org/abs/1511.06434)."""

    def __init__(self, code: int, width: int):
        super().__init__()
        layers: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(((code, 2 * width), (2 * width, width))):
            layers += [nn.ConvTranspose2d(inputs, outputs, 4, 2 if i else 1, 1 if i else 0, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, code: torch.Tensor) -> torch.Tensor:
        return self.layers(code)


class SuperResolution(nn.Module):
    """x [batch, 3, h, w] -> [batch, 3, 2h, 2w]: convolutions, a pixel shuffle, added to the picture enlarged (Shi et al. 2016, https://arxiv.org/abs/1609.05158)."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, width, 5, padding=2), nn.Conv2d(width, width, 3, padding=1, padding_mode="reflect"), nn.Conv2d(width, 12, 3, padding=1)
        self.prelu = nn.PReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(self.prelu(self.second(F.softplus(self.first(x)))))
        return F.pixel_shuffle(y, 2) + F.interpolate(x, scale_factor=2, mode="bicubic")


class Denoiser(nn.Module):
    """Noisy pictures [batch, channels, h, w] and their times i64 [batch] -> the noise: group norms, attention over pixels, times as sines (Ho et al. 2020, https://arxiv.org/abs/2006.11239)."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.first, self.second, self.last = nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, channels, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        self.projections, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        rate = torch.exp(torch.arange(self.width // 2) * (-math.log(10000) / (self.width // 2)))
        angle = time[:, None].float() * rate[None]
        shift = self.time(torch.cat([angle.sin(), angle.cos()], -1))
        x = self.first(x)
        x = x + self.second(F.silu(self.norms[0](x) + shift[:, :, None, None]))
        query, key, value = (y.flatten(2).transpose(1, 2)[:, None] for y in self.projections(self.norms[1](x)).chunk(3, 1))
        y = F.scaled_dot_product_attention(query, key, value)[:, 0].transpose(1, 2).reshape(x.shape)
        return self.last(F.silu(self.norms[2](x + self.out(y))))


def vae():
    """Width 24, codes of 6 values, batch 8; it draws its noise, which depends on the seed."""
    return seeded(Vae(24, 6)), (normal(8, 1, 8, 8).sigmoid(),)


def autoencoder():
    """Width 6; pictures of 3 x 12 x 12, batch 8."""
    return seeded(Autoencoder(3, 6)), (normal(8, 3, 12, 12),)


def dcgan():
    """Codes of 10 values, width 6, batch 8."""
    return seeded(Generator(10, 6)), (normal(8, 10, 1, 1),)


def super_resolution():
    """Width 8; pictures of 10 x 9, batch 8."""
    return seeded(SuperResolution(8)), (normal(8, 3, 10, 9),)


def denoiser():
    """Width 16; pictures of 2 x 8 x 8, batch 8."""
    return seeded(Denoiser(2, 16)), (normal(8, 2, 8, 8), token_ids(1, 8, 1000).flatten())
