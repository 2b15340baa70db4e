"""`dmlc compile --explain-import`: counts, what operators become, what is missing; exit codes; nothing is written."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_files import model_of

from dmlc.cli.main import guarded

node = helper.make_node


def explained(folder: Path, model: onnx.ModelProto, capsys, *options: str) -> tuple[int, str, dict[str, str]]:
    """Exit code, the whole text, and the line of each operator."""
    onnx.save(model, str(folder / "model.onnx"))
    code = guarded(["compile", str(folder / "model.onnx"), "--explain-import", *options])
    text = capsys.readouterr().out
    assert sorted(p.name for p in folder.iterdir()) == ["model.onnx"]
    return code, text, lines_of(text)


def lines_of(text: str) -> dict[str, str]:
    """By operator, its version left out."""
    return {line.split()[0].split("-")[0]: re.sub(" +", " ", line) for line in text.splitlines()[3:] if "  " in line}


def test_a_model_that_is_supported(tmp_path, capsys):
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["r"]), node("Conv", ["r", "v", "b"], ["d"]), node("Shape", ["d"], ["s"]),
        node("Expand", ["one", "s"], ["e"]), node("Add", ["d", "e"], ["y"]),
    ]  # fmt: skip
    constants = {"w": np.ones((3, 2, 3, 3), np.float32), "v": np.ones((4, 3, 1, 1), np.float32), "b": np.ones(4, np.float32), "one": np.ones(1, np.float32)}
    code, text, lines = explained(tmp_path, model_of(nodes, {"x": (1, 2, 5, 5)}, ["y"], constants), capsys)
    assert code == 0 and text.endswith("all of it is supported\n") and "6 nodes of 5 operators" in text
    assert lines["Conv"].startswith("Conv-11 2 2 conv, ") and "add" in lines["Conv"]
    assert lines["Relu"] == "Relu-14 1 relu" and "known at import" in lines["Shape"]


def test_all_that_is_missing_is_named(tmp_path, capsys):
    """With its nodes, although other nodes read its results; what cannot be looked at is counted."""
    nodes = [
        node("Bogus", ["x"], ["a"], name="first", domain="my"), node("Relu", ["a"], ["b"]), node("Bogus", ["x"], ["c"], name="second", domain="my"),
        node("StringNormalizer", ["b"], ["d"], name="words"), node("Neg", ["x"], ["e"]),
    ]  # fmt: skip
    code, text, lines = explained(tmp_path, model_of(nodes, {"x": (2,)}, ["d", "c", "e"], domains=["my"]), capsys)
    assert code == 1 and "not supported: my.Bogus (2×), StringNormalizer-10 (1×)" in text
    assert "(first, second)" in lines["my.Bogus"] and "(words)" in lines["StringNormalizer"]
    assert "1 not looked at" in lines["Relu"] and lines["Neg"] == "Neg-13 1 neg"


def test_bodies_and_functions(tmp_path, capsys):
    info = helper.make_tensor_value_info
    nodes = [node("Add", ["s", "x"], ["t"], name="inside")]
    body = helper.make_graph([*nodes, node("Identity", ["t"], ["row"])], "body", [info("s", 1, [3]), info("x", 1, [3])], [info("t", 1, [3]), info("row", 1, [3])])
    scan = node("Scan", ["start", "x"], ["last", "rows"], body=body, num_scan_inputs=1)
    function = helper.make_function("own", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 21)])
    model = model_of([scan, node("Twice", ["last"], ["y"], domain="own")], {"x": (4, 3)}, ["y", "rows"], {"start": np.zeros(3, np.float32)}, functions=[function], domains=["own"])
    code, _, lines = explained(tmp_path, model, capsys)
    assert code == 0 and "its body written out 4 times" in lines["Scan"]
    assert "its body of 1 nodes in its place" in lines["own.Twice"] and lines["Add"].startswith("Add-14 5 5 add")


def test_an_error_that_is_no_missing_operator(tmp_path, capsys):
    code, text, _ = explained(tmp_path, model_of([node("Neg", ["x"], ["t"]), node("Reshape", ["t", "s"], ["y"])], {"x": (4,)}, ["y"], {"s": np.array([3])}), capsys)
    assert code == 1 and "the import stops: y: error: Reshape" in text


def test_ops_that_every_rank_computes_whole(tmp_path, capsys):
    """The order of one row; of several rows each rank could take some."""
    for shape, whole in (((10,), True), ((4, 10), False)):
        model = model_of([node("TopK", ["x", "k"], ["y", "i"])], {"x": shape}, ["y", "i"], {"k": np.array([3])})
        code, _, lines = explained(tmp_path, model, capsys)
        assert code == 0 and ("computed whole on every rank: topk" in lines["TopK"]) == whole


MODEL = """
import torch
class Known(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x) + 1
class Unknown(torch.nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x) + torch.special.bessel_j0(x + 1) + torch.nn.functional.gelu(x)
def known(): return Known(), (torch.ones(3),)
def unknown(): return Unknown(), (torch.ones(3),)
"""


@pytest.mark.parametrize("name", ["known", "unknown"])
def test_pytorch_programs(tmp_path, capsys, name):
    (tmp_path / "m.py").write_text(MODEL)
    code = guarded(["compile", f"{tmp_path / 'm.py'}:{name}", "--explain-import"])
    text = capsys.readouterr().out
    lines = lines_of(text)
    if name == "known":
        assert code == 0 and lines["aten.gelu.default"] == "aten.gelu.default 1 gelu"
        return
    assert code == 1 and "not supported: aten.special_bessel_j0.default (2×)" in text
    assert "m.py:8" in lines["aten.special_bessel_j0.default"] and lines["aten.gelu.default"].startswith("aten.gelu.default 1")


def test_text_is_refused(tmp_path, capsys):
    (tmp_path / "m.mlir").write_text("builtin.module {\n}\n")
    assert guarded(["compile", str(tmp_path / "m.mlir"), "--explain-import"]) == 1
    assert "takes an ONNX file or a PyTorch model" in capsys.readouterr().err
