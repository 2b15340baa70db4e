"""What tools/onnx_versions.py finds: where onnx's version converter changes what a model computes, our import reads both versions rightly."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_files import computed, imported, model_of

from dmlc.tools import onnx_versions as tool


@pytest.fixture(scope="module")
def found():
    return [o for operator in sorted({operator for operator, _, _ in tool.REASONS}) for o in tool.outcomes(0, operator, written=True)]


def test_where_the_converter_is_wrong(found):
    """Exactly these pairs; each model itself is what onnxruntime or the evaluator computes."""
    differ = tool.pairs(found)
    assert set(differ) == set(tool.REASONS) and not [o for o in found if o.state == tool.IMPORT]
    assert {o.state for o in found if o.source == o.target} == {"equal"}
    assert all(counts[tool.CONVERTER] for counts in differ.values())
    assert sum(o.state == "equal" for o in found if o.source != o.target) > 20


def test_the_table_says_who_is_right(found):
    lines = tool.table(found).splitlines()
    assert len(lines) == len(tool.REASONS) + 2
    assert all(" import " in row and "?" not in row for row in lines[1:-1])


def test_a_wrong_import_is_told(monkeypatch, capsys):
    """One that forgets that softmax of version 11 takes all dims as one: of the model itself, and of what is converted to it."""
    plain = tool.ours

    def forgetful(path, case):
        wrong = any(o.version < 13 for o in case.model.opset_import)
        return [np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in case.inputs.values()] if wrong else plain(path, case)

    monkeypatch.setattr(tool, "ours", forgetful)
    assert tool.main(["--only", "Softmax", "--written"]) == 1
    said = capsys.readouterr().out
    assert "Softmax 11 -> 11 import" in said and "converter  ?" in said


@pytest.mark.parametrize(("opset", "dtype"), [(7, np.float32), (9, np.float32), (10, np.bool_)])
def test_the_mask_of_dropout_was_once_of_the_dtype_of_x(tmp_path, opset, dtype):
    """What it then holds the specification does not say; everything is kept."""
    result = imported(tmp_path, model_of([helper.make_node("Dropout", ["x"], ["y", "kept"])], {"x": (2, 3)}, ["y", "kept"], opset=opset, ir_version=8))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, kept = computed(result, {"x": x})
    assert kept.dtype == dtype and kept.all() and (y == x).all()


def test_versions_next_to_each_other():
    assert tool.neighbours("Softmax", 11) == [10, 13] and tool.neighbours("Softmax", 7) == [11] and tool.neighbours("Softmax", 21) == [12]
    assert tool.neighbours("Upsample", 9) == [8, 21], "it exists no more"
