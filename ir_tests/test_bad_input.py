"""Bad input to `dmlc compile` and `dmlc run`: one message with place and remedy, exit code 1 or 2, no traceback, nothing left in the folder of the output."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx_files import model_of

from dmlc.cli.main import guarded

torch.set_num_threads(1)
node = helper.make_node


@dataclass(frozen=True)
class Case:
    """`dmlc compile MODEL OPTIONS` ends with `code` and says all of `said` on standard error."""

    options: str
    code: int
    said: tuple[str, ...]


def case(options: str, code: int, *said: str) -> Case:
    return Case(options, code, said)


FILES = {
    "missing": case("no.onnx", 1, "no.onnx: error: no such file"),
    "missing text module": case("no.mlir", 1, "no.mlir: error: cannot read the file: No such file"),
    "missing program": case("no.pt2", 1, "no.pt2: error: no such file"),
    "empty": case("empty.onnx", 1, "empty.onnx: error: the file is empty"),
    "empty program": case("empty.pt2", 1, "empty.pt2: error: not a program saved by torch.export.save"),
    "empty text module": case("empty.mlir", 1, "empty.mlir: error: the module has no function @main"),
    "text": case("text.onnx", 1, "text.onnx: error: not an ONNX model"),
    "text as a module": case("text.mlir", 1, "text.mlir:1:1: error:", "hello, this is no model\n^^^^^"),
    "bytes as a text module": case("bytes.mlir", 1, "bytes.mlir: error: not a text file"),
    "cut short": case("cut.onnx", 1, "cut.onnx: error: not an ONNX model: the file is damaged"),
    "a name that nothing makes": case("dangling.onnx", 1, "y: error:", "'nowhere'"),
    "a folder": case("folder.onnx", 1, "folder.onnx: error: not a file"),
    "no kind of model": case("text.txt", 1, "text.txt: error: not a model: the name must end in .onnx, .pt2 or .mlir"),
    "unsupported operators": case("unsupported.onnx", 1, "unsupported.onnx: error: unsupported: ", "Bogus (2×: a, b)", "Multinomial (1×: c)", "Elsewhere (1×: y)"),
    "external data outside the folder": case("outside.onnx", 1, "outside.onnx: error: tensor 'w': external data '../outside.bin' is refused", "inside the model's folder"),
}
FUNCTIONS = {
    "misspelt function": case("model.py:mak", 1, "model.py:mak: error:", "did you mean 'make'"),
    "wrong result": case("model.py:make", 1, "must return (module, args[, kwargs[, dynamic_shapes]])"),
    "it fails": case("model.py:fail", 1, "model.py:5:", "the model's code failed: ZeroDivisionError", "while reading model.py:fail"),
    "the file fails": case("broken.py:make", 1, "broken.py:1:", "the model's code failed: NameError"),
    "syntax": case("syntax.py:make", 1, "syntax.py:1:10: error: invalid syntax"),
    "no such file": case("no.py:make", 1, "no such file: no.py"),
    "no such package": case("no.such.package:make", 1, "no.such.package cannot be imported"),
}
OPTIONS = {
    "no model": case("", 2, "no MODEL given", "usage: dmlc compile"),
    "two models": case("good.onnx other.onnx", 2, "unknown argument 'other.onnx'"),
    "unknown option": case("good.onnx --devces 8", 2, "unknown argument '--devces'; did you mean '--devices'?", "usage: dmlc compile"),
    "no devices": case("good.onnx --devices 0", 2, "--devices must be at least 1, not 0"),
    "fewer devices than none": case("good.onnx --devices -1", 2, "--devices must be at least 1, not -1"),
    "devices in words": case("good.onnx --devices eight", 2, "--devices", "'eight'"),
    "plan for 3 of 8 devices": case("good.onnx --devices 8 --plan dp=3", 2, "dp=3 is for 3 devices, not 8; what fits: dp=1,tp=8, dp=2,tp=4"),
    "plan that is none": case("good.onnx --devices 8 --plan fast", 2, "'fast' is not part of a plan; write for example dp=2,tp=4 or auto"),
    "plan of nothing": case("good.onnx --devices 8 --plan=", 2, "the plan is empty; write for example dp=2,tp=4 or auto"),
    "plan with one kind twice": case("good.onnx --devices 8 --plan dp=4,dp=2", 2, "gives dp twice"),
    "plan of another kind": case("good.onnx --devices 8 --plan pp=8", 2, "pipeline parallelism (pp) is not available yet"),
    "unknown pass": case("good.onnx --pipeline canonicalise,dce", 1, "there is no pass 'canonicalise'; did you mean 'canonicalize'?", "canonicalise,dce\n^^^^^^^^^^^^"),
    "unknown pass option": case("good.onnx --pipeline fuse{max-opz=3}", 1, "pass 'fuse' has no option 'max-opz'; did you mean 'max-ops'?"),
    "pipeline cut short": case("good.onnx --pipeline fuse{", 1, "in the pipeline text: expected an option"),
    "unknown device": case("good.onnx --target h10", 2, "there is no device 'h10'; did you mean 'h100'?"),
    "unknown precision": case("good.onnx --precision fp8", 2, "--precision", "'fp8'", "'bf16'"),
    "memory in no unit": case("good.onnx --memory 80XB", 2, "--memory takes a size such as 80GB or 512MiB, not '80XB'"),
    "no memory": case("good.onnx --memory 0", 2, "--memory takes a size such as 80GB or 512MiB, not '0'"),
    "negative slack": case("good.onnx --slack -0.5", 2, "--slack must not be negative"),
    "dim without a size": case("good.onnx --dim batch", 2, "--dim takes for example batch=32, not 'batch'"),
    "dim of another name": case("good.onnx --dim n=4", 1, "the model has no such dim; it has batch"),
    "dim in words": case("good.onnx --dim batch=many", 2, "--dim takes for example batch=32, not 'batch=many'"),
    "misspelt dim": case("good.onnx --dim bach=4", 1, "good.onnx: error: a size is given for 'bach'", "did you mean 'batch'"),
    "negative dim": case("good.onnx --dim batch=-4", 1, "good.onnx: error:", "'batch'", "-4"),
    "shape in words": case("good.onnx --shape x=axb", 2, "--shape takes for example x=8x3x48x192, not 'x=axb'"),
    "shape of another rank": case("good.onnx --shape x=8", 1, "good.onnx: error: input 'x' has 2 dims but the shape given for it has 1"),
    "shape against the file": case("good.onnx --shape x=8x9", 1, "good.onnx: error: dim 1 of input 'x' is given as 9, but the file fixes it at 8"),
    "shape of no input": case("good.onnx --shape xs=8x8", 1, "good.onnx: error: a shape is given for 'xs'", "did you mean 'x'"),
    "shape against a dim": case("good.onnx --dim batch=4 --shape x=8x8", 1, "given as 8, but 'batch' is already 4"),
    "batch dim without a number": case("good.onnx --batch-dim x", 1, "'x' is not a batch dim; write INPUT:DIM, as in x:0"),
    "batch dim out of range": case("good.onnx --batch-dim x:7", 1, "input 'x' has no dim 7"),
    "trainable": case("good.onnx --trainable (", 1, "'(' is not a regular expression"),
    "dim of a text module": case("good.mlir --dim batch=4", 1, "good.mlir: error: --dim is for ONNX models"),
    "shape of a PyTorch model": case("dmlc.models.mlp:tiny --shape x=8x8", 1, "--shape is for ONNX models; a PyTorch model has its example's shapes"),
    "dim that a PyTorch model lacks": case("dmlc.models.mlp:tiny --dim batch=8", 1, "dmlc.models.mlp:tiny: error: the model has no free size 'batch'"),
    "other devices than a text's": case("placed.mlir --devices 4", 1, "placed.mlir: error: --devices 4 is not what the text says: 2 (in dmlc.request)", "leave --devices out"),
    "another device than a text's": case("placed.mlir --target cpu", 1, "--target cpu is not what the text says: a100 (in dmlc.cluster)"),
    "plan but no devices": case("good.onnx --plan tp=4", 2, "the plan tp=4 is for 4 devices, not 1; what fits: dp=1,tp=1, or --devices 4"),
    "memory that no plan fits": case("good.onnx --memory 10", 1, "good.onnx: error: no plan fits 10 bytes a rank", "too many", "use more devices"),
}
PLACES = {
    "output folder exists": case("good.onnx -o exists", 1, "the output folder exists exists; give --force to replace it or another folder with -o"),
    "output is a file": case("good.onnx -o a_file --force", 1, "a_file is a file; choose another folder with -o"),
    "output below a file": case("good.onnx -o a_file/out", 1, "a_file is a file; choose another folder with -o"),
    "output below nothing writable": case("good.onnx --no-kernel-report -o /proc/dmlc-out", 1, "/proc/dmlc-out: error: the output folder cannot be written", "choose another with -o"),
}
CASES = FILES | FUNCTIONS | OPTIONS | PLACES


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Everything that the cases name, two levels deep so that `..` can be looked at too."""
    outer = tmp_path_factory.mktemp("bad")
    folder = outer / "in"
    folder.mkdir()
    weight = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    write_onnx(folder, weight)
    (outer / "outside.bin").write_bytes(weight.tobytes())
    texts = {
        "text.onnx": "hello, this is no model\n", "text.mlir": "hello, this is no model\n", "text.txt": "hello\n", "empty.onnx": "", "empty.pt2": "", "empty.mlir": "", "a_file": "kept\n",
        "model.py": "def make():\n    return 1\n\ndef fail():\n    return 1 / 0\n", "broken.py": "undefined()\n", "syntax.py": "def make(:\n",
        "good.mlir": "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  func.return %x : tensor<4xf32>\n}\n",
        "placed.mlir": 'builtin.module attributes {dmlc.request = {devices = 2 : i64, plan = "auto", precision = "fp32"}, dmlc.cluster = {device = "a100", count = 2 : i64}} {\n'
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  func.return %x : tensor<4xf32>\n}\n}\n",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "bytes.mlir").write_bytes(b"\xff\xfe\x00")
    (folder / "folder.onnx").mkdir()
    (folder / "exists").mkdir()
    (folder / "exists" / "kept").write_text("kept\n")
    return folder


