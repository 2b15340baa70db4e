"""Attention means what was written: scale, masks of both kinds and every broadcast, causal offsets, groups, rows that see nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import dmlc.ops  # noqa: F401
from dmlc.interpret.evaluate import NAMES, evaluate
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.base import definition, flops_of, rule_of

torch.set_num_threads(1)


def run(name: str, *xs: torch.Tensor, **attrs: Any) -> torch.Tensor:
    block = Block([TensorType(tuple(x.shape), NAMES[x.dtype]) for x in xs])
    op = Builder(block).op(name, block.args, attrs)
    definition(op).verify(op)
    return evaluate(op, list(xs))[0]


def explicit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, scale: float | None = None, seen: torch.Tensor | None = None) -> torch.Tensor:
    """softmax(scale q k^T + mask) v, written out; key heads repeated for their queries."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    return torch.softmax(scores, -1) @ v


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def qkv(h: int = 4, kv: int = 4, t: int = 5, s: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return seeded(2, h, t, 8), seeded(2, kv, s, 8, seed=1), seeded(2, kv, s, 6, seed=2)


@pytest.mark.parametrize("scale", [None, 1 / 128, 2.0])
@pytest.mark.parametrize("mask_shape", [None, (2, 1, 1, 7), (2, 1, 5, 7), (1, 4, 5, 7), (1, 1, 1, 1)])
@pytest.mark.parametrize("boolean", [False, True])
def test_scale_and_mask(scale: float | None, mask_shape: tuple[int, ...] | None, boolean: bool) -> None:
    q, k, v = qkv()
    mask = None if mask_shape is None else seeded(*mask_shape, seed=3)
    if mask is not None and boolean:
        mask = mask > -0.5 if mask_shape != (1, 1, 1, 1) else torch.ones(mask_shape, dtype=torch.bool)
    xs = (q, k, v) if mask is None else (q, k, v, mask)
    torch.testing.assert_close(run("dmlc.attention", *xs, scale=scale), explicit(q, k, v, mask, scale))


@pytest.mark.parametrize(("t", "s", "offset"), [(5, 5, 0), (5, 7, 0), (5, 7, 2), (7, 5, 0), (3, 7, 4)])
@pytest.mark.parametrize("kv", [4, 2, 1])
def test_causal_with_offset_and_groups(t: int, s: int, offset: int, kv: int) -> None:
    q, k, v = qkv(4, kv, t, s)
    seen = torch.ones(t, s, dtype=torch.bool).tril(offset)
    torch.testing.assert_close(run("dmlc.attention", q, k, v, causal=True, offset=offset), explicit(q, k, v, seen=seen))


@pytest.mark.parametrize("boolean", [False, True])
def test_causal_and_mask_together(boolean: bool) -> None:
    q, k, v = qkv(4, 2, 5, 5)
    mask = seeded(2, 1, 1, 5, seed=4)
    mask = (mask > 0) | (torch.arange(5) == 0) if boolean else mask
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    torch.testing.assert_close(run("dmlc.attention", q, k, v, mask, causal=True), explicit(q, k, v, mask, seen=seen))


def test_start_is_added_to_the_offset() -> None:
    """Queries 3 and 4 of five, as a rank that holds them computes them."""
    q, k, v = qkv(t=5, s=5)
    whole = run("dmlc.attention", q, k, v, causal=True)
    part = run("dmlc.attention", q[:, :, 3:], k, v, torch.tensor(3), causal=True)
    torch.testing.assert_close(part, whole[:, :, 3:])


def test_row_that_sees_nothing_is_zero() -> None:
    """PyTorch's SDPA gives 0 where a softmax written out gives NaN: the op and its parts keep SDPA's meaning."""
    q = torch.ones(1, 1, 2, 1, dtype=torch.float64)
    k, v = torch.ones(1, 1, 2, 1, dtype=torch.float64), torch.tensor([[5.0], [6.0]], dtype=torch.float64).reshape(1, 1, 2, 1)
    mask = torch.tensor([[False, False], [True, False]]).reshape(1, 1, 2, 2)
    assert run("dmlc.attention", q, k, v, mask).flatten().tolist() == [0.0, 5.0]
    assert explicit(q, k, v, mask).isnan().any()
    block = Block([TensorType(tuple(x.shape), NAMES[x.dtype]) for x in (q, k, v, mask)])
    op = Builder(block).op("dmlc.attention", block.args, {})
    value = definition(op).decompose(Builder(block), op)[0]
    env = dict(zip(block.args, (q, k, v, mask)))
    for part in block:
        env.update(zip(part.results, evaluate(part, [env[x] for x in part.operands], lambda d: "f64" if d == "f32" else d)))
    assert env[value].flatten().tolist() == [0.0, 5.0]


def test_softmax_over_another_dim_is_not_attention() -> None:
    """Scores normalised over dim 0 (sum 3.0356) differ from attention over the last dim by up to 0.4511."""
    q, k, v = (torch.randn(4, 4, n, 8, generator=torch.Generator().manual_seed(i)) for i, n in enumerate((2, 3, 3)))
    other = torch.softmax(q @ k.transpose(-1, -2) / 128, 0) @ v
    assert float(other.sum()) == pytest.approx(3.0356, abs=1e-3)
    assert float((run("dmlc.attention", q, k, v, scale=1 / 128) - other).abs().max()) == pytest.approx(0.4511, abs=1e-3)


def test_ill_formed() -> None:
    q, k, v = qkv()
    for xs, message in [((q, k[:, :3], v[:, :3]), "takes q"), ((q, k, v, torch.zeros(2, 1, 2, 7, dtype=torch.float64)), "does not broadcast"), ((q, k[..., :4], v), "takes q")]:
        with pytest.raises(DmlcError, match=message):
            run("dmlc.attention", *xs)


def test_work() -> None:
    """Multiply-adds: b h t s (d + e)."""
    block = Block([TensorType(tuple(x.shape), "f32") for x in qkv()])
    op = Builder(block).op("dmlc.attention", block.args, {})
    assert flops_of(op) == 2 * 4 * 5 * 7 * (8 + 6)
    assert str(rule_of(op)) == "b h t d!, b h s! d!, b h s! e -> b h t e"
