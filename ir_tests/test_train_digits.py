"""tools/train_digits.py, the README's training example: it reaches what it promises, and its table says what the log does."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

TOOLS = Path(__file__).resolve().parents[1] / "tools"

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """The tool as a module; it runs as a script, beside `environment`."""
    sys.path.insert(0, str(TOOLS))
    try:
        spec = importlib.util.spec_from_file_location("train_digits_under_test", TOOLS / "train_digits.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(TOOLS))


def test_the_example_of_the_readme(tmp_path):
    """97 % of the test images on four ranks, as a table. Two minutes on two cores are counted as processor time: other tests run beside."""
    command = [sys.executable, str(TOOLS / "train_digits.py"), "--out", str(tmp_path / "out"), "--seconds", "280"]
    before = sum(os.times()[2:4])
    done = subprocess.run(command, capture_output=True, text=True, env={k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(os.times()[2:4]) - before < 2 * 120
    last = done.stdout.strip().splitlines()[-3].split()  # of the table; what it is in and the time in all follow
    assert last[0] == "160" and float(last[1].rstrip("%")) >= 97 and 0 < float(last[-1].rstrip("%")) < 100
    log = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in log if "loss" in record]
    assert len(losses) == 160 and sum(losses[-10:]) < 0.1 * sum(losses[:10])


def test_the_table_adds_up(tool):
    steps = [{"step": i, "loss": 1.0, "samples": 64, "seconds": 0.02} for i in range(1, 9)]
    log = [*steps[:4], {"step": 4, "eval_loss": 0.3, "accuracy": 0.9}, *steps[4:], {"step": 8, "eval_loss": 0.1, "accuracy": 0.98}]
    rows = tool.table_rows([json.dumps(record) for record in log])
    assert [(r.step, r.samples, r.accuracy) for r in rows] == [(4, 256, 0.9), (8, 512, 0.98)] and rows[1].seconds == pytest.approx(0.16)
    last = tool.table(rows, work=1e6, peak=32e9).splitlines()[2].split()
    assert last == ["8", "98.0%", "0.1000", "0.2", "3200", "10.00%"]
    with pytest.raises(tool.SetupError, match="no evaluation"):
        tool.table_rows([json.dumps(steps[0])])


def test_multiply_adds_are_those_of_the_layers(tool):
    """Two for the first layer, whose input needs no gradient, three for the others: the products forward, for the weights, for the inputs."""
    first, second, head = 64 * 16 * 9, 64 * 32 * 16 * 9, 512 * 10
    assert tool.multiply_adds_a_sample() == 2 * first + 3 * (second + head)
