"""Networks that say something of every pixel: U-Net, DeepLab, a stacked hourglass, and two detectors with boxes (RetinaNet, FCOS)."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F

from dmlc.models.common import normal, seeded

CLASSES = 5


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Convolution that keeps the size (over the stride), batch norm, ReLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2 * dilation, dilation, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class Unet(nn.Module):
    """x [batch, 3, height, width] -> logits [batch, classes, height, width] (Ronneberger et al. 2015, https://arxiv.org/abs/1505.04597).

    The way up is a transposed convolution, or interpolation (`mode`) and a convolution; maps of odd sizes are padded to the skipped one's.
    """

    def __init__(self, width: int, levels: int, mode: str = ""):
        super().__init__()
        channels = [width * 2**i for i in range(levels + 1)]
        self.mode = mode
        self.down = nn.ModuleList(nn.Sequential(conv(a, b), conv(b, b)) for a, b in itertools.pairwise([3, *channels]))
        self.up = nn.ModuleList(nn.Conv2d(2 * c, c, 1) if mode else nn.ConvTranspose2d(2 * c, c, 2, 2) for c in channels[:-1])
        self.join = nn.ModuleList(conv(2 * c, c) for c in channels[:-1])
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for block in self.down[:-1]:
            x = block(x)
            skipped.append(x)
            x = F.max_pool2d(x, 2)
        x = self.down[-1](x)
        for level in reversed(range(len(skipped))):
            x = self.join[level](torch.cat([skipped[level], self.raised(x, skipped[level], level)], 1))
        return self.head(x)

    def raised(self, x: torch.Tensor, like: torch.Tensor, level: int) -> torch.Tensor:
        if self.mode:
            return self.up[level](F.interpolate(x, size=like.shape[-2:], mode=self.mode, align_corners=True if "linear" in self.mode else None))
        x = self.up[level](x)
        return F.pad(x, (0, like.shape[-1] - x.shape[-1], 0, like.shape[-2] - x.shape[-2]))


class DeepLab(nn.Module):
    """Dilated convolutions beside each other and the image's mean (Chen et al. 2017, https://arxiv.org/abs/1706.05587); logits at the image's size."""

    def __init__(self, width: int, rates: tuple[int, ...]):
        super().__init__()
        self.backbone = nn.Sequential(conv(3, width, 3, 2), conv(width, width, 3, 2), conv(width, width, dilation=2))
        self.branches = nn.ModuleList([conv(width, width, 1), *(conv(width, width, dilation=r) for r in rates)])
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1), nn.ReLU())
        self.head = nn.Sequential(conv((len(rates) + 2) * width, width, 1), nn.Conv2d(width, CLASSES, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.backbone(x)
        whole = F.interpolate(self.whole(y), size=y.shape[-2:], mode="bilinear", align_corners=False)
        y = self.head(torch.cat([*(branch(y) for branch in self.branches), whole], 1))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class Hourglass(nn.Module):
    """Half the size again and again, then back with what was skipped (Newell et al. 2016, https://arxiv.org/abs/1603.06937)."""

    def __init__(self, depth: int, width: int):
        super().__init__()
        self.skip, self.low, self.out = conv(width, width), conv(width, width), conv(width, width)
        self.inner = Hourglass(depth - 1, width) if depth > 1 else conv(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = self.out(self.inner(self.low(F.max_pool2d(x, 2))))
        return self.skip(x) + F.interpolate(low, scale_factor=2, mode="nearest")


class Keypoints(nn.Module):
    """x [batch, 3, h, w] -> (heat maps [batch, points, h/2, w/2] of the last stack, expected places [batch, points, 2] by a softmax over each map)."""

    def __init__(self, points: int, width: int, depth: int, stacks: int):
        super().__init__()
        self.stem, self.stacks = conv(3, width, 5, 2), nn.ModuleList(Hourglass(depth, width) for _ in range(stacks))
        self.maps, self.back = nn.ModuleList(nn.Conv2d(width, points, 1) for _ in range(stacks)), nn.ModuleList(nn.Conv2d(points, width, 1) for _ in range(stacks))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.stem(x)
        maps = x
        for stack, head, back in zip(self.stacks, self.maps, self.back):
            y = stack(x)
            maps = head(y)
            x = x + y + back(maps)
        h, w = maps.shape[-2:]
        weight = maps.flatten(2).softmax(-1).unflatten(2, (h, w))
        rows, columns = torch.linspace(0, 1, h), torch.linspace(0, 1, w)
        return maps, torch.stack([(weight.sum(3) * rows).sum(-1), (weight.sum(2) * columns).sum(-1)], -1)


class Pyramid(nn.Module):
    """Three maps of halving sizes, all of `width` channels (Lin et al. 2016, https://arxiv.org/abs/1612.03144)."""

    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Sequential(conv(3, width, 3, 2), conv(width, width, 3, 2))
        self.deeper = nn.ModuleList([conv(width, 2 * width, 3, 2), conv(2 * width, 4 * width, 3, 2)])
        self.sides = nn.ModuleList(nn.Conv2d(c, width, 1) for c in (width, 2 * width, 4 * width))
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        maps = [self.stem(x)]
        for block in self.deeper:
            maps.append(block(maps[-1]))
        maps = [side(m) for side, m in zip(self.sides, maps)]
        for i in (1, 0):
            maps[i] = maps[i] + F.interpolate(maps[i + 1], size=maps[i].shape[-2:], mode="nearest")
        return [smooth(m) for smooth, m in zip(self.smooth, maps)]


def centers(h: int, w: int, stride: int) -> torch.Tensor:
    """The middles of a map's cells in pixels (x, y), [h w, 2]."""
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    return (torch.stack([x, y], -1).reshape(-1, 2) + 0.5) * stride


class RetinaNet(nn.Module):
    """x [batch, 3, h, w] -> (boxes [batch, kept, 4], scores [batch, kept], labels i64 [batch, kept]): the best of all anchors (Lin et al. 2017, https://arxiv.org/abs/1708.02002)."""

    def __init__(self, width: int, kept: int, scales: tuple[float, ...] = (1.0, 1.5), ratios: tuple[float, ...] = (0.5, 1.0, 2.0)):
        super().__init__()
        self.kept, self.shapes = kept, [(s * r**0.5, s / r**0.5) for s in scales for r in ratios]
        self.pyramid = Pyramid(width)
        self.classes = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, len(self.shapes) * CLASSES, 3, padding=1))
        self.boxes = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, len(self.shapes) * 4, 3, padding=1))

    def anchors(self, h: int, w: int, stride: int) -> torch.Tensor:
        """Centre and size of each anchor, [h w shapes, 4]."""
        middle = centers(h, w, stride)[:, None].expand(-1, len(self.shapes), -1)
        size = torch.tensor(self.shapes) * (4 * stride)
        return torch.cat([middle, size.expand(h * w, -1, -1)], -1).reshape(-1, 4)

    def raw(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits [batch, anchors, classes], offsets [batch, anchors, 4], anchors [anchors, 4]."""
        maps = self.pyramid(x)
        logits = torch.cat([self.classes(m).permute(0, 2, 3, 1).reshape(len(x), -1, CLASSES) for m in maps], 1)
        offsets = torch.cat([self.boxes(m).permute(0, 2, 3, 1).reshape(len(x), -1, 4) for m in maps], 1)
        return logits, offsets, torch.cat([self.anchors(*m.shape[-2:], 4 * 2**i) for i, m in enumerate(maps)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, offsets, anchors = self.raw(x)
        middle = anchors[:, :2] + offsets[..., :2] * anchors[:, 2:]
        half = anchors[:, 2:] * offsets[..., 2:].clamp(max=4.0).exp() / 2
        boxes = torch.cat([middle - half, middle + half], -1).clamp(min=0)
        limit = torch.tensor([x.shape[-1], x.shape[-2]] * 2)
        boxes = torch.minimum(boxes, limit)
        scores, at = logits.sigmoid().flatten(1).topk(self.kept, 1)
        chosen = torch.div(at, CLASSES, rounding_mode="floor")
        return boxes.gather(1, chosen[..., None].expand(-1, -1, 4)), scores, at % CLASSES


class Fcos(nn.Module):
    """x [batch, 3, h, w] -> (boxes [batch, cells, 4], scores [batch, cells, classes]): a box a cell, no anchors (Tian et al. 2019, https://arxiv.org/abs/1904.01355)."""

    def __init__(self, width: int):
        super().__init__()
        self.pyramid, self.tower = Pyramid(width), nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU())
        self.classes, self.sides, self.center = nn.Conv2d(width, CLASSES, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        boxes, scores = [], []
        for i, (m, scale) in enumerate(zip(self.pyramid(x), self.scales)):
            y, stride = self.tower(m), 4 * 2**i
            left, top, right, bottom = (F.relu(self.sides(y) * scale) * stride).flatten(2).unbind(1)
            cx, cy = centers(*m.shape[-2:], stride).unbind(-1)
            boxes.append(torch.stack([cx - left, cy - top, cx + right, cy + bottom], -1))
            scores.append((self.classes(y).sigmoid() * self.center(y).sigmoid()).sqrt().flatten(2).transpose(1, 2))
        return torch.cat(boxes, 1), torch.cat(scores, 1)


def unet():
    """Widths 4, 8, 16, transposed convolutions; images of 19 x 22, which do not halve evenly."""
    return seeded(Unet(4, 2)), (normal(8, 3, 19, 22),)


def unet_nearest():
    """`unet` with nearest neighbours on the way up."""
    return seeded(Unet(4, 2, "nearest")), (normal(8, 3, 19, 22),)


def unet_bilinear():
    """`unet` with bilinear interpolation that keeps the corners."""
    return seeded(Unet(4, 2, "bilinear")), (normal(8, 3, 19, 22),)


def deeplab():
    """Rates 2 and 3, width 8; images of 26 x 30."""
    return seeded(DeepLab(8, (2, 3))), (normal(8, 3, 26, 30),)


def keypoints():
    """Three points, two stacks of depth 2, width 8; images of 32 x 24."""
    return seeded(Keypoints(3, 8, 2, 2)), (normal(8, 3, 32, 24),)


def retinanet():
    """Six anchors a cell, the best 12 kept; images of 48 x 40."""
    return seeded(RetinaNet(8, 12)), (normal(8, 3, 48, 40),)


def fcos():
    """Three levels; images of 48 x 40."""
    return seeded(Fcos(8)), (normal(8, 3, 48, 40),)
