"""A sample of the specification's node tests on one rank and on two; those that fail are exactly the listed ones."""

from __future__ import annotations

import onnx
import pytest

from dmlc.tools.onnx_case import TENSORS, all_cases, category, known_failures, listed_for, outcome, sample
from dmlc.tools.onnx_cases import surprises

COUNT = 300


@pytest.mark.skipif(onnx.__version__ != listed_for(), reason=f"the list of failing cases is of onnx {listed_for()}")
def test_a_sample_of_node_cases(tmp_path):
    cases = {name: case for name, case in all_cases().items() if category(case) == TENSORS}
    assert set(known_failures()) <= set(cases)
    found = [outcome(cases[name], tmp_path) for name in sample(cases, COUNT)]
    assert not surprises(found)
    cut = [o for o in found if o.ranks]
    assert len(found) == COUNT and len(cut) > COUNT * 0.7
    assert len({o.name.split("_")[1] for o in found}) > 80  # operators
