"""Whole networks: the graphs that the onnx package carries, with seeded weights."""

from __future__ import annotations

import pytest
from onnx_files import computed, random_inputs, under_onnxruntime

from dmlc.frontend.onnx import import_onnx
from dmlc.ir.verifier import verify
from dmlc.models.onnx_light import write_light_model


@pytest.mark.parametrize("name", ["squeezenet"])
def test_equals_onnxruntime(tmp_path, name):
    path = write_light_model(name, tmp_path / "model.onnx")
    result = import_onnx(path)
    verify(result.module)
    inputs = random_inputs(result)
    ((ours,), (theirs,)) = computed(result, inputs), under_onnxruntime(path, inputs)
    assert theirs.std() > 0.01 * theirs.max() and abs(ours - theirs).max() <= 1e-5 * theirs.max()
    assert computed(result, random_inputs(result, seed=1))[0].tolist() != ours.tolist()


def test_resnet50_is_what_one_expects(tmp_path):
    result = import_onnx(write_light_model("resnet50", tmp_path / "model.onnx"))
    names = [op.name for op in result.module.main.body]
    assert {n: names.count(f"dmlc.{n}") for n in ("conv", "batch_norm", "relu", "max_pool", "linear")} == {"conv": 53, "batch_norm": 53, "relu": 49, "max_pool": 1, "linear": 1}
    assert sum(a.tensor.numel for a in result.module.main.args if a.attrs["dmlc.role"] == "param") == 25_557_032
    assert sum(a.tensor.numel for a in result.module.main.args if a.attrs["dmlc.role"] == "buffer") == 53_120
