"""What `dmlc compile --train` writes: a step that frees old values as new ones come, tables, plan, and folders that train, evaluate and give weights back."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from test_train_import import trainable_model

import dmlc.ops  # noqa: F401
from dmlc.cli.main import guarded
from dmlc.codegen.lifetimes import last_uses, replaced
from dmlc.codegen.pytorch import emit_model
from dmlc.codegen.table import emit_table
from dmlc.ir.core import Module
from dmlc.ir.parser import parse_module
from dmlc.ir.verifier import verify

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("warm")

STEP = """
builtin.module attributes {dmlc.mode = "train", dmlc.spmd, dmlc.request = {devices = 1 : i64, plan = "auto", microbatches = 2 : i64, batch = 6 : i64}, dmlc.train = {loss = "mse", optimizer = "sgd"}} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["micro"=2:sequential]>} : () -> ()
  func.func @main(%x: tensor<2x3x4xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64, dmlc.micro, dmlc.sharding = #dmlc.sharding<@mesh, [{}, {}, {}]>}, %w: tensor<5x4xf32> {dmlc.role = "param", dmlc.names = ["layer.weight", "tied.weight"]}, %w_m: tensor<5x4xf32> {dmlc.role = "state", dmlc.of = "w", dmlc.slot = "m", dmlc.init = 0.0 : f64}, %lr: tensor<f32> {dmlc.role = "hyper"}, %opt_step: tensor<i64> {dmlc.role = "state", dmlc.init = 0 : i64}, %microbatches: tensor<i64> {dmlc.role = "size"}) -> (tensor<f32> {dmlc.name = "loss"}, tensor<5x4xf32> {dmlc.name = "w", dmlc.updates = "w"}, tensor<5x4xf32> {dmlc.name = "w_m", dmlc.updates = "w_m"}, tensor<i64> {dmlc.name = "opt_step", dmlc.updates = "opt_step"}) {
    %total, %g = dmlc.microbatch %microbatches {count = 2 : i64} {
    ^bb0(%i: tensor<i64>):
      %one = dmlc.shard_slice %x, %i {dim = 0 : i64, size = 1 : i64} : (tensor<2x3x4xf32>, tensor<i64>) -> tensor<1x3x4xf32>
      %rows = dmlc.reshape %one : (tensor<1x3x4xf32>) -> tensor<3x4xf32>
      %y = dmlc.linear %rows, %w : (tensor<3x4xf32>, tensor<5x4xf32>) -> tensor<3x5xf32>
      %square = dmlc.mul %y, %y : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
      %sum = dmlc.reduce_sum %square {dims = array<i64: 0, 1>} : (tensor<3x5xf32>) -> tensor<f32>
      %dw = dmlc.contract %y, %rows {equation = "nj,nk->jk"} : (tensor<3x5xf32>, tensor<3x4xf32>) -> tensor<5x4xf32>
      dmlc.yield %sum, %dw : (tensor<f32>, tensor<5x4xf32>) -> ()
    } : (tensor<i64>) -> (tensor<f32>, tensor<5x4xf32>)
    %m = dmlc.add %w_m, %g : (tensor<5x4xf32>, tensor<5x4xf32>) -> tensor<5x4xf32>
    %change = dmlc.mul %m, %lr : (tensor<5x4xf32>, tensor<f32>) -> tensor<5x4xf32>
    %new = dmlc.sub %w, %change : (tensor<5x4xf32>, tensor<5x4xf32>) -> tensor<5x4xf32>
    %plus = dmlc.full {value = 1 : i64} : () -> tensor<i64>
    %next = dmlc.add %opt_step, %plus : (tensor<i64>, tensor<i64>) -> tensor<i64>
    func.return %total, %new, %m, %next : tensor<f32>, tensor<5x4xf32>, tensor<5x4xf32>, tensor<i64>
  }
}
"""


def step() -> Module:
    module = parse_module(STEP)
    verify(module)
    return module


# ---------------------------------------------------------------- the emitted step


def line_of(text: str, pattern: str) -> int:
    (found,) = [i for i, line in enumerate(text.splitlines()) if re.search(pattern, line)]
    return found


def test_a_new_value_takes_the_old_ones_place_after_its_last_use():
    text = emit_model(step(), "a step")
    assert line_of(text, r"weights\['w_m'\] = ") < line_of(text, r"= torch\.sub\(w, .*, out=w\)") < line_of(text, r"weights\['w'\] = ")
    assert re.search(r"weights\['w'\] = \w+\n\s+del .*\bw\b", text) and "weights['opt_step'] =" not in text
    assert text.count(".add_(") == 1, "the gradient is added up in place, the scalar is not"
    assert re.search(r"for \w+ in map\(torch.tensor, range\(int\(microbatches\)\)\)", text)


def test_an_argument_that_is_read_later_is_replaced_later():
    text = STEP.replace("%plus = dmlc.full", "%late = dmlc.neg %w : (tensor<5x4xf32>) -> tensor<5x4xf32>\n    %plus = dmlc.full").replace(
        "func.return %total, %new", "func.return %total, %late"
    )
    module = parse_module(text)
    (after,) = [op for op, pairs in replaced(module.main).items() if any(a.name == "w" for a, _ in pairs)]
    assert after.name == "dmlc.neg"


def test_a_value_behind_a_barrier_goes_after_the_barriers_last_reader():
    module = parse_module("""func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %a = dmlc.exp %x : (tensor<3xf32>) -> tensor<3xf32>
      %b = dmlc.sin %a : (tensor<3xf32>) -> tensor<3xf32>
      %c = dmlc.barrier %a, %b : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
      %d = dmlc.neg %c : (tensor<3xf32>) -> tensor<3xf32>
      %e = dmlc.add %d, %b : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
      func.return %e : tensor<3xf32>
    }""")
    gone = {op.name: [v.op.name for v in values] for op, values in last_uses(module.main.body).items()}  # type: ignore[union-attr]
    assert gone == {"dmlc.neg": ["dmlc.exp"], "dmlc.add": ["dmlc.sin", "dmlc.neg"]}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The emitted step as a function (weights, inputs) -> results."""
    from dmlc.codegen.copied import prelude_text

    (tmp_path / "prelude.py").write_text(prelude_text())
    (tmp_path / "runtime.py").write_text("class Collectives:\n    def __init__(self, mesh):\n        pass\n\n\ndef keep_freed_memory():\n    pass\n")
    (tmp_path / "step.py").write_text(emit_model(step(), "a step"))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("prelude", "runtime"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    made = runpy.run_path(str(tmp_path / "step.py"))["Program"](None, torch.device("cpu"))
    yield made
    for name in ("prelude", "runtime"):
        __import__("sys").modules.pop(name, None)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_the_number_of_microbatches_is_told_when_it_runs(program, count):
    draw = torch.Generator().manual_seed(0)
    x, w, m = torch.randn(count, 3, 4, generator=draw), torch.randn(5, 4, generator=draw), torch.randn(5, 4, generator=draw)
    old, first, kept = w.clone(), m.clone(), x.clone()
    weights = {"w": w, "w_m": m, "lr": torch.tensor(0.1), "opt_step": torch.tensor(3), "microbatches": torch.tensor(count)}
    loss, new, new_m, steps = program(weights, {"x": x})
    rows = x.reshape(-1, 4)
    y = rows @ old.T
    torch.testing.assert_close(loss, y.square().sum())
    torch.testing.assert_close(new, old - 0.1 * (first + y.T @ rows))
    assert weights["w"] is new is w, "the new value lies where the old one did"
    assert weights["w_m"] is new_m and int(steps) == 4 and torch.equal(x, kept)


def test_the_table_says_what_the_trainer_asks():
    table: dict = {}
    exec(emit_table(step(), None, "net"), table)
    rows = {a["name"]: a for a in table["ARGUMENTS"]}
    assert table["TRAIN"] == {
        "batch": 6, "microbatches": 2, "rows": 3, "data_axes": (), "loss": "mse", "optimizer": "sgd", "plan": "", "target": None, "model": "net",
    }  # fmt: skip
    assert rows["x"]["micro"] and rows["x"]["batch_dim"] == 0 and rows["x"]["shape"] == (2, 3, 4)
    assert rows["w"]["names"] == ("layer.weight", "tied.weight") and not rows["w"]["frozen"]
    assert (rows["w_m"]["of"], rows["w_m"]["slot"], rows["w_m"]["init"]) == ("w", "m", 0.0)
    assert [r["updates"] for r in table["RESULTS"]] == [None, "w", "w_m", "opt_step"]


# ---------------------------------------------------------------- whole folders

DATA = """
import torch

def samples():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(16, {width}, generator=draw)
    return torch.utils.data.TensorDataset(x, (x @ torch.randn({width}, {classes}, generator=draw)).argmax(-1))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def evaluated(said: str) -> float:
    (found,) = re.findall(r"evaluation loss (\S+)", said)
    return float(found)


def test_a_perceptron_trains_on_two_ranks(folder, capfd):
    (folder / "data.py").write_text(DATA.format(width=24, classes=10))
    options = ["--train", "--loss", "cross-entropy", "--devices", "2", "--plan", "dp=2,zero=1", "--microbatches", "2", "--check", "--no-kernel-report"]
    assert guarded(["compile", "dmlc.models.mlp:tiny", "-o", "out", *options]) == 0
    said = capfd.readouterr().out
    assert re.search(r"check: loss .* from PyTorch in float64", said) and "arguments after a step" in said and "dp=2,tp=1,zero=1" in said
    facts = json.loads(Path("out/plan.json").read_text())["training"]
    weights = 4 * (24 * 37 + 37 + 37 * 10 + 10)
    assert facts["bytes_a_rank"]["parameters"] == facts["bytes_a_rank"]["gradients"] == weights
    assert 0.9 * weights < facts["bytes_a_rank"]["optimizer_state"] < 1.1 * weights  # two slots, each split over two ranks
    assert facts["trained"] == 4 and facts["degrees"] == {"dp": 2, "tp": 1, "zero": 1} and "all_reduce" in facts["collectives_a_step"]
    run = ["run", "out", "--data", "data.py:samples", "--eval-data", "data.py:samples", "--batch", "6", "--lr", "0.01", "--eval-every", "1000", "--drop-last"]
    assert guarded([*run, "--steps", "1"]) == 0
    before = evaluated(capfd.readouterr().out)
    assert guarded([*run, "--steps", "40"]) == 0
    assert evaluated(capfd.readouterr().out) < 0.8 * before
    assert guarded(["inspect", "out"]) == 0
    assert "training   loss cross-entropy, adamw, 6 samples a step in 2 microbatch(es), 4 parameters trained" in capfd.readouterr().out
    assert guarded(["run", "out", "--nproc", "4"]) == 1 and "is compiled for 2 ranks, not 4" in capfd.readouterr().err


def test_trained_weights_go_back_into_the_onnx_file(folder, capfd):
    (folder / "data.py").write_text(DATA.format(width=6, classes=3))
    model = trainable_model(folder, training=0)
    options = ["--train", "--loss", "cross-entropy", "--optimizer", "sgd", "--devices", "2", "--plan", "dp=2", "--batch-dim", "x:0", "--no-kernel-report"]
    assert guarded(["compile", str(model), "-o", "out", *options]) == 0
    said = capfd.readouterr().out
    assert "trained: w, s, b, u, bias" in said and "keeps its running statistics" in said
    run = ["run", "out", "--data", "data.py:samples", "--eval-data", "data.py:samples", "--steps", "8", "--lr", "0.1", "--export-onnx", "trained.onnx"]
    assert guarded(run) == 0
    reported = evaluated(capfd.readouterr().out)
    found = {t.name: numpy_helper.to_array(t) for t in onnx.load("trained.onnx").graph.initializer}
    given = {t.name: numpy_helper.to_array(t) for t in onnx.load(str(model)).graph.initializer}
    assert sorted(n for n in given if not np.array_equal(given[n], found[n])) == ["b", "bias", "s", "u", "w"]
    assert abs(onnx_loss("trained.onnx") - reported) < 1e-4 * reported


def onnx_loss(path: str) -> float:
    """Mean cross entropy of the samples by onnxruntime."""
    samples = runpy.run_path("data.py")["samples"]()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x, y = samples.tensors
    logits = np.concatenate([session.run(["y"], {"x": x[i : i + 4].numpy()})[0] for i in range(0, 16, 4)])
    return float(torch.nn.functional.cross_entropy(torch.from_numpy(logits), y))
