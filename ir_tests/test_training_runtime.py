"""The trainer of an output folder: data, steps, evaluation, export. Ranks, plans and batch sizes must not change what is trained."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper
from safetensors.torch import load_file
from training_folder import CLASSES, INPUTS, PARAMS, write_training_folder
from training_ranks import Job, logged, train

from dmlc.codegen.output import TRAINING_FILES

torch.set_num_threads(1)

SAMPLES = 13

DATA = f'''
import torch

class Rows:
    """Counts what is read of it."""

    def __init__(self, n={SAMPLES}):
        draw = torch.Generator().manual_seed(3)
        self.x = torch.randn(n, {INPUTS}, generator=draw, dtype=torch.float64)
        self.y = torch.randint(0, {CLASSES}, (n,), generator=draw)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]

class Stream:
    def __iter__(self):
        rows = Rows()
        return ({{"x": rows.x[i].numpy(), "target": int(rows.y[i])}} for i in range(len(rows)))

def make():
    return Rows()

def stream():
    return Stream()

def generator():
    yield from Stream()

def wrong():
    return [(torch.zeros(2), 0)] * 8
'''


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Folders of one model for several plans; 8 samples in two microbatches each."""
    place = tmp_path_factory.mktemp("training")
    (place / "rows.py").write_text(DATA)
    made = {"one": (1, 4, False), "two": (2, 2, False), "split": (4, 1, True)}
    return {name: write_training_folder(place / name, ranks, rows, split=split) for name, (ranks, rows, split) in made.items()} | {"data": place / "rows.py"}


@pytest.fixture
def modules(folders) -> Iterator[Any]:
    """The trainer's modules, imported from a folder."""
    sys.path.insert(0, str(folders["one"]))
    names = [n.removesuffix(".py") for n in TRAINING_FILES if n.endswith(".py")] + ["runtime", "prelude", "launch", "table"]
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(folders["one"]))
        for name in names:
            sys.modules.pop(name, None)


def rows_of(path: Path) -> Any:
    found: dict[str, Any] = {}
    exec(path.read_text(), found)
    return found["Rows"]()


def eager(modules: Any, folders: dict[str, Path], steps: int, batch: int = 8, lr: float = 0.1, max_norm: float = 0.5) -> tuple[list[float], dict[str, Any]]:
    """The same training in plain PyTorch, on batches in the trainer's order."""
    p = {n: x.requires_grad_() for n, x in load_file(str(folders["one"] / "weights/model.safetensors")).items()}
    optimizer, rows, losses = torch.optim.SGD(p.values(), lr, momentum=0.9, weight_decay=0.01), rows_of(folders["data"]), []
    batches = [part for epoch in range(steps) for part in modules.data.epoch_order(SAMPLES, epoch, 5, True).split(batch)]
    for part in batches[:steps]:
        optimizer.zero_grad()
        loss = F.cross_entropy(torch.relu(rows.x[part] @ p["w1"].T + p["b1"]) @ p["w2"].T, rows.y[part])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), max_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, p


OPTIONS = ("--lr", 0.1, "--weight-decay", 0.01, "--max-norm", 0.5, "--seed", 5)


@pytest.mark.parametrize("name, ranks", [("one", 1), ("two", 2), ("split", 4)])
def test_it_trains_as_pytorch_does_with_a_ragged_last_batch(modules, folders, name, ranks, tmp_path):
    log, weights = tmp_path / "log.jsonl", tmp_path / "w.safetensors"
    output = train(folders[name], ranks, "--data", f"{folders['data']}:make", "--epochs", 3, *OPTIONS, "--log", log, "--export", weights)
    losses, p = eager(modules, folders, 6)
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert [r["samples"] for r in found] == [8, 5] * 3 and [r["epoch"] for r in found] == [0, 0, 1, 1, 2, 2]
    assert [r["loss"] for r in found] == pytest.approx(losses, abs=1e-12)
    assert found[0].keys() >= {"step", "loss", "lr", "grad_norm", "samples", "seconds"} and "done: 6 steps, 39 samples" in output
    trained = load_file(str(weights))
    assert trained.keys() == {"layer.w1", "tied.w1", "layer.b1", "layer.w2"}
    for name, value in trained.items():
        assert torch.allclose(value, p[name.split(".")[1]], atol=1e-12), name


