"""Image classifiers: MobileNet V2 and V3, EfficientNet, DenseNet, Inception, VGG, ResNeXt, MLP-Mixer, small enough to compile in seconds.

Each is built from its paper's blocks; widths and depths are a fraction of the published ones. All take x [batch, 3, height, width]
and give logits [batch, labels].
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dmlc.models.common import normal, seeded

LABELS = 7


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1, activation: type[nn.Module] | None = nn.ReLU) -> nn.Sequential:
    """Convolution that keeps the size (over the stride), batch norm, activation."""
    layers = [nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class SqueezeExcite(nn.Module):
    """Channels scaled by gates made from their means (Hu et al. 2017, https://arxiv.org/abs/1709.01507)."""

    def __init__(self, channels: int, inner: int, activation: type[nn.Module], gate: type[nn.Module]):
        super().__init__()
        self.gates = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), activation(), nn.Conv2d(inner, channels, 1), gate())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gates(x)


class InvertedResidual(nn.Module):
    """Widen, filter each channel by itself, gate, narrow; around it the identity where sizes agree."""

    def __init__(self, inputs: int, outputs: int, widening: int, size: int, stride: int, activation: type[nn.Module], gate: type[nn.Module] | None):
        super().__init__()
        wide = inputs * widening
        layers = [conv(inputs, wide, 1, activation=activation)] if widening > 1 else []
        layers.append(conv(wide, wide, size, stride, wide, activation))
        if gate is not None:
            layers.append(SqueezeExcite(wide, max(wide // 4, 4), nn.SiLU if activation is nn.SiLU else nn.ReLU, gate))  # type: ignore[arg-type]
        self.layers = nn.Sequential(*layers, conv(wide, outputs, 1, activation=None))
        self.around = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.around else self.layers(x)


class MobileNet(nn.Module):
    """Stem, inverted residuals (outputs, widening, kernel size, stride, activation, gate), head."""

    def __init__(self, blocks: tuple, activation: type[nn.Module]):
        super().__init__()
        channels, body = 8, []
        for outputs, widening, size, stride, inner, gate in blocks:
            body.append(InvertedResidual(channels, outputs, widening, size, stride, inner, gate))
            channels = outputs
        self.stem, self.body, self.last = conv(3, 8, 3, 2, activation=activation), nn.Sequential(*body), conv(channels, 32, 1, activation=activation)
        self.head = nn.Linear(32, LABELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.last(self.body(self.stem(x))).mean((2, 3)))


class DenseNet(nn.Module):
    """Each layer reads all before it in its block (Huang et al. 2016, https://arxiv.org/abs/1608.06993)."""

    def __init__(self, depths: tuple[int, ...], growth: int, width: int):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.MaxPool2d(3, 2, 1))
        self.blocks, self.transitions, channels = nn.ModuleList(), nn.ModuleList(), width
        for i, depth in enumerate(depths):
            self.blocks.append(nn.ModuleList(self.layer(channels + j * growth, growth) for j in range(depth)))
            channels += depth * growth
            last = i == len(depths) - 1
            down = [] if last else [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            self.transitions.append(nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True), *down))
            channels = channels if last else channels // 2
        self.head = nn.Linear(channels, LABELS)

    @staticmethod
    def layer(inputs: int, growth: int) -> nn.Sequential:
        norm = nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)
        return nn.Sequential(*norm, nn.Conv2d(inputs, 4 * growth, 1, bias=False), nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block, transition in zip(self.blocks, self.transitions):
            found = [x]
            for layer in block:  # type: ignore[attr-defined]
                found.append(layer(torch.cat(found, 1)))
            x = transition(torch.cat(found, 1))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Inception(nn.Module):
    """Four branches beside each other (Szegedy et al. 2014, https://arxiv.org/abs/1409.4842), with filters of 1x7 and 7x1 (the third version's)."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.one, self.three = conv(inputs, width, 1), nn.Sequential(conv(inputs, width, 1), conv(width, width, 3))
        self.long = nn.Sequential(nn.Conv2d(inputs, width, (1, 7), padding=(0, 3)), nn.Conv2d(width, width, (7, 1), padding=(3, 0)), nn.ReLU())
        self.pool = nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), conv(inputs, width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.three(x), self.long(x), self.pool(x)], 1)


class InceptionNet(nn.Module):
    """Two such blocks, pools that round up, local response norms."""

    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 5, 2, padding="valid"), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), nn.LocalResponseNorm(3))
        self.body = nn.Sequential(Inception(width, width), nn.MaxPool2d(3, 2, ceil_mode=True), Inception(4 * width, width))
        self.head = nn.Linear(4 * width, LABELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(x)).mean((-2, -1)))


class Vgg(nn.Module):
    """Convolutions and pools; adaptive pooling to 3 x 3 from any size; three linear layers."""

    def __init__(self, widths: tuple[int, ...], pooled: int = 3):
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in zip((3, *widths), widths):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2)]
        self.features, self.pool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d((pooled, pooled))
        size = widths[-1] * pooled**2
        self.classifier = nn.Sequential(nn.Linear(size, 32), nn.ReLU(True), nn.Linear(32, 32), nn.ReLU(True), nn.Linear(32, LABELS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


class ResNeXt(nn.Module):
    """Residual blocks whose middle convolution has groups (Xie et al. 2016, https://arxiv.org/abs/1611.05431)."""

    def __init__(self, width: int, groups: int, blocks: int):
        super().__init__()
        self.stem = conv(3, width)
        self.blocks = nn.ModuleList(nn.Sequential(conv(width, width, 1), conv(width, width, 3, groups=groups), conv(width, width, 1, activation=None)) for _ in range(blocks))
        self.head = nn.Linear(width, LABELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = F.relu(x + block(x), inplace=True)
        return self.head(F.adaptive_max_pool2d(x, 1).flatten(1))


class MixerBlock(nn.Module):
    """A perceptron over the patches of each channel, then one over the channels of each patch."""

    def __init__(self, patches: int, width: int):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.within = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.second(x))


class Mixer(nn.Module):
    """MLP-Mixer (Tolstikhin et al. 2021, https://arxiv.org/abs/2105.01601)."""

    def __init__(self, image: int, patch: int, width: int, blocks: int):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(*(MixerBlock((image // patch) ** 2, width) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, LABELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def mobilenet_v2():
    """Depthwise convolutions, ReLU6 (Sandler et al. 2018, https://arxiv.org/abs/1801.04381)."""
    blocks = ((8, 1, 3, 1, nn.ReLU6, None), (12, 3, 3, 2, nn.ReLU6, None), (12, 3, 3, 1, nn.ReLU6, None))
    return seeded(MobileNet(blocks, nn.ReLU6)), (normal(8, 3, 20, 20),)


def mobilenet_v3():
    """Hard swish and hard sigmoid gates (Howard et al. 2019, https://arxiv.org/abs/1905.02244)."""
    blocks = ((8, 1, 3, 2, nn.ReLU, nn.Hardsigmoid), (12, 3, 5, 1, nn.Hardswish, nn.Hardsigmoid), (12, 2, 5, 1, nn.Hardswish, nn.Hardsigmoid))
    return seeded(MobileNet(blocks, nn.Hardswish)), (normal(8, 3, 20, 20),)


def efficientnet():
    """SiLU and sigmoid gates (Tan and Le 2019, https://arxiv.org/abs/1905.11946)."""
    blocks = ((8, 1, 3, 1, nn.SiLU, nn.Sigmoid), (12, 4, 3, 2, nn.SiLU, nn.Sigmoid), (12, 4, 5, 1, nn.SiLU, nn.Sigmoid))
    return seeded(MobileNet(blocks, nn.SiLU)), (normal(8, 3, 20, 20),)


def densenet():
    """Blocks of 2 and 3 layers, growth 4."""
    return seeded(DenseNet((2, 3), 4, 8)), (normal(8, 3, 16, 16),)


def inception():
    """Width 6; images of 23 x 23."""
    return seeded(InceptionNet(6)), (normal(8, 3, 23, 23),)


def vgg():
    """Three convolutions; images of 40 x 40, whose last map of 5 x 5 is pooled to 3 x 3."""
    return seeded(Vgg((6, 8, 10))), (normal(8, 3, 40, 40),)


def resnext():
    """Four groups of 4 channels, two blocks."""
    return seeded(ResNeXt(16, 4, 2)), (normal(8, 3, 12, 12),)


def mixer():
    """Images of 16 x 16 in patches of 4 x 4, width 16, two blocks."""
    return seeded(Mixer(16, 4, 16, 2)), (normal(8, 3, 16, 16),)
