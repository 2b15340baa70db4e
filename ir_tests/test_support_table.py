"""The tables of operators are what the importers say: `python tools/support_table.py` writes them anew."""

from __future__ import annotations

import pytest

from dmlc.frontend.onnx.table import Unsupported
from dmlc.tools.support_table import aten_operators, onnx_operators, refusals, refuses, wanted, with_summary


def test_the_tables_are_up_to_date():
    for path, text in wanted().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run python tools/support_table.py"


def test_tables_say_what_importers_do():
    operators = {o.name: o for o in onnx_operators("")}
    assert operators["Conv"].works and operators["Conv"].missing == ()
    assert operators["MatMul"].handled[0] == 1 and max(operators["Softmax"].handled) == 13
    assert not operators["StringNormalizer"].works and operators["StringNormalizer"].missing
    assert "Gelu" in {o.name for o in onnx_operators("com.microsoft")}
    assert {"gelu", "linear"} <= {name for name, _ in aten_operators()}


def whole(n):
    """Nothing of it."""
    raise Unsupported("none of it")


def in_part(n, to):
    if n:
        raise Unsupported(f"a conversion to {to}")
    return n


def test_refusals_are_read_from_the_importers():
    assert refuses(whole) and refusals(whole) == ("none of it",)
    assert not refuses(in_part) and refusals(in_part) == ("a conversion to …",)
    assert not refuses(len) and refusals(len) == ()


def test_a_readme_without_marks_is_told():
    with pytest.raises(ValueError, match="lacks"):
        with_summary("# no table\n")
