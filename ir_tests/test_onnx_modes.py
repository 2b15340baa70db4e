"""A sample of tools/onnx_modes.py: random modes of operators against onnxruntime, and that the comparison can fail."""

from __future__ import annotations

import numpy as np
import pytest

from dmlc.tools import onnx_modes
from dmlc.tools.onnx_mode_cases import GENERATORS

COUNT = 8


@pytest.mark.parametrize("operator", GENERATORS)
def test_random_modes(operator):
    found = list(onnx_modes.outcomes(1, COUNT, operator))
    assert not [f"{o.state}: {o.why} {o.case}" for o in onnx_modes.faults(found)]
    assert sum(o.state in ("agree", "as evaluator") for o in found) > COUNT / 2


def test_a_wrong_result_is_told(monkeypatch, capsys):
    plain = onnx_modes.ours
    monkeypatch.setattr(onnx_modes, "ours", lambda path, case: [y + np.ones_like(y) for y in plain(path, case)])
    assert onnx_modes.main(["--only", "Gather", "--count", "3"]) == 1
    assert "Gather differ: output 0 differs" in capsys.readouterr().out
