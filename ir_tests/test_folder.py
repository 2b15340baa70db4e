"""Output folders stand alone, and the same input gives the same bytes."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from model_cases import compile_copy, difference, emit, loaded
from onnx import helper, numpy_helper

torch.set_num_threads(1)

NEEDED = {"torch", "numpy", "safetensors", "triton"}

# Runs a launcher as if neither dmlc nor what only the compiler needs were installed; `-I` keeps PYTHONPATH and the current folder out.
WITHOUT_DMLC = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"dmlc", "onnx", "onnxruntime", "scipy", "z3", "transformers", "yaml"}:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Absent())
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    assert not [name for name in sys.modules if name.split(".")[0] == "dmlc"]
"""


def without_dmlc(folder: Path, ranks: int, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """Each rank of a folder as its own isolated process."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    base = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-I", "-c", WITHOUT_DMLC, str(folder / "launch.py"), *arguments]
    started = [
        subprocess.Popen(
            command, env={**base, "RANK": str(r), "LOCAL_RANK": str(r)}, cwd=folder.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for r in range(ranks)
    ]
    try:
        outputs = [p.communicate(timeout=200) for p in started]
    finally:
        for p in started:
            p.kill()
    return [subprocess.CompletedProcess(command, p.returncode, *o) for p, o in zip(started, outputs)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A perceptron for two ranks, with generated kernels."""
    folder = emit(compile_copy(loaded("dmlc.models.mlp:make"), devices=2, plan="tp=2"), tmp_path_factory.mktemp("alone") / "out")
    assert "kernels." in (folder / "model.py").read_text()
    return folder


def test_it_runs_without_dmlc(folder, tmp_path):
    model = loaded("dmlc.models.mlp:make")
    np.savez(tmp_path / "x.npz", **model.examples)
    done = without_dmlc(folder, 2, "--inputs", str(tmp_path / "x.npz"), "--save", str(tmp_path / "y.npz"), "--repeat", "0")
    assert [p.returncode for p in done] == [0, 0], done[0].stderr + done[1].stderr
    assert model.reference is not None
    assert difference(model.reference(model.examples), dict(np.load(tmp_path / "y.npz"))) < 1e-4


def test_a_missing_input_is_one_sentence(folder, tmp_path):
    np.savez(tmp_path / "x.npz", z=np.zeros(3))
    done = without_dmlc(folder, 2, "--inputs", str(tmp_path / "x.npz"))
    assert all(p.returncode == 1 and "lacks the inputs x; it holds z" in p.stderr and "Traceback" not in p.stderr for p in done)


def test_the_checksum_says_what_is_not_finite(folder, tmp_path):
    x = loaded("dmlc.models.mlp:make").examples
    (name,) = x
    np.savez(tmp_path / "x.npz", **{name: np.full_like(x[name], np.nan)})
    first, _ = without_dmlc(folder, 2, "--inputs", str(tmp_path / "x.npz"), "--repeat", "0")
    assert re.search(r"checksum 0 without (\d+) of \1 that are not finite", first.stdout), first.stdout


def test_kernels_for_a_gpu_are_refused_on_a_processor(folder):
    done = without_dmlc(folder, 2, "--kernels", "triton", "--device", "cpu")
    assert all(p.returncode == 2 and "--kernels triton needs a GPU" in p.stderr for p in done)


def test_its_files_import_nothing_else(folder):
    own = {path.stem for path in folder.glob("*.py")} | {"train"}  # the launcher of a folder that trains has it beside it
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in NEEDED | own | sys.stdlib_module_names, f"{path.name} imports {name}"


def test_what_lies_in_it(folder):
    assert {p.name for p in folder.iterdir()} >= {
        "program.mlir",
        "plan.json",
        "model.py",
        "kernels.py",
        "launch.py",
        "launch.sh",
        "weights",
        "README.md",
        "table.py",
    }
    assert os.access(folder / "launch.sh", os.X_OK)


# ---------------------------------------------------------------- same input, same bytes


def convolutions(path: Path) -> Path:
    """Two branches of convolutions with a sum, a pool and a projection, as ONNX."""
    node, draw = helper.make_node, np.random.default_rng(0)
    weights = {"w0": (8, 3, 3, 3), "w1": (8, 8, 3, 3), "w2": (8, 8, 1, 1), "p": (8, 5), "b": (5,)}
    nodes = [
        node("Conv", ["x", "w0"], ["h"], pads=[1, 1, 1, 1], name="stem"),
        node("Conv", ["h", "w1"], ["a"], pads=[1, 1, 1, 1], name="left"),
        node("Conv", ["h", "w2"], ["c"], name="right"),
        node("Add", ["a", "c"], ["s"], name="sum"),
        node("Sigmoid", ["s"], ["r"], name="gate"),
        node("GlobalAveragePool", ["r"], ["g"], name="pool"),
        node("Flatten", ["g"], ["f"], name="flatten"),
        node("Gemm", ["f", "p", "b"], ["y"], name="head"),
    ]
    initializers = [numpy_helper.from_array(draw.standard_normal(s).astype(np.float32), n) for n, s in weights.items()]
    inputs, outputs = ([helper.make_tensor_value_info(n, 1, s)] for n, s in (("x", ("batch", 3, 8, 8)), ("y", ("batch", 5))))
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, initializers), opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path)
    )
    return path


@pytest.mark.parametrize("source", ["convolutions", "dmlc.models.llama:tiny"])
def test_two_compiles_under_different_hash_seeds_give_the_same_bytes(source, tmp_path):
    options = ["--devices", "8", "--check", "--dump-ir"]
    if source == "convolutions":
        source = str(convolutions(tmp_path / "m.onnx"))
    else:
        options += ["--plan", "dp=2,tp=4", "--precision", "bf16", "--no-kernel-report"]
    first, second = (compiled(source, options, tmp_path / f"out{seed}", seed) for seed in (1, 2))
    assert list(first) == list(second) and "program.mlir" in first
    assert [name for name in first if first[name] != second[name]] == []


def compiled(source: str, options: list[str], out: Path, seed: int) -> dict[str, bytes]:
    """All files of a compile in a process of its own, by their path in the folder; how long each pass took is measured and may differ."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "dmlc.cli.main", "compile", source, *options, "-o", str(out)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file() and p.name != "seconds.json"}
