"""Recommendation models: DLRM (Naumov et al. 2019, https://arxiv.org/abs/1906.00091), Wide & Deep (Cheng et al. 2016, https://arxiv.org/abs/1606.07792)."""

from __future__ import annotations

import torch
from torch import nn

from dmlc.models.common import normal, seeded, token_ids


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    """dense [batch, features], one list of ids i64 [batch, entries] a table -> click logits [batch].

    Bags of ids are pooled (`mode` sum or mean), the pooled vectors and the dense one multiplied pairwise, the products of different ones kept.
    """

    def __init__(self, features: int, rows: tuple[int, ...], width: int, mode: str):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, width, mode=mode) for n in rows)
        self.bottom = perceptron(features, 16, width)
        count = len(rows) + 1
        self.top = perceptron(width + count * (count - 1) // 2, 16, 1)
        pairs = torch.tril_indices(count, count, -1)
        self.register_buffer("row", pairs[0], persistent=False)
        self.register_buffer("column", pairs[1], persistent=False)

    def forward(self, dense: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
        low = self.bottom(dense)
        vectors = torch.stack([low, *(table(i) for table, i in zip(self.tables, ids))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return self.top(torch.cat([low, products[:, self.row, self.column]], 1)).squeeze(1)


class WideAndDeep(nn.Module):
    """dense [batch, features], ids i64 [batch, fields] -> click logits [batch]. The wide part weighs ids and crosses of neighbouring fields directly."""

    def __init__(self, features: int, fields: int, rows: int, width: int):
        super().__init__()
        self.rows = rows
        self.weights = nn.Embedding(rows, 1)
        self.crosses = nn.Embedding(rows, 1)
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(fields))
        self.deep = perceptron(features + fields * width, 24, 12, 1)
        self.norm = nn.BatchNorm1d(features)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        crossed = (ids[:, 1:] * 31 + ids[:, :-1]) % self.rows
        wide = self.weights(ids).sum((1, 2)) + self.crosses(crossed).sum((1, 2))
        vectors = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return wide + self.deep(torch.cat([self.norm(dense), *vectors], -1)).squeeze(-1)


def _dlrm(mode: str):
    rows = (11, 23, 7)
    return seeded(Dlrm(5, rows, 8, mode)), (normal(8, 5), *(token_ids(8, 3, n, seed=i + 2) for i, n in enumerate(rows)))


def dlrm_sum():
    """Three tables of 8 values a row, bags of three ids summed, batch 8."""
    return _dlrm("sum")


def dlrm_mean():
    """`dlrm_sum` with the mean of each bag."""
    return _dlrm("mean")


class Bags(nn.Module):
    """Flat ids i64 [n] with the bags' starts i64 [bags], and two weights for each id [2, n] -> [bags, 4 width]: both weighted sums, mean and maximum of each bag."""

    def __init__(self, rows: int, width: int):
        super().__init__()
        self.sum, self.mean, self.max = (nn.EmbeddingBag(rows, width, mode=m) for m in ("sum", "mean", "max"))

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        sums = [self.sum(ids, offsets, per_sample_weights=w) for w in weights]
        return torch.cat([*sums, self.mean(ids, offsets), self.max(ids, offsets)], 1)


def bags():
    """20 ids of 13 in 5 bags, one of them empty."""
    return seeded(Bags(13, 6)), (token_ids(1, 20, 13).flatten(), torch.tensor([0, 3, 3, 9, 15]), normal(2, 20))


def wide_and_deep():
    """Four features, three fields of 17 ids, batch 8."""
    return seeded(WideAndDeep(4, 3, 17, 6)), (normal(8, 4), token_ids(8, 3, 17))