def write_onnx(folder: Path, weight: np.ndarray) -> None:
    good = model_of([node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])], {"x": ("batch", 8)}, ["y"], {"w": weight})
    outside = onnx.ModelProto()
    outside.CopyFrom(good)
    tensor = outside.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../outside.bin")
    dangling = model_of([node("Add", ["x", "nowhere"], ["y"])], {"x": (4, 8)}, ["y"])
    parts = [node("Bogus", ["x"], ["a"]), node("Bogus", ["a"], ["b"]), node("Multinomial", ["b"], ["c"]), node("Elsewhere", ["c"], ["y"], domain="other")]
    unsupported = model_of(parts, {"x": (4, 8)}, ["y"], domains=["other"])
    for name, model in {"good": good, "outside": outside, "dangling": dangling, "unsupported": unsupported}.items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    data = good.SerializeToString()
    (folder / "cut.onnx").write_bytes(data[: len(data) // 2])


def listing(folder: Path) -> dict[str, bytes | None]:
    """All files with their content and all folders, here and beside this folder; Python's caches left out."""
    found = sorted(p for p in folder.parent.rglob("*") if "__pycache__" not in p.parts)
    return {str(p): p.read_bytes() if p.is_file() else None for p in found}


@pytest.mark.parametrize("name", CASES)
def test_one_message_and_no_half_written_folder(folder, monkeypatch, capfd, name):
    monkeypatch.chdir(folder)
    before = listing(folder)
    wanted = CASES[name]
    code = guarded(["compile", *wanted.options.split()])
    out, err = capfd.readouterr()
    assert code == wanted.code, err
    assert [part for part in wanted.said if part not in err] == [], err
    assert err.count("error:") + err.count("dmlc compile:") - err.count("dmlc compile: error:") == 1, f"one message: {err}"
    assert "Traceback" not in out + err and "written to" not in out
    assert listing(folder) == before


def test_the_same_in_a_process_of_its_own(folder):
    before = listing(folder)
    command = [sys.executable, "-m", "dmlc.cli.main", "compile", "unsupported.onnx", "--devices", "8"]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("unsupported.onnx: error: unsupported: Bogus, Multinomial, Elsewhere"), done.stderr
    assert "Traceback" not in done.stderr and listing(folder) == before


def test_the_model_that_the_options_are_tried_on_compiles(folder, monkeypatch, capfd):
    """Otherwise the cases above could fail for another reason; nothing is left beside the folder either."""
    monkeypatch.chdir(folder)
    before = listing(folder)
    assert guarded(["compile", "good.onnx", "--devices", "2", "--no-kernel-report", "-o", "fine"]) == 0
    made = [Path(p).relative_to(folder).parts[0] for p in listing(folder) if p not in before]
    assert set(made) == {"fine"} and "model.py" in os.listdir("fine")
    assert guarded(["compile", "good.onnx", "--devices", "2", "--no-kernel-report", "-o", "exists", "--force"]) == 0
    assert (folder / "exists" / "kept").read_text() == "kept\n", "what is not dmlc's stays"
    capfd.readouterr()


# ---------------------------------------------------------------- dmlc run

RUNS = {
    "no folder": case("nowhere", 1, "nowhere is not a compiled folder"),
    "another folder": case("folder.onnx", 1, "folder.onnx is not a compiled folder (it has no table.py); make one with dmlc compile"),
    "another number of ranks": case("two --nproc 3", 1, "compiled for 2 ranks, not 3; compile it again with --devices 3"),
    "no inputs": case("two --inputs no.npz", 1, "no.npz: error: no such file"),
    "inputs of another name": case("two --inputs names.npz", 1, "names.npz: error: there is no array for the input 'x'", "it holds: y"),
    "inputs of another shape": case("two --inputs shapes.npz", 1, "shapes.npz: error: 'x' has shape (3, 8); the program is compiled for (2, 8)", "--dim or --shape"),
    "inputs that are text": case("two --inputs text.txt", 1, "text.txt: error: not an .npz file of arrays"),
    "results to no folder": case("two --save nowhere/y.npz", 1, "nowhere/y.npz: error: there is no folder"),
    "kernels for a GPU": case("two --kernels triton --device cpu", 1, "--kernels triton needs a GPU", "--kernels interpret runs the Triton source"),
    "a check on other inputs": case("two --check --inputs names.npz", 2, "--check compares on the inputs it was made with; leave --inputs out"),
    "nothing to check with": case("two --check", 1, "two holds no results of the original; compile it with --check first"),
    "unknown kernels": case("two --kernels fast", 2, "--kernels", "'fast'"),
}


@pytest.fixture(scope="module")
def compiled(folder) -> Path:
    code = guarded(["compile", str(folder / "good.onnx"), "--devices", "2", "--fixed-sizes", "--no-kernel-report", "-o", str(folder / "two")])
    assert code == 0
    np.savez(folder / "names.npz", y=np.zeros((2, 8), np.float32))
    np.savez(folder / "shapes.npz", x=np.zeros((3, 8), np.float32))
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_run_says_what_is_wrong_before_the_ranks_start(compiled, monkeypatch, capfd, name):
    monkeypatch.chdir(compiled)
    monkeypatch.setattr("subprocess.Popen", None)  # no rank may start
    before, wanted = listing(compiled), RUNS[name]
    code = guarded(["run", *wanted.options.split()])
    out, err = capfd.readouterr()
    assert code == wanted.code and [part for part in wanted.said if part not in err] == [], err
    assert "Traceback" not in out + err and listing(compiled) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_run_on_gpus_that_are_not_there(compiled, capfd):
    assert guarded(["run", str(compiled / "two"), "--device", "cuda"]) == 1
    assert "needs 2 GPUs here, one a rank; there are 0" in capfd.readouterr().err
