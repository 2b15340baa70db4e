"""Damaged files: whatever happens to the bytes, the importer answers with a module or with one error, never with a traceback."""

from __future__ import annotations

import random

import onnx
import pytest

from dmlc.tools.fuzz_onnx import DAMAGES, main, outcome, subject

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


def test_the_longer_run_counts(capsys):
    assert main(["6"]) == 0
    assert capsys.readouterr().out.startswith("6 damaged files: ")
