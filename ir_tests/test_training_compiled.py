"""Folders that `dmlc compile --train` writes, trained by their own launcher: an ONNX model under several plans, over restarts, and back to ONNX."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper
from onnx_models import CASES as ONNX_CASES
from safetensors.torch import load_file
from training_ranks import logged, train

from dmlc.cli.main import guarded
from dmlc.models import digits

torch.set_num_threads(1)

INPUTS, HIDDEN, CLASSES, SAMPLES = 6, 10, 3, 21

DATA = f"""
import torch

def make():
    draw = torch.Generator().manual_seed(3)
    x = torch.randn({SAMPLES}, {INPUTS}, generator=draw)
    y = (x[:, :{CLASSES}] + 0.3 * x[:, {CLASSES}:]).argmax(1)
    return torch.utils.data.TensorDataset(x, y)
"""


def classifier(path: Path) -> Path:
    """Two layers around a batch norm, with seeded weights."""
    draw = np.random.default_rng(0)
    values = {"first.weight": draw.standard_normal((HIDDEN, INPUTS)) / 2, "first.bias": np.zeros(HIDDEN), "norm.scale": np.ones(HIDDEN)}
    values |= {"norm.shift": np.zeros(HIDDEN), "norm.mean": np.zeros(HIDDEN), "norm.var": np.ones(HIDDEN)}
    values |= {"last.weight": draw.standard_normal((CLASSES, HIDDEN)) / 3, "last.bias": np.zeros(CLASSES)}
    nodes = [
        helper.make_node("Gemm", ["x", "first.weight", "first.bias"], ["h"], transB=1, name="first"),
        helper.make_node("BatchNormalization", ["h", "norm.scale", "norm.shift", "norm.mean", "norm.var"], ["n"], name="norm"),
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        helper.make_node("Gemm", ["r", "last.weight", "last.bias"], ["y"], transB=1, name="last"),
    ]
    inputs, outputs = ([helper.make_tensor_value_info(n, 1, s)] for n, s in (("x", ("batch", INPUTS)), ("y", ("batch", CLASSES))))
    graph = helper.make_graph(nodes, "classifier", inputs, outputs, [numpy_helper.from_array(a.astype(np.float32), n) for n, a in values.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


PLANS = {"one": (1, ""), "zero3": (4, "dp=4,tp=1,zero=3"), "zero1": (2, "dp=2,tp=1,zero=1"), "tensor": (2, "dp=1,tp=2")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("compiled")
    (place / "rows.py").write_text(DATA)
    model = classifier(place / "classifier.onnx")
    for name, (ranks, plan) in PLANS.items():
        options = ["--train", "--loss", "cross-entropy", "--optimizer", "adamw", "--dim", "batch=8", "--microbatches", "2", "--no-kernel-report"]
        options += ["--devices", str(ranks), "-o", str(place / name), *(["--plan", plan] if plan else [])]
        assert guarded(["compile", str(model), *options]) == 0
    return {name: place / name for name in PLANS} | {"data": place / "rows.py"}


def options(folders: dict[str, Path], log: Path) -> list[object]:
    data = f"{folders['data']}:make"
    return [
        "--data",
        data,
        "--eval-data",
        data,
        "--lr",
        0.02,
        "--max-norm",
        1.0,
        "--schedule",
        "cosine",
        "--warmup",
        2,
        "--seed",
        5,
        "--log",
        log,
        "--batch",
        8,
    ]


@pytest.fixture(scope="module")
def reference(folders, tmp_path_factory) -> dict[int, float]:
    """Losses of 12 steps on one rank."""
    log = tmp_path_factory.mktemp("reference") / "log.jsonl"
    train(folders["one"], 1, *options(folders, log), "--steps", 12)
    return logged(log)


@pytest.mark.parametrize("name", ["zero3", "zero1", "tensor"])
def test_every_plan_trains_the_same(folders, reference, name, tmp_path):
    train(folders[name], PLANS[name][0], *options(folders, tmp_path / "log.jsonl"), "--steps", 12)
    found = logged(tmp_path / "log.jsonl")
    assert list(found) == list(reference) and list(found.values()) == pytest.approx(list(reference.values()), rel=1e-4, abs=1e-5)
    assert np.mean(list(found.values())[-3:]) < 0.7 * found[1]


def test_a_checkpoint_serves_every_plan(folders, reference, tmp_path):
    log = tmp_path / "log.jsonl"
    for steps, name in ((4, "zero3"), (8, "tensor"), (10, "zero1"), (12, "one")):
        train(
            folders[name],
            PLANS[name][0],
            *options(folders, log),
            "--steps",
            steps,
            "--checkpoint-dir",
            tmp_path / "ck",
            "--resume",
            "auto",
            "--schedule",
            "constant",
        )
    train(folders["one"], 1, *options(folders, tmp_path / "whole.jsonl"), "--steps", 12, "--schedule", "constant")
    assert list(logged(log).values()) == pytest.approx(list(logged(tmp_path / "whole.jsonl").values()), rel=1e-4, abs=1e-5)


def test_trained_weights_run_in_onnxruntime(folders, tmp_path):
    log, file, weights = tmp_path / "log.jsonl", tmp_path / "trained.onnx", tmp_path / "w.safetensors"
    train(folders["zero3"], 4, *options(folders, log), "--steps", 12, "--export-onnx", file, "--export", weights)
    names: dict[str, object] = {}
    exec(DATA, names)
    x, y = names["make"]().tensors  # type: ignore[operator]
    (logits,) = onnxruntime.InferenceSession(str(file)).run(None, {"x": x.numpy()})
    assert logged(log, "eval_loss")[12] == pytest.approx(float(F.cross_entropy(torch.from_numpy(logits), y)), rel=1e-4)
    assert logged(log, "accuracy")[12] == pytest.approx(float((logits.argmax(1) == y.numpy()).mean()))
    before, after = load_file(str(folders["one"] / "weights/model.safetensors")), load_file(str(weights))
    assert {"first.weight", "norm.scale", "norm.mean", "norm.var", "last.bias"} <= after.keys()
    still = {n for n in after if float((before[n.replace(".", "_")] - after[n]).abs().max()) < 1e-3}
    assert still == {"norm.mean", "norm.var"}  # the ONNX file has the norm in its inference form


def test_the_trainer_imports_nothing_else(folders):
    own = {path.stem for path in folders["one"].glob("*.py")}
    assert own >= {"train", "trainer", "evaluation", "checkpoint"}
    for path in folders["one"].glob("*.py"):
        needed = {"torch", "numpy", "safetensors", "triton", *(["onnx"] if path.name == "export.py" else [])}
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {n.split(".")[0] for n in names} <= needed | own | sys.stdlib_module_names, path.name


# ---------------------------------------------------------------- ONNX models from elsewhere

MODELS: dict[str, tuple[Callable[[Path], Path], list[str], str, list[object]]] = {
    "digits": (lambda folder: digits.write_onnx(folder / "digits.onnx"), ["--dim", "batch=16"], "dmlc.models.digits:train_data", ["--lr", 0.01, "--steps", 20]),
    "magika": (ONNX_CASES["magika"].source, ["--shape", "bytes=4,2048"], "{folder}/files.py:make", ["--lr", 0.003, "--steps", 6]),
}

FILES = """
import torch

