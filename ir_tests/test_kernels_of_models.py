"""Whole models with their generated kernels: interpreted they give what PyTorch's operations give, and every kernel builds without spills."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dmlc import driver
from dmlc.codegen import aot
from dmlc.codegen.folder import write_folder
from dmlc.codegen.triton_source import emit_kernels

MODELS = {
    "gpt2": ("dmlc.models.gpt2:tiny", "fp32", 1e-5),
    "gpt2-bf16": ("dmlc.models.gpt2:tiny", "bf16", 5e-2),
    "bert": ("dmlc.models.bert:tiny", "fp32", 1e-5),
    "llama": ("dmlc.models.llama:tiny", "fp32", 1e-5),
    "resnet": ("dmlc.models.resnet:tiny", "fp32", 1e-5),
}


def compile_to(folder: Path, source: str, precision: str) -> Path:
    options = driver.Options(devices=1, precision=precision)
    compiled = driver.compile_model(driver.load(source, options), options)
    kernels = emit_kernels(compiled.module)
    write_folder(compiled.module, folder / "out", driver.final_weights(compiled), driver.plan_record(compiled), source, kernels)
    return folder / "out"


def run(out: Path, kernels: str) -> dict[str, np.ndarray]:
    """The folder's own launcher on its synthetic input."""
    saved = out.parent / f"{kernels}.npz"
    environment = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "DMLC_KERNELS")} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(out / "launch.py"), "--kernels", kernels, "--repeat", "1", "--save", str(saved)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(np.load(saved))


@pytest.mark.parametrize("name", MODELS)
def test_interpreted_kernels_equal_pytorch(tmp_path, name: str):
    source, precision, tolerance = MODELS[name]
    out = compile_to(tmp_path, source, precision)
    expected, actual = run(out, "torch"), run(out, "interpret")
    assert list(expected) == list(actual)
    for key, want in expected.items():
        assert np.ptp(want) > 0, "an output that is the same everywhere proves nothing"
        assert np.abs(actual[key] - want).max() <= tolerance * np.abs(want).max(), key
    report = aot.build(out / "kernels.py")
    assert report["kernels"] and aot.faults(report) == []
