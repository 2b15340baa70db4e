"""Graph networks: nodes [nodes, features] and edges i64 [2, edges] from a source to a target. Messages are gathered and scattered by index."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dmlc.models.common import normal, seeded, token_ids


class Convolution(nn.Module):
    """Messages weighed by the degrees of both ends (Kipf and Welling 2016, https://arxiv.org/abs/1609.02907)."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges[0], edges[1]
        degree = torch.ones(len(x)).index_add(0, target, torch.ones(edges.shape[1]))
        share = degree.rsqrt()
        messages = self.linear(x).index_select(0, source) * (share[source] * share[target])[:, None]
        return torch.zeros(len(x), messages.shape[1]).index_add(0, target, messages) + self.bias


class Attention(nn.Module):
    """Messages weighed by a softmax over the edges that reach a node (Veličković et al. 2017, https://arxiv.org/abs/1710.10903)."""

    def __init__(self, inputs: int, outputs: int, heads: int):
        super().__init__()
        self.heads, self.linear = heads, nn.Linear(inputs, heads * outputs, bias=False)
        self.source, self.target = nn.Parameter(torch.zeros(heads, outputs)), nn.Parameter(torch.zeros(heads, outputs))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        y = self.linear(x).unflatten(1, (self.heads, -1))
        scores = F.leaky_relu((y * self.source).sum(-1)[source] + (y * self.target).sum(-1)[target], 0.2)
        at = target[:, None].expand_as(scores)
        most = torch.full((len(x), self.heads), -torch.inf).scatter_reduce(0, at, scores.detach(), "amax")
        weights = (scores - most[target]).exp()
        total = torch.zeros(len(x), self.heads).scatter_add(0, at, weights)
        messages = y[source] * (weights / total[target]).unsqueeze(-1)
        return torch.zeros_like(y).index_add_(0, target, messages).flatten(1)


class GraphNet(nn.Module):
    """Nodes, edges, the graph of each node i64 [nodes] -> logits [graphs, labels]; pooled by sum, mean and maximum of each graph's nodes."""

    def __init__(self, features: int, width: int, graphs: int, labels: int):
        super().__init__()
        self.graphs = graphs
        self.first, self.second = Convolution(features, width), Attention(width, width // 2, 2)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(3 * width, labels)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x, edges))
        x = self.norm(x + self.second(x, edges))
        at = graph[:, None].expand_as(x)
        none = x.new_zeros(self.graphs, x.shape[1])
        pooled = [none.scatter_add(0, at, x), none.scatter_reduce(0, at, x, "mean", include_self=False), none.scatter_reduce(0, at, x, "amax", include_self=False)]
        return self.head(torch.cat(pooled, 1))


def graph_net():
    """20 nodes of 6 features with 48 edges and a loop each, in 4 graphs."""
    random = token_ids(2, 48, 20)
    loops = torch.arange(20).expand(2, -1)
    graph = torch.arange(20) // 5
    return seeded(GraphNet(6, 12, 4, 3)), (normal(20, 6), torch.cat([random, loops], 1), graph)