@pytest.mark.parametrize("batch, microbatches", [(4, 1), (12, 3), (13, 4), (5, 2)])
def test_batch_and_microbatches_are_chosen_at_run_time(modules, folders, batch, microbatches, tmp_path):
    log = tmp_path / "log.jsonl"
    options = ("--data", f"{folders['data']}:make", "--steps", 5, "--batch", batch, "--load-threads", 3, *OPTIONS, "--log", log)
    output = train(folders["two"], 2, *options)
    assert f"{batch} samples a step in {microbatches} microbatch(es)" in output
    assert list(logged(log).values()) == pytest.approx(eager(modules, folders, 5, batch)[0], abs=1e-12)


@pytest.mark.parametrize("function", ["stream", "generator"])
def test_an_iterable_gives_the_same_samples_and_resumes_where_it_was(folders, function, tmp_path):
    whole, first = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    base = ("--data", f"{folders['data']}:{function}", *OPTIONS)
    train(folders["one"], 1, *base, "--steps", 5, "--log", whole)
    parts = (*base, "--log", first, "--checkpoint-dir", tmp_path / "ck", "--resume", "auto")
    train(folders["two"], 2, *parts, "--steps", 3)
    train(folders["two"], 2, *parts, "--steps", 5)
    assert logged(first) == pytest.approx(logged(whole), abs=1e-12)
    rows = "--data", f"{folders['data']}:make", "--no-shuffle", *OPTIONS, "--steps", 5, "--log", first
    train(folders["one"], 1, *rows)
    assert logged(first) == pytest.approx(logged(whole), abs=1e-12)


def test_drop_last_leaves_out_the_rest_of_an_epoch(folders, tmp_path):
    log = tmp_path / "log.jsonl"
    train(folders["one"], 1, "--data", f"{folders['data']}:make", "--epochs", 3, "--drop-last", "--log", log)
    assert [(r["samples"], r["epoch"]) for r in map(json.loads, log.read_text().splitlines())] == [(8, 0), (8, 1), (8, 2)]


# ---------------------------------------------------------------- which rows a rank loads


@pytest.mark.parametrize("ranks, rows, microbatches, valid", [(1, 4, 2, 8), (2, 2, 2, 8), (4, 1, 2, 5), (2, 2, 3, 7), (4, 2, 2, 3), (3, 1, 4, 11)])
def test_ranks_load_their_rows_and_no_others(modules, ranks, rows, microbatches, valid):
    table = {"name": "x", "dtype": "int64", "shape": (2, ranks * rows), "dims": ((), ("data",)), "grains": (1, 1), "batch_dim": 0, "micro": True}
    seen = []
    for rank in range(ranks):
        mesh = modules.runtime.Mesh({"data": ranks})
        mesh.rank = rank
        layout = modules.data.Layout([table], mesh)
        needed = layout.needed(microbatches, valid)
        x = layout.tensors({i: (i,) for i in needed}, microbatches, valid)["x"]
        assert x.shape == (microbatches, rows)
        for i in range(microbatches):
            for j in range(rows):
                place = (i * ranks + rank) * rows + j
                assert place >= valid or x[i, j] == place
        seen.append([int(n) for n in x.flatten().tolist() if n < valid])
        assert set(needed) <= {(i * ranks + rank) * rows + j for i in range(microbatches) for j in range(rows)} | {0}
    assert {n for s in seen for n in s} == set(range(valid))


def test_a_batch_dim_that_is_not_the_first_and_a_dim_split_over_ranks(modules):
    row = {"name": "x", "dtype": "float32", "shape": (2, 5, 4), "dims": ((), ("model",), ("data",)), "grains": (1, 1, 1), "batch_dim": 1, "micro": True}
    mesh = modules.runtime.Mesh({"data": 2, "model": 2})
    mesh.rank = 3
    layout = modules.data.Layout([row], mesh)
    samples = {i: {"x": np.arange(5) + 10.0 * i} for i in layout.needed(2, 8)}
    x = layout.tensors(samples, 2, 8)["x"]
    assert x.tolist() == [[[23, 33], [24, 34], [0, 0]], [[63, 73], [64, 74], [0, 0]]]


