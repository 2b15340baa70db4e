"""Damaged files: whatever happens to the bytes, the importer answers with a module or with one error, never with a traceback."""

from __future__ import annotations

import os
import random
import re

import onnx
import pytest

from dmlc.tools import fuzz_onnx
from dmlc.tools.fuzz_onnx import damaged, in_a_child, main, outcome, subject, wrong_number
from dmlc.tools.onnx_damage import DAMAGES
from dmlc.tools.random_onnx import random_onnx

FILES_OF_A_KIND = 100


def test_the_subject_itself_imports(tmp_path):
    onnx.save(subject(), str(tmp_path / "model.onnx"))
    assert outcome(tmp_path / "model.onnx") == "module"


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files(tmp_path, damage):
    data, outcomes = subject().SerializeToString(), []
    for seed in range(FILES_OF_A_KIND):
        path = tmp_path / "model.onnx"
        path.write_bytes(damage(data, random.Random(seed)))
        outcomes.append(outcome(path))
    assert outcomes.count("error") > FILES_OF_A_KIND // 10


@pytest.mark.parametrize("start", range(0, 120, 30))
def test_damaged_random_graphs(tmp_path, start):
    """What is still a model computes what onnxruntime says, if that takes the file too."""
    outcomes = []
    for number in range(start, start + 30):
        (tmp_path / "model.onnx").write_bytes(damaged(number)[1])
        outcomes.append(outcome(tmp_path / "model.onnx"))
        if outcomes[-1] == "module" and number % 3 == 0:
            assert wrong_number(tmp_path / "model.onnx") is None, f"tools/fuzz_onnx.py 1 --start {number} --numbers"
    assert {"module", "error"} == set(outcomes)


def test_a_child_may_die():
    assert in_a_child(lambda: 3) == 3
    assert in_a_child(lambda: os.kill(os.getpid(), 9)) is None and in_a_child(lambda: 1 / 0) is None


def test_a_wrong_number_is_noticed(tmp_path, monkeypatch):
    onnx.save(random_onnx(3, 5).whole()[0], str(tmp_path / "model.onnx"))
    assert wrong_number(tmp_path / "model.onnx") is None
    right = fuzz_onnx.run
    monkeypatch.setattr(fuzz_onnx, "run", lambda *a, **k: {n: x * 1.01 for n, x in right(*a, **k).items()})
    assert "scale" in (wrong_number(tmp_path / "model.onnx") or "")


def test_the_longer_run_counts(capsys):
    assert main(["6", "--numbers"]) == 0
    assert re.fullmatch(r"6 damaged files: .*\([1-9]\d* compared with onnxruntime\), no traceback or wrong number\n", capsys.readouterr().out)