class Files:
    \"\"\"Made of bytes of four ranges, one a class.\"\"\"
    def __len__(self):
        return 8

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        return torch.randint(60 * (i % 4), 60 * (i % 4) + 60, (2048,), generator=draw), i % 4

def make():
    return Files()
"""


@pytest.mark.parametrize("name", MODELS)
def test_an_onnx_model_trains_on_four_ranks_and_its_file_gives_what_the_program_gives(name, tmp_path):
    source, shapes, data, settings = MODELS[name]
    (tmp_path / "files.py").write_text(FILES)
    command = [
        "compile",
        str(source(tmp_path)),
        "--train",
        "--loss",
        "cross-entropy",
        "--devices",
        "4",
        *shapes,
        "--no-kernel-report",
        "-o",
        str(tmp_path / "out"),
    ]
    assert guarded(command) == 0
    log, file, data = tmp_path / "log.jsonl", tmp_path / "trained.onnx", data.format(folder=tmp_path)
    train(tmp_path / "out", 4, "--data", data, "--eval-data", data, "--log", log, "--export-onnx", file, *settings)
    losses = list(logged(log).values())
    assert losses[-1] < losses[0]
    samples = digits.train_data() if name == "digits" else eager_files()
    session = onnxruntime.InferenceSession(str(file))
    wanted = session.get_inputs()[0]
    x, y = torch.stack([torch.as_tensor(samples[i][0]) for i in range(len(samples))]), torch.tensor([int(samples[i][1]) for i in range(len(samples))])
    (output,) = session.run(None, {wanted.name: x.numpy().astype({"tensor(int32)": np.int32, "tensor(float)": np.float32}[wanted.type])})
    assert max(logged(log, "eval_loss").values()) == pytest.approx(float(F.cross_entropy(torch.from_numpy(output), y)), rel=1e-4)


def eager_files() -> object:
    names: dict[str, object] = {}
    exec(FILES, names)
    return names["make"]()  # type: ignore[operator]
