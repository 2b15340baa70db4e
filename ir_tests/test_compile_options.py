"""What the options of `dmlc compile` do: memory limits, sizes of a model that leaves them open, `--check`, the gap beside the plan."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx_files import model_of

import dmlc.interpret.run
from dmlc.cli.main import guarded

torch.set_num_threads(1)
node = helper.make_node

PERCEPTRON = """
func.func @main(%x: tensor<64x256xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %w1: tensor<1024x256xf32> {dmlc.role = "param"}, %w2: tensor<256x1024xf32> {dmlc.role = "param"}) -> tensor<64x256xf32> {
  %h = dmlc.linear %x, %w1 : (tensor<64x256xf32>, tensor<1024x256xf32>) -> tensor<64x1024xf32>
  %g = dmlc.gelu %h : (tensor<64x1024xf32>) -> tensor<64x1024xf32>
  %y = dmlc.linear %g, %w2 : (tensor<64x1024xf32>, tensor<256x1024xf32>) -> tensor<64x256xf32>
  func.return %y : tensor<64x256xf32>
}
"""
MATRICES = 2 * 1024 * 256 * 4  # bytes


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "mlp.mlir").write_text(PERCEPTRON)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compile_(model: str, options: str = "") -> int:
    return guarded(["compile", model, "--no-kernel-report", "-o", "out", "--force", *options.split()])


def row(said: str, name: str) -> str:
    """A row of the table that a compile prints."""
    (found,) = [line.split(name, 1)[1].strip() for line in said.splitlines() if line.startswith(f"  {name}  ")]
    return found


def number(text: str) -> int:
    return int(text.split()[0].replace(",", ""))


# ---------------------------------------------------------------- memory


def held(said: str) -> int:
    return number(row(said, "held by a rank")) + number(row(said, "activations"))


def test_a_memory_limit_forces_another_plan(folder, capsys):
    assert compile_("mlp.mlir", "--devices 4") == 0
    free = capsys.readouterr().out
    assert held(free) > MATRICES // 2, "without a limit, communication costs more than holding a matrix whole"
    assert compile_("mlp.mlir", "--devices 4 --memory 1MB") == 0
    tight = capsys.readouterr().out
    assert held(tight) <= 1_000_000 < held(free)
    assert row(free, "plan").split(",", 2)[:2] != row(tight, "plan").split(",", 2)[:2]
    assert row(tight, "collectives") != "none", "what is split must be put together"


def test_a_memory_limit_that_nothing_meets_says_by_how_much(folder, capsys):
    assert compile_("mlp.mlir", "--devices 4 --memory 400kB") == 1
    said = capsys.readouterr().err
    words = said.replace(",", "").split()
    need, over = int(words[words.index("needs") + 1]), int(words[words.index("too") - 1])
    assert "no plan fits 400,000 bytes a rank" in said and need - over == 400_000 and need >= MATRICES // 4
    assert not Path("out").exists()
    assert compile_("mlp.mlir", f"--devices 4 --memory {need}") == 0, "and with what it says is needed, it compiles"
    assert held(capsys.readouterr().out) <= need


def test_more_devices_meet_what_few_do_not(folder, capsys):
    assert compile_("mlp.mlir", "--devices 1 --memory 1MB") == 1
    assert compile_("mlp.mlir", "--devices 8 --memory 1MB") == 0
    assert held(capsys.readouterr().out) <= 1_000_000


# ---------------------------------------------------------------- sizes


@pytest.fixture
def open_sizes(folder) -> str:
    """A model of token ids [batch, sequence] and a matrix [batch, 8]."""
    rng = np.random.default_rng(0)
    constants = {"table": rng.standard_normal((50, 8), np.float32), "w": rng.standard_normal((8, 4), np.float32), "one": np.array([1])}
    nodes = [
        node("Gather", ["table", "ids"], ["words"]), node("Unsqueeze", ["bias", "one"], ["wide"]), node("Add", ["words", "wide"], ["sum"]), node("MatMul", ["sum", "w"], ["y"]),
    ]  # fmt: skip
    onnx.save(model_of(nodes, {"ids": (TensorProto.INT64, ("batch", "sequence")), "bias": ("batch", 8)}, ["y"], constants), str(folder / "open.onnx"))
    return "open.onnx"


def sizes() -> dict[str, tuple[int, str]]:
    return {s["name"]: (s["size"], s["why"]) for s in json.loads(Path("out/plan.json").read_text())["sizes"]}


def table(name: str) -> dict:
    """A row of the compiled program's table of arguments."""
    found: dict = {}
    exec(Path("out/table.py").read_text(), found)
    return next(a for a in found["ARGUMENTS"] if a["name"] == name)


