"""The PyTorch door to what networks beside transformers are made of: recurrent layers, bags, complex numbers, random numbers, writes by index,
and operators that PyTorch itself says how to take apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch_cases import check

from dmlc.frontend.torch_export import import_exported
from dmlc.interpret.run import run
from dmlc.ir.location import DmlcError

torch.set_num_threads(1)
F = nn.functional


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, IDS = normal(4, 5, 6), torch.tensor([[0, 2, 3], [1, 3, 0], [2, 2, 1]])


def names(module) -> list[str]:
    return [op.name for op in module.main.op.walk()]


# ---------------------------------------------------------------- recurrent layers

LAYERS = {
    "lstm": (nn.LSTM(3, 4, 2, bidirectional=True), (normal(5, 2, 3),)),
    "lstm_projected": (nn.LSTM(3, 5, proj_size=2, batch_first=True), (normal(2, 5, 3), (normal(1, 2, 2), normal(1, 2, 5)))),
    "gru": (nn.GRU(3, 4, 2, batch_first=True, bias=False), (normal(2, 5, 3), normal(2, 2, 4))),
    "rnn": (nn.RNN(3, 4, nonlinearity="relu", bidirectional=True), (normal(5, 2, 3),)),
    "long_lstm": (nn.LSTM(3, 4, bidirectional=True), (normal(11, 2, 3),)),
    "long_gru": (nn.GRU(3, 4, 2, batch_first=True), (normal(2, 9, 3), normal(2, 2, 4))),
    "long_rnn": (nn.RNN(3, 4), (normal(9, 3),)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers(name):
    """Short ones are written out; the others are loops, whose text does not grow with the number of steps."""
    layer, args = LAYERS[name]
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    assert ("dmlc.scan" in names(check(layer, *args))) == name.startswith("long")


def test_dropout_between_recurrent_layers():
    trained = import_exported(torch.export.export(nn.GRU(3, 4, 3, dropout=0.3).train(), (normal(4, 2, 3),)), train=True)
    assert names(trained.module).count("dmlc.dropout") == 2


# ---------------------------------------------------------------- bags, writes by index


def test_bags_of_embeddings():
    table, flat, starts = normal(5, 3), torch.tensor([0, 4, 2, 2, 1, 3]), torch.tensor([0, 2, 2, 5])

    def function(table, ids, flat, starts, weights):
        equal = [F.embedding_bag(ids, table, mode=m) for m in ("sum", "mean", "max")]
        ragged = [F.embedding_bag(flat, table, starts, mode=m) for m in ("sum", "mean", "max")]
        weighted = F.embedding_bag(flat, table, starts, mode="sum", per_sample_weights=weights), F.embedding_bag(ids, table, mode="sum", per_sample_weights=weights[:3].expand(3, 3))
        return *equal, *ragged, *weighted, F.embedding_bag(flat, table, starts, mode="sum", include_last_offset=True)

    check(function, table, IDS, flat, starts, normal(6))


def test_equal_bags_keep_their_batch():
    """A batch of bags is looked up as one, so that it can be split."""
    module = check(nn.EmbeddingBag(5, 3), IDS)
    assert [op.result.shape for op in module.main.ops() if op.name == "dmlc.embedding"] == [(3, 3, 3)]
    assert "dmlc.index_add" not in names(module)


def test_writes_by_index():
    at = torch.tensor([2, 0, 3])

    def function(x, at, ids):
        along = x.index_add(1, at, x[:, :3], alpha=2), x.index_copy(1, at, x[:, :3]), x.index_fill(2, at, 7.0)
        through = x.clone(), x.clone(), x.clone()
        through[0][:, at] = x[:, :3] * 2
        through[1][:, at, ids[0]] = 1.5
        through[2][x > 0.3] = 0.0
        mixed = x.clone()
        mixed[at[:2], :, ids[0, :2]] = x[0, :, 0]
        return *along, *through, mixed

    check(function, X, at, IDS)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scattered_reductions(reduce):
    def function(x, ids):
        at = ids[:, :, None].expand(3, 3, 6)
        each = [x.scatter_reduce(1, at, x[:3, :3], reduce, include_self=s) for s in (True, False)]
        whole = [] if reduce == "sum" else [x.index_reduce(1, ids[0], x[:, :3], reduce, include_self=s) for s in (True, False)]
        return *each, *whole

    check(function, X, IDS)


# ---------------------------------------------------------------- complex numbers


def test_complex_numbers():
    def function(x, y):
        a, b = torch.view_as_complex(x.reshape(4, 5, 3, 2)), torch.polar(x[..., :3].abs(), y[..., :3])
        c = a * b + a / b - 2 * a.conj() + (1 + 2j) * torch.complex(x[..., :3], y[..., :3])
        parts = c.real, c.imag, c.abs(), c.angle(), c.sum(1).real, torch.view_as_real(c * x[..., :3])
        moved = torch.cat([c.transpose(0, 1), a.mT.flip(1).reshape(5, 4, 3)])[1:, None].squeeze(1)
        products = a @ b.mT, x[..., :3] * 1j, torch.where(x[..., :3] > 0, a, b), a.exp(), (a - 3).mean(), a + x[..., :3]
        return *parts, torch.view_as_real(moved), *map(torch.view_as_real, products)

    check(function, X, normal(4, 5, 6, seed=1))


# ---------------------------------------------------------------- random numbers


class Drawing(nn.Module):
    def forward(self, x):
        normal = torch.randn_like(x), torch.randn(3, 2), torch.normal(x, 2.0), x.clone().normal_(1.0, 3.0)
        uniform = torch.rand(3), torch.rand_like(x), x.clone().uniform_(-1, 2), x.clone().exponential_(0.5)
        whole = torch.randint(2, 9, (7,)), torch.randperm(6), torch.bernoulli(x.sigmoid()), x.clone().bernoulli_(0.3)
        return *normal, *uniform, *whole, x + 1


def test_random_numbers_are_eagers_with_the_same_draws():
    """Eager takes the numbers of the same streams; no two draws are alike, and another seed gives others."""
    module = check(Drawing(), X)
    found, other = (list(run(module, {"x": X.numpy()}, seed=s).values()) for s in (0, 1))
    assert all((a != b).any() for a, b in zip(found[:-1], other[:-1])) and (found[-1] == other[-1]).all()
    assert not np.array_equal(found[0], found[2]) and not np.array_equal(found[5], found[4])


def test_ranges_too_wide_for_the_draw():
    with pytest.raises(DmlcError, match="a range of 134217728 integers is not supported"):
        check(lambda x: x + torch.randint(0, 2**27, (6,)), X)


# ---------------------------------------------------------------- operators that are taken apart

APART = {
    "losses": lambda x, y: (F.binary_cross_entropy_with_logits(x, y.sigmoid()), F.kl_div(x, y, reduction="batchmean"), F.cosine_embedding_loss(x[0], y[0], y[0, :, 0].sign()), F.triplet_margin_loss(x[0], y[0], x[1]), F.soft_margin_loss(x, y.sign())),
    "activations": lambda x, y: (F.hardshrink(x), F.softshrink(x), F.threshold(x, 0.1, 3.0), torch.logit(x.sigmoid(), 1e-3), x.frac(), torch.sinc(x), torch.logaddexp(x, y), torch.xlogy(x, y.abs()), torch.hypot(x, y)),
    "shapes": lambda x, y: (*torch.meshgrid(x[0, 0], y[0, :, 0], indexing="xy"), torch.diag(x[0, 0]), x.diagonal(0, 1, 2), torch.block_diag(x[0], y[0]), x.rot90(1, (1, 2)), torch.kron(x[0], y[0]), torch.cartesian_prod(x[0, 0], y[0, 0]), *torch.tensor_split(x, (1, 3), 1)),
    "distances": lambda x, y: (F.cosine_similarity(x, y, -1), F.pairwise_distance(x[0], y[0]), torch.linalg.cross(x[..., :3], y[..., :3]), torch.tensordot(x, y, ([1, 2], [1, 2])), torch.dist(x, y)),
    "images": lambda x, y: (F.grid_sample(x[None], y[None, :, :, :2].tanh(), align_corners=False), F.affine_grid(x[:2, :2, :3], (2, 1, 4, 5), align_corners=False), F.unfold(x[:, None], 2), F.fold(F.unfold(x[:, None], 2), (5, 6), 2), F.channel_shuffle(x[:, :4], 2), F.adaptive_max_pool2d(x, (2, 3)), F.group_norm(x, 5)),
    "choices": lambda x, y: (torch.isin(IDS, IDS[0]), torch.bucketize(x, y[0, 0].sort()[0]), x[0].trace(), x.count_nonzero(1), x.nansum(), *x.aminmax(dim=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_operators_are_taken_apart(name):
    check(APART[name], X, normal(4, 5, 6, seed=1))


def test_weight_norm():
    check(nn.utils.parametrizations.weight_norm(nn.Conv1d(5, 3, 2)), X)


def test_results_that_no_op_gives():
    with pytest.raises(DmlcError, match="max_pool2d_with_indices.default: its result 1 is not available"):
        check(lambda x: F.max_pool2d(x, 2, return_indices=True), X)
