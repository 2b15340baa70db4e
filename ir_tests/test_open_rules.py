"""Open sizes by themselves: comparisons under ranges, what an import assumes and solves, expressions in emitted code, the rule of a view."""

from __future__ import annotations

import random

import pytest

from dmlc.ir.dims import Dim, ceildiv, parse_dim, substitute, symbol
from dmlc.ir.open_sizes import OpenSize, OpenSizes, SizesDiffer, UnknownSize, in_force, larger, pricing, representative, resolve, smaller
from dmlc.ops.rule import open_view_rule, view_rule
from dmlc.ops.size_text import python_text

b, n, s = symbol("batch"), symbol("n"), symbol("seq")


def sizes(**given: tuple[int, int | None, int]) -> OpenSizes:
    return OpenSizes({name: OpenSize(*facts) for name, facts in given.items()}, may_narrow=True)


def test_ranges_answer_comparisons():
    with in_force(sizes(seq=(4, 64, 10))):
        assert s >= 4 and s <= 64 and not s > 64 and 2 * s < 129 and s // 2 >= 2
    with pytest.raises(UnknownSize):
        assert s > 10


def test_an_import_narrows_a_range_by_what_it_assumes():
    with in_force(sizes(seq=(1, None, 10))) as left:
        assert s <= 512 and not 3 * s + 1 < 10 and min(s, 512) == s
    assert (left.sizes["seq"].least, left.sizes["seq"].most) == (3, 512)
    assert list(left.assumed) == ["seq <= 512", "seq >= 3"]


def test_what_holds_anyway_narrows_nothing():
    with in_force(sizes(seq=(1, 512, 10))) as left:
        assert larger(1, s) == s and smaller(s, 512) == s and larger(s, 0) == s and smaller(s - 1, s) == s - 1
    assert left.sizes["seq"] == OpenSize(1, 512, 10)


def test_a_pass_assumes_nothing():
    left = sizes(seq=(1, None, 10))
    left.may_narrow = False
    with in_force(left), pytest.raises(UnknownSize):
        assert s <= 512


def test_a_product_is_not_narrowed():
    with in_force(sizes(seq=(1, None, 10), batch=(1, None, 2))), pytest.raises(UnknownSize, match="batch, seq"):
        assert b * s < 100


def test_prices_are_taken_at_the_representative_sizes():
    with in_force(sizes(seq=(1, None, 10), batch=(1, None, 2))) as left:
        with pytest.raises(UnknownSize):
            int(s)
        with pricing():
            assert int(b * s) == 20 and s > 9 and s / 4 == 2.5 and len(range(s)) == 10
        assert representative(ceildiv(s, 3)) == 4
    assert left.sizes == sizes(seq=(1, None, 10), batch=(1, None, 2)).sizes


@pytest.mark.parametrize(
    ("left", "right", "said", "numbers"),
    [
        (b, n, "n is batch", {"n": "batch"}), (n, 6, "n is 6", {"n": "6"}), (2 * n, s + 2, "seq is 2 * n - 2", {"seq": "2 * n - 2"}),
        (2 * (s // 2), s, "seq has to be a multiple of 2", {"seq": "2 * seq_by_2"}), (2 * ceildiv(s, 4), ceildiv(s, 2), "seq has to be a multiple of 4", {"seq": "4 * seq_by_4"}),
        (b * n, b * 5 + n, "fixed", {"batch": "2", "n": "6"}),
    ],
)  # fmt: skip
def test_what_an_import_does_about_sizes_that_have_to_be_equal(left, right, said, numbers):
    open_ones = sizes(batch=(1, None, 2 if "fixed" in said else 6), n=(1, None, 6), seq=(1, None, 8 if "multiple" in said else 10))
    told, changed = resolve(open_ones, SizesDiffer.between(left, right, "they meet"))
    assert said in told[0].text
    assert {name: str(size) for name, size in changed.items()} == numbers
    assert not set(changed) & set(open_ones.sizes)


def test_expressions_in_emitted_code():
    rng = random.Random(5)
    texts = ["batch + 1", "batch ceildiv 2", "2 * batch * seq - 1", "(seq + 3) floordiv 4", "seq mod 8", "batch * (seq ceildiv 2) + 3", "(batch * seq + 5) floordiv 3", "8 floordiv batch"]
    for text in texts:
        size = parse_dim(text)
        for _ in range(20):
            numbers = {"batch": rng.randint(1, 9), "seq": rng.randint(1, 40)}
            assert eval(python_text(size), {}, dict(numbers)) == substitute(size, numbers)


VIEWS = [
    ((b, s, 768), (b, s, 12, 64)), ((b, s, 12, 64), (b * s, 768)), ((b * s, 768), (b, s, 768)), ((b, 8, s), (b, 1, 8, s)), ((b, s, 6), (b, 3 * s, 2)),
    ((b, 4, s, n), (b, 4 * s * n)), ((b, s, 4), (s, b, 4)), ((2 * s, 6), (s, 2, 6)), ((b, s), (b * s,)), ((12, s), (3, 4 * s)),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), VIEWS)
def test_the_rule_of_a_view_is_that_of_every_size(source, target):
    """Bound to numbers that share no factor it ties the same dims together as the rule of these numbers does."""
    numbers = {"batch": 5, "seq": 7, "n": 11}
    rule = open_view_rule(source, target)
    fixed = view_rule([substitute(m, numbers) for m in source], [substitute(m, numbers) for m in target])
    renamed = dict(zip(rule.factors, fixed.factors, strict=True))
    named = tuple(tuple(tuple(renamed[f] for f in dim) for dim in side[0]) for side in (rule.operands, rule.results))
    assert named == (fixed.operands[0], fixed.results[0])
    assert {renamed[f]: substitute(m, numbers) for f, m in rule.sizes.items()} == dict(fixed.sizes)
    assert {renamed[f] for f in rule.whole} == fixed.whole
    assert all(isinstance(m, (int, Dim)) for m in rule.sizes.values())