def test_open_sizes_stay_open(open_sizes, capsys):
    """The batch is planned for the number of devices, another size for 64, or as told."""
    assert compile_(open_sizes, "--devices 2 --size-hint sequence=9") == 0
    said = capsys.readouterr().out
    assert "batch from 1 and more, planned for 2" in said and "sequence from 1 and more, planned for 9" in said
    assert tuple(table("ids")["shape"]) == ("batch", "sequence") and sizes() == {}


def test_fixed_sizes_take_stated_defaults(open_sizes, capsys):
    assert compile_(open_sizes, "--devices 2 --fixed-sizes") == 0
    said = capsys.readouterr().out
    assert "sizes left open by the model:" in said and "batch = 2 (default: the number of devices)" in said and "sequence = 64 (default: 64)" in said
    assert tuple(table("ids")["shape"]) == (2, 64)


def test_dim_binds_a_name_everywhere(open_sizes, capsys):
    assert compile_(open_sizes, "--devices 2 --dim batch=6 --dim sequence=5") == 0
    assert sizes() == {"batch": (6, "--dim"), "sequence": (5, "--dim")}
    assert "batch = 6 (--dim)" in capsys.readouterr().out
    assert tuple(table("ids")["shape"]) == (6, 5) and tuple(table("bias")["shape"]) == (6, 8)


def test_shape_binds_the_names_of_its_dims(open_sizes):
    assert compile_(open_sizes, "--devices 2 --shape ids=4x7") == 0
    assert sizes() == {"batch": (4, "--shape"), "sequence": (7, "--shape")}
    assert tuple(table("ids")["shape"]) == (4, 7) and tuple(table("bias")["shape"]) == (4, 8)


def test_dim_of_a_pytorch_model(folder):
    assert compile_("dmlc.models.resnet:tiny", "--devices 2 --dim batch=4") == 0
    assert sizes() == {"batch": (4, "given")} and table("x")["shape"][0] == 4


# ---------------------------------------------------------------- the check


def matmul_and(folder: Path, name: str, *more: onnx.NodeProto, **constants: np.ndarray) -> str:
    weight = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    onnx.save(model_of([node("MatMul", ["x", "w"], ["h"]), *more], {"x": (4, 8)}, ["y"], {"w": weight, **constants}), str(folder / name))
    return name


def test_check_refuses_a_comparison_that_cannot_fail(folder, capsys):
    model = matmul_and(folder, "constant.onnx", node("Mul", ["h", "zero"], ["z"]), node("Exp", ["z"], ["y"]), zero=np.float32(0))
    assert compile_(model, "--devices 2 --check") == 1
    said = capsys.readouterr().err
    assert "constant.onnx: error: the check would prove nothing: outputs don't depend on the input" in said and not Path("out").exists()
    assert compile_(model, "--devices 2") == 0


def test_check_shows_spread_and_change(folder, capsys):
    assert compile_(matmul_and(folder, "good.onnx", node("Tanh", ["h"], ["y"])), "--devices 2 --plan tp=2 --check") == 0
    said = capsys.readouterr().out
    assert "check: y: off by " in said and "spread " in said and "of scale under another input" in said
    kept = np.load("out/check_inputs.npz"), np.load("out/check_outputs.npz")
    weight = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    np.testing.assert_allclose(kept[1]["y"], np.tanh(kept[0]["x"] @ weight), atol=1e-5)


def test_check_fails_when_the_program_differs(folder, monkeypatch, capsys):
    plain = dmlc.interpret.run.run
    monkeypatch.setattr(dmlc.interpret.run, "run", lambda *args, **kwargs: {n: x + 1e-3 for n, x in plain(*args, **kwargs).items()})
    assert compile_(matmul_and(folder, "good.onnx", node("Tanh", ["h"], ["y"])), "--devices 2 --check") == 1
    assert "good.onnx: error: the compiled program differs from the original by " in capsys.readouterr().err and not Path("out").exists()


# ---------------------------------------------------------------- the plan


def test_the_gap_stands_beside_the_plan(folder, capsys):
    assert compile_("mlp.mlir", "--devices 4") == 0
    said = row(capsys.readouterr().out, "plan")
    plan = json.loads(Path("out/plan.json").read_text())
    assert said.startswith(plan["plan"]) and f"optimality gap {plan['optimality_gap']:.2%}".replace("%", " %") in said
    assert 0 <= plan["optimality_gap"] < 0.05 and plan["proven_bound_ps"] <= plan["price_ps"] <= plan["second_best"]["price_ps"]
    assert f"second best {plan['second_best']['plan']}" in said
    assert guarded(["inspect", "out"]) == 0
    shown = capsys.readouterr().out
    assert f"{plan['optimality_gap']:.2%} above the best (proven bound" in shown and plan["second_best"]["plan"] in shown