def test_the_order_depends_on_seed_and_epoch_alone(modules):
    orders = [modules.data.epoch_order(50, epoch, seed, True).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(o) == list(range(50)) for o in orders) and len({tuple(o) for o in orders}) == 4
    assert modules.data.epoch_order(50, 1, 0, True).tolist() == orders[1]
    assert modules.data.epoch_order(5, 1, 0, False).tolist() == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------- schedules, metrics


@pytest.mark.parametrize("name, final", [("constant", 0.0), ("linear", 0.1), ("linear", 0.0), ("cosine", 0.0), ("cosine", 0.2)])
@pytest.mark.parametrize("warmup", [0, 1, 4])
def test_schedules_are_those_of_pytorch(modules, name, final, warmup):
    from torch.optim import lr_scheduler as S

    total, base = 15, 0.3
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], base)
    after = {
        "constant": lambda: S.ConstantLR(optimizer, 1.0),
        "linear": lambda: S.LinearLR(optimizer, 1.0, max(final, 1e-30), total - warmup),
        "cosine": lambda: S.CosineAnnealingLR(optimizer, total - warmup, base * final),
    }[name]()
    first = S.LinearLR(optimizer, 1 / max(warmup, 1), 1.0, max(warmup - 1, 1))
    scheduler = S.SequentialLR(optimizer, [first, after], [warmup]) if warmup else after
    for step in range(total + 1):
        assert modules.schedule.learning_rate(step, base, name, warmup, total, final) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12), step
        optimizer.step()
        scheduler.step()


def test_the_noise_scale_is_found_from_norms(modules):
    draw, noise = np.random.default_rng(0), modules.metrics.NoiseScale(decay=0.999)
    true, deviation = np.full(100, 0.3), 2.0  # tr(S) = 100 * 4, |G|^2 = 9: 400 / 9
    for _ in range(4000):
        small = true + deviation / math.sqrt(8) * draw.standard_normal((4, 100))
        noise.add(8, math.sqrt((small**2).sum(1).mean()), 32, float(np.linalg.norm(small.mean(0))))
    assert noise.value == pytest.approx(400 / 9, rel=0.1)
    assert modules.metrics.NoiseScale().value is None


def test_measuring_the_noise_scale_leaves_the_training_as_it_is(folders, tmp_path):
    options = ("--steps", 6, *OPTIONS, "--log", tmp_path / "log.jsonl")
    train(folders["two"], 2, *options)
    plain = logged(tmp_path / "log.jsonl")
    train(folders["two"], 2, *options, "--noise-every", 1)
    assert logged(tmp_path / "log.jsonl") == plain and logged(tmp_path / "log.jsonl", "noise_scale")


# ---------------------------------------------------------------- evaluation and export


def test_evaluation_sums_over_all_batches(modules, folders, tmp_path):
    log, weights = tmp_path / "log.jsonl", tmp_path / "w.pt"
    data = f"{folders['data']}:make"
    output = train(folders["two"], 2, "--data", data, "--eval-data", data, "--eval-every", 2, "--steps", 5, "--log", log, "--export", weights, *OPTIONS)
    p, rows = torch.load(weights), rows_of(folders["data"])
    logits = torch.relu(rows.x @ p["layer.w1"].T + p["layer.b1"]) @ p["layer.w2"].T
    accuracy = float((logits.argmax(1) == rows.y).double().mean())
    assert logged(log, "eval_loss").keys() == {2, 4, 5}
    assert logged(log, "eval_loss")[5] == pytest.approx(float(F.cross_entropy(logits, rows.y)), abs=1e-12)
    assert logged(log, "accuracy")[5] == pytest.approx(accuracy) and f"accuracy {accuracy:.5g}" in output


