"""Random loops and branches inside one another (`tools/random_control.py` runs more of them)."""

from __future__ import annotations

import pytest

from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.tools.random_control import Nest, check_gradients, compare


@pytest.mark.parametrize(("seed", "devices", "plan"), [(s, *((2, "dp=2"), (3, "auto"), (3, "dp=3"))[s % 3]) for s in range(9)])
def test_ranks_compute_the_same(seed, devices, plan):
    compare(seed, devices, plan)


@pytest.mark.parametrize("seed", range(6))
def test_gradients_are_slopes(seed):
    try:
        check_gradients(seed)
    except DmlcError as e:
        assert "depends on no trained parameter" in e.message


@pytest.mark.parametrize("generic", [False, True])
def test_the_text_says_all(generic):
    for seed in range(20):
        text = print_module(Nest(seed).make(), generic=generic)
        assert print_module(parse_module(text, "text"), generic=generic) == text
