"""Random ops are defined by Philox4x32-10 over the global element index: known answers, parts, statistics."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import dmlc.ops  # noqa: F401
from dmlc.interpret.evaluate import evaluate
from dmlc.interpret.prelude_nn import element_index, philox, random_words
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, Op
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.base import definition

SCALAR = TensorType((), "i64")

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, answer
KNOWN = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0], [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: list[int], key: list[int], answer: list[int]) -> None:
    words = philox(*(torch.tensor([w]) for w in counter), *(torch.tensor(w) for w in key))
    assert [int(w) for w in words] == answer


def test_words_are_the_counters() -> None:
    """key = seed, counter = (low and high half of the element index, step, stream)."""
    seed, step, stream, start = (0x299F31D0 << 32) | 0xA4093822, 0x13198A2E, 0x03707344, (0x85A308D3 << 32) | 0x243F6A88
    signed = start - (1 << 64)  # an index this high is above 2^63; the words are the same
    words = random_words(torch.tensor(seed), torch.tensor(step), stream, (1,), (1,), (torch.tensor(signed),))
    assert [int(w) for w in words] == KNOWN[2][2]


def draw(name: str, shape: tuple[int, ...], dtype: str, starts: tuple[int, ...] = (), part: tuple[int, ...] | None = None, seed: int = 7, step: int = 0, **attrs: Any) -> torch.Tensor:
    """One random op evaluated: `part` is the shape of the part that begins at `starts`."""
    block = Block((SCALAR,) * (2 + len(starts)))
    op = Builder(block).op(name, block.args, {"shape": shape, "stream": 0, **attrs}, [TensorType(part or shape, dtype)])
    definition(op).verify(op)
    return evaluate(op, [torch.tensor(v) for v in (seed, step, *starts)])[0]


RANDOM = [("dmlc.random_uniform", "f32", {}), ("dmlc.random_normal", "f32", {}), ("dmlc.dropout_mask", "i1", {"p": 0.4})]


@pytest.mark.parametrize(("name", "dtype", "attrs"), RANDOM)
def test_parts_are_cut_from_the_whole(name: str, dtype: str, attrs: dict[str, Any]) -> None:
    """Every part of a tensor split along both dims, also unevenly, is what the whole has there."""
    shape = (7, 5)
    whole = draw(name, shape, dtype, **attrs)
    for rows, columns in itertools.product((4, 3), (5, 3, 2)):
        for i, j in itertools.product(range(0, 7, rows), range(0, 5, columns)):
            part = draw(name, shape, dtype, (i, j), (rows, columns), **attrs)
            wanted = whole[i : i + rows, j : j + columns]
            assert torch.equal(part[: wanted.shape[0], : wanted.shape[1]], wanted)


@pytest.mark.parametrize(("name", "dtype", "attrs"), RANDOM)
def test_seed_step_and_stream_matter(name: str, dtype: str, attrs: dict[str, Any]) -> None:
    base = draw(name, (64,), dtype, **attrs)
    assert torch.equal(base, draw(name, (64,), dtype, **attrs))
    for change in ({"seed": 8}, {"seed": 7 + (1 << 32)}, {"step": 1}, {"stream": 1}):
        assert not torch.equal(base, draw(name, (64,), dtype, **{**attrs, **change}))


def test_index_beyond_32_bits() -> None:
    """The 64-bit index of a large tensor: rows 2^32 elements apart differ."""
    shape = (3, 1 << 32)
    rows = [draw("dmlc.random_uniform", shape, "f32", (r, 0), (1, 8)) for r in range(3)]
    assert not torch.equal(rows[0], rows[1]) and not torch.equal(rows[1], rows[2])
    assert element_index((1, 1), shape, (2, 5), None).item() == 2 * (1 << 32) + 5


def test_uniform_range_and_moments() -> None:
    u = draw("dmlc.random_uniform", (200_000,), "f64")
    assert float(u.min()) >= 0 and float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=4 * (1 / 12 / 200_000) ** 0.5)
    assert float(u.var()) == pytest.approx(1 / 12, rel=0.02)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_uniform_stays_below_one(dtype: str) -> None:
    """A rounded draw is never 1: narrow dtypes take only as many bits as they hold."""
    u = draw("dmlc.random_uniform", (70_000,), dtype)
    assert float(u.max()) < 1 and float(u.max()) > 0.98 and float(u.min()) >= 0


def test_normal_moments() -> None:
    z = draw("dmlc.random_normal", (200_000,), "f64")
    assert float(z.mean()) == pytest.approx(0, abs=4 / 200_000**0.5)
    assert float(z.var()) == pytest.approx(1, rel=0.02)
    assert float((z**4).mean()) == pytest.approx(3, rel=0.05)
    assert bool(z.isfinite().all())


def dropout(p: float, x: torch.Tensor, **attrs: Any) -> torch.Tensor:
    block = Block((TensorType(tuple(x.shape), "f32"), SCALAR, SCALAR))
    op = Builder(block).op("dmlc.dropout", block.args, {"p": p, "stream": 0, **attrs})
    return evaluate(op, [x, torch.tensor(7), torch.tensor(0)])[0]


def test_dropout_keeps_what_the_mask_keeps() -> None:
    x = torch.arange(1.0, 1001.0)
    mask = draw("dmlc.dropout_mask", (1000,), "i1", p=0.3)
    assert torch.equal(dropout(0.3, x), torch.where(mask, x * (1 / 0.7), torch.zeros(())))
    assert 0.65 < float(mask.float().mean()) < 0.75
    assert torch.equal(dropout(0.0, x), x) and not dropout(1.0, x).any()


def test_two_dropouts_of_one_shape_differ() -> None:
    x = torch.ones(256)
    assert not torch.equal(dropout(0.5, x, stream=1), dropout(0.5, x, stream=2))


def test_a_part_needs_its_starts() -> None:
    block = Block((SCALAR, SCALAR))
    op = Op("dmlc.random_uniform", block.args, [TensorType((2, 5), "f32")], {"shape": (4, 5), "stream": 0})
    with pytest.raises(DmlcError, match="has no starts"):
        definition(op).verify(op)
