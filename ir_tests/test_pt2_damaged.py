"""Damaged .pt2 files: a module or one error, never a traceback (`tools/fuzz_pt2.py` runs more)."""

from __future__ import annotations

from dmlc.tools.fuzz_onnx import in_a_child
from dmlc.tools.fuzz_pt2 import DAMAGES, damaged, outcome, subject


def test_damaged_files(tmp_path):
    data, path, outcomes = subject(), tmp_path / "model.pt2", []
    path.write_bytes(data)
    assert outcome(path) == "module"
    for number in range(4 * len(DAMAGES)):
        path.write_bytes(damaged(data, number)[1])
        outcomes.append(in_a_child(lambda: outcome(path)))
    assert set(outcomes) <= {"module", "error", None} and outcomes.count("error") > 4  # None: PyTorch's reader took the process down
