"""Symbolic sizes: normal form, text, arithmetic against plain integers, ranges."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import random

import pytest

from dmlc.ir.dims import Dim, bounds, ceildiv, floordiv, mod, parse_dim, substitute, symbol, symbols_of
from dmlc.ir.location import DmlcError

b, n, s = symbol("batch"), symbol("n"), symbol("seq")

TEXTS = [
    (b, "batch"), (b + 1, "batch + 1"), (1 + b, "batch + 1"), (b - 1, "batch - 1"), (4 - b, "4 - batch"), (-b, "-batch"), (-b - 1, "-batch - 1"),
    (2 * b * s, "2 * batch * seq"), (b * b, "batch * batch"), (3 * n + b, "batch + 3 * n"),
    (b // 2, "batch floordiv 2"), (ceildiv(b, 2), "batch ceildiv 2"), ((b + 1) // 2, "batch ceildiv 2"), (b % 4, "batch mod 4"), ((b + 1) % 2, "(batch + 1) mod 2"),
    (3 * (b % 4) + n, "3 * (batch mod 4) + n"), (5 - b % 3, "5 - (batch mod 3)"), (2 * n * (b // 4), "2 * n * (batch floordiv 4)"),
    ((4 * b + 2) // 4, "batch"), ((4 * b + 2) // 6, "(2 * batch + 1) floordiv 3"), (8 // b, "8 floordiv batch"), ((b + s) // n, "(batch + seq) floordiv n"),
    (ceildiv(b, n), "((batch - 1) floordiv n) + 1"), (n % b, "n - batch * (n floordiv batch)"), (ceildiv(ceildiv(b, 2), 3), "batch ceildiv 6"),
]  # fmt: skip


@pytest.mark.parametrize("dim, text", TEXTS)
def test_text(dim, text):
    assert str(dim) == text
    assert parse_dim(text) == dim


def test_constants_are_integers():
    values = [b - b, 0 * b, (8 * b) // b, (b * 8) % 8, (b % 4) // 4, mod(b, 1), floordiv(4 * b + 3, 4) - b, parse_dim("3 + 4"), substitute(b * 2, {"batch": 4}), ceildiv(7, 2)]
    assert values == [0, 0, 8, 0, 0, 0, 0, 7, 8, 4]
    assert all(type(v) is int for v in values)


@pytest.mark.parametrize(
    "left, right",
    [
        (b + n, n + b), ((b * 8) // 8, b), ((b * n) // n, b), (b // 2 // 3, b // 6), ((8 * b + 3) // 8, b), (b - 4 * (b // 4), b % 4),
        (4 * (b // 4) + b % 4, b), ((b * 6) // 4, (b * 3) // 2), ((b + 8) // 4, b // 4 + 2), ((b * s + b) // (s + 1), b), ((2 * b * s) // (2 * s), b),
        (ceildiv(b * 64, 64), b), ((n * b) // (n * s), b // s), (((b + 1) // 2 + 1) // 2, (b + 3) // 4),
    ],
)  # fmt: skip
def test_normal_form(left, right):
    assert left == right and str(left) == str(right) and hash(left) == hash(right)


def test_equality_is_the_texts():
    rng = random.Random(3)
    dims = [d for d, *_ in (expression(rng, 3) for _ in range(300)) if isinstance(d, Dim)]
    for x, y in itertools.combinations(dims[:80], 2):
        assert (x == y) == (str(x) == str(y)) == (x.terms == y.terms)
    assert b != 1 and b != "batch" and b is not None


def expression(rng: random.Random, depth: int):
    """A Dim and the same computation on integers, as a function of the symbols' values."""
    if depth == 0 or rng.random() < 0.15:
        name = rng.choice(["batch", "n", "seq"])
        return symbol(name), lambda v: v[name]
    x, f = expression(rng, depth - 1)
    y, g = expression(rng, depth - 1)
    k, c = rng.randrange(1, 9), rng.randrange(-5, 9)
    choices = [
        (lambda: x + y, lambda v: f(v) + g(v)), (lambda: x - y, lambda v: f(v) - g(v)), (lambda: x * y, lambda v: f(v) * g(v)), (lambda: x + c, lambda v: f(v) + c),
        (lambda: c - x, lambda v: c - f(v)), (lambda: x * c, lambda v: f(v) * c), (lambda: x // k, lambda v: f(v) // k), (lambda: ceildiv(x, k), lambda v: -(-f(v) // k)),
        (lambda: x % k, lambda v: f(v) % k), (lambda: floordiv(x, n), lambda v: f(v) // v["n"]), (lambda: mod(x, s), lambda v: f(v) % v["seq"]),
        (lambda: ceildiv(x, b), lambda v: -(-f(v) // v["batch"])),
    ]  # fmt: skip
    make, value = rng.choice(choices)
    return make(), value


@pytest.mark.parametrize("seed", range(5))
def test_arithmetic_agrees_with_integers(seed):
    rng = random.Random(seed)
    for _ in range(150):
        dim, value = expression(rng, 4)
        again = parse_dim(str(dim))
        assert again == dim and str(again) == str(dim)
        low, high = bounds(dim)
        for _ in range(4):
            sizes = {name: rng.choice([1, 2, 3, 5, 8, 17, 64]) for name in ("batch", "n", "seq")}
            assert substitute(dim, sizes) == value(sizes), (str(dim), sizes)
            assert (low is None or low <= value(sizes)) and (high is None or value(sizes) <= high), (str(dim), sizes)


def test_bounds():
    assert bounds(b) == (1, None) and bounds(7) == (7, 7) and bounds(3 - b) == (None, 2)
    assert bounds(b % 4) == (0, 3) and bounds(ceildiv(b, 4)) == (1, None)
    assert bounds(b - b // 2) == (1, None) and bounds(ceildiv(b, 2) * 2 - b) == (0, 1)
    assert bounds(b * s, {"batch": (2, 8), "seq": (1, 16)}) == (2, 128)
    assert bounds(64 // b, {"batch": (3, 5)}) == (12, 21)


def test_comparisons_answer_when_decided():
    assert b >= 1 and b > 0 and b > 0 and b + 1 > b and b // 2 < b and ceildiv(b, 2) <= b and not b + 2 < b
    with pytest.raises(DmlcError, match=r"'batch > 4' is not decided for all sizes; give values for batch"):
        assert b > 4
    assert max(b, 0) is b


def test_substitution_and_symbols():
    dim = ceildiv(b * s + 1, 4) % 8
    assert symbols_of(dim) == ("batch", "seq") == dim.symbols and symbols_of(3) == ()
    assert substitute(dim, {"batch": 4}) == ceildiv(4 * s + 1, 4) % 8
    assert substitute(dim, {"batch": s, "seq": b}) == dim
    assert substitute(b // n, {"n": 2}) == b // 2 and substitute(5, {"n": 2}) == 5


def test_dims_are_values():
    for dim, _ in TEXTS:
        assert pickle.loads(pickle.dumps(dim)) == dim and copy.deepcopy(dim) == dim
    assert math.prod((b, 2, s)) == 2 * b * s
    assert {b // 2: 1}[parse_dim("batch floordiv 2")] == 1


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "a name or a number is missing"), ("n +", "a name or a number is missing"), ("(n", "missing ')'"), ("n n", "unexpected 'n'"), ("n / 2", "unexpected '/'"),
        ("n floordiv 0", "divided by 0"), ("n mod (0 - 2)", "divided by -2"), ("2 floordiv", "a name or a number is missing"), ("mod", "'mod' cannot name a dim"),
        ("(" * 5000 + "n" + ")" * 5000, "nested too deeply"),
    ],
)  # fmt: skip
def test_errors(text, message):
    with pytest.raises(DmlcError) as error:
        parse_dim(text)
    assert message in error.value.message


def test_names():
    with pytest.raises(DmlcError, match="cannot name a dim"):
        symbol("a-b")
    with pytest.raises(TypeError):
        b + 1.5
