"""The hand-written kernels of kernels/: each against its PyTorch reference, and built ahead of time for two GPUs without having one.

Triton's interpreter and its compiler each get a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dmlc.codegen import aot

HERE = Path(__file__).parent
FILES = sorted(p for p in (HERE.parent / "kernels").glob("*.py") if p.name != "__init__.py")


def test_kernels_against_their_references(tmp_path: Path) -> None:
    """Half-precision results differ by a rounding, f32 ones by the order of sums."""
    environment = {**os.environ, "TRITON_INTERPRET": "0" if torch.cuda.is_available() else "1"}
    done = subprocess.run([sys.executable, HERE / "hand_kernel_runner.py", tmp_path / "out.json"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    for kernel in ("softmax ", "softmax_grad", "layer_norm ", "layer_norm_grad", "rms_norm ", "rms_norm_grad", "dropout", "cross_entropy ", "cross_entropy_grad"):
        assert any(name.startswith(kernel) for name in found)
    tolerance = {"float16": 2e-3, "bfloat16": 1e-2}
    wrong = {n: d for n, d in found.items() if isinstance(d, str) or not d <= tolerance.get(n.split("torch.")[-1], 1e-5)}
    assert not wrong, "\n".join(f"{n}: {d}" for n, d in wrong.items())


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_builds_without_a_device(path: Path) -> None:
    """For sm_80 and sm_90: nothing spills, shared memory is within limits."""
    report = aot.build(path)
    assert report["kernels"] and all(set(targets) == set(aot.TARGETS) for targets in report["kernels"].values())
    assert not aot.faults(report)