def perceptron_onnx(path: Path) -> Path:
    """The hand-written model as ONNX; one weight is a Constant node."""
    values = {f"layer.{n}": np.zeros(s, np.float32) for n, s in PARAMS.items()} | {"tied.w1": np.zeros(PARAMS["w1"], np.float32)}
    nodes = [
        helper.make_node("Gemm", ["x", "layer.w1", "layer.b1"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Constant", [], ["layer.w2"], value=numpy_helper.from_array(values.pop("layer.w2"))),
        helper.make_node("Gemm", ["r", "layer.w2"], ["y"], transB=1),
    ]
    inputs, outputs = ([helper.make_tensor_value_info(n, 1, s)] for n, s in (("x", ("batch", INPUTS)), ("y", ("batch", CLASSES))))
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in values.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


def test_trained_weights_go_back_into_the_onnx_file(tmp_path, folders):
    folder = write_training_folder(tmp_path / "f", 2)
    perceptron_onnx(folder / "source.onnx")
    weights, first = tmp_path / "w.safetensors", tmp_path / "first.onnx"
    train(folder, 2, "--steps", 3, "--export", weights, "--export-onnx", first, "--checkpoint-dir", tmp_path / "ck")
    p, x = load_file(str(weights)), np.random.default_rng(0).standard_normal((4, INPUTS)).astype(np.float32)
    logits = torch.relu(torch.from_numpy(x).double() @ p["layer.w1"].T + p["layer.b1"]) @ p["layer.w2"].T
    (found,) = onnxruntime.InferenceSession(str(first)).run(None, {"x": x})
    assert np.allclose(found, logits.numpy(), atol=1e-5) and np.abs(found).max() > 0.1

    command = [sys.executable, str(folder / "export.py"), "--checkpoint", str(tmp_path / "ck"), "--onnx", str(tmp_path / "second.onnx")]
    done = subprocess.run([*command, "--out", str(tmp_path / "second.safetensors")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "second.onnx").read_bytes() == first.read_bytes()
    again = load_file(str(tmp_path / "second.safetensors"))
    assert again.keys() == p.keys() and all(torch.equal(again[n], p[n]) for n in p)


# ---------------------------------------------------------------- refusals


def refused(folder: Path, ranks: int, *arguments: object) -> str:
    ended = Job(folder, ranks, ["--device", "cpu", *arguments]).end()
    assert all(s not in (0, -9) for s in ended.statuses), ended
    assert "Traceback" not in ended.output, ended.output
    return ended.output


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("--data", "{data}:wrong"), "x of a sample has shape (2,); the program is compiled for (6,)"),
        (("--data", "{data}:nothing"), "has no function nothing"),
        (("--data", "{data}:stream"), "the dataset does not tell its length: give --steps"),
        (("--batch", "9", "--microbatches", "2"), "--batch 9 does not fit 2 microbatches of 4 samples; give --microbatches 3"),
        (("--resume", "{data}"), "holds no complete checkpoint"),
        (("--export-onnx", "a.onnx", "--steps", "0"), "this program was not compiled from an ONNX file"),
    ],
)
def test_what_cannot_be_is_said_once_in_a_sentence(folders, arguments, sentence):
    output = refused(folders["two"], 2, *(a.format(data=folders["data"]) for a in arguments))
    assert output.count(sentence) == 1, output


def test_a_program_that_mixes_samples_gets_full_batches_only(tmp_path, folders):
    folder, data = write_training_folder(tmp_path / "f", 1, rows=4, microbatches=1), f"{folders['data']}:make"
    for name in ("table.py", "evaluation_table.py"):
        text = (folder / name).read_text()
        (folder / name).write_text(text + "\nARGUMENTS = [a for a in ARGUMENTS if a['role'] != 'size']\n")
    (folder / "model.py").write_text((folder / "model.py").read_text().replace('weights["batch_size"]', "4").replace('int(weights["microbatches"])', "1"))
    assert "this program takes batches of 4 samples, not 3" in refused(folder, 1, "--batch", 3)
    assert "this program takes 1 microbatch(es), not 2" in refused(folder, 1, "--batch", 8)
    output = train(folder, 1, "--data", data, "--eval-data", data, "--epochs", 1)
    assert "done: 3 steps, 12 samples" in output and "the evaluation leaves out the last 1 sample(s)" in output


def test_ranks_with_different_programs_do_not_start(tmp_path, folders):
    other = write_training_folder(tmp_path / "other", 2)
    (other / "model.py").write_text((other / "model.py").read_text() + "\n# another program\n")
    first = Job(folders["two"], 2, ["--steps", "1", "--device", "cpu"], {"OTHER_FOLDER": str(other)})
    ended = first.end()
    assert ended.statuses == [1, 1] and ended.output.count("the ranks hold different programs (model.py differs)") == 1, ended.output
