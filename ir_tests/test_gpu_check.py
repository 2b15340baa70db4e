"""tools/gpu_check.py dry-run on a processor: the way it goes on a GPU, and that it finds what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dmlc.ir.parser import parse_module
from dmlc.tools import gpu_check, gpu_parts

ROOT = Path(__file__).resolve().parents[1]


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, str(ROOT / "tools/gpu_check.py"), *arguments], capture_output=True, text=True, env=environment)


def test_dry_run(tmp_path):
    done = check("--dry-run", "--models", "mlp:tiny", "--only", "kernels,collectives,launch,models", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "figures.json").read_text())
    assert [line["state"] for line in found["lines"]] == ["good"] * 6 and "6 good, 0 wrong, 0 not reached" in done.stdout
    lines = {line["name"]: line for line in found["lines"]}
    assert "kernels equal float64 on dense and strided inputs" in lines["generated kernels of mlp:tiny"]["said"]
    assert lines["launch.py of mlp:tiny"]["said"].endswith("check passed")
    for precision in ("fp32", "bf16"):
        figures = lines[f"mlp:tiny {precision}"]["figures"]
        assert figures["kernels"] >= 1 and all(figures[f"{who}ms"] > 0 for who in ("", "eager_", "compile_"))
    assert found["machine"]["torch"] == torch.__version__


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so():
    done = check()
    assert done.returncode == 2 and "--dry-run" in done.stderr and "Traceback" not in done.stderr


ADD = """func.func private @add(%x: tensor<3x5xf32>, %y: tensor<5xf32>) -> tensor<3x5xf32> {
  %z = dmlc.add %x, %y : (tensor<3x5xf32>, tensor<5xf32>) -> tensor<3x5xf32>
  func.return %z : tensor<3x5xf32>
}"""


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        (lambda x, y: x + y, []),
        (lambda x, y: x + y + 1e-3, ["dense", "strided"]),
        (lambda x, y: x + y if x.is_contiguous() else x - y, ["strided"]),
        (lambda x, y: x.no_such_method(), ["dense", "strided"]),
    ],
)
def test_a_wrong_kernel_is_found(kernel, found):
    (function,) = parse_module(ADD, "add").functions
    wrong = gpu_parts.differences(function, kernel, "cpu")
    assert [w.split("(")[1].split(")")[0] for w in wrong] == found


def test_strided_inputs_are_the_same_values_elsewhere():
    x = torch.arange(24.0).reshape(2, 3, 4)
    y = gpu_parts.strided(x)
    assert torch.equal(x, y) and y.stride() == (3, 6, 18) and torch.equal(gpu_parts.strided(x[0, 0, 0]), x[0, 0, 0])


def test_what_fails_and_what_is_not_reached_is_told(capsys):
    def fails():
        raise gpu_parts.Wrong("off by 1")

    session = gpu_check.Session(dry=True, deadline=float("inf"), repeat=1)
    session.check("first", fails)
    session.check("second", lambda: [][0])  # type: ignore[misc]
    session.deadline = 0
    session.check("third", fails)
    assert [line.state for line in session.lines] == ["wrong", "wrong", "not reached"]
    assert "off by 1" in session.lines[0].said and "IndexError" in session.lines[1].said
    assert "not reached third" in capsys.readouterr().out


def test_difference_is_of_scale():
    assert gpu_check.difference([torch.tensor([100.0, 1.0])], [torch.tensor([100.0, 0.0])]) == pytest.approx(0.01)
