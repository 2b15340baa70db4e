"""Weights far larger than the memory that compiling them may take (`tools/large_weights.py` measures 3 GB in processes of their own)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dmlc import driver
from dmlc.codegen.folder import write_folder
from dmlc.frontend.onnx.loader import whole_file
from dmlc.ir import weights
from dmlc.ir.types import TensorType
from dmlc.ir.weights import WeightStore
from dmlc.tools.bench_simulation import Watch, private_mb
from dmlc.tools.large_weights import Found, check, write_model

SIDE = 5120  # three weights of 105 MB each
LIMITS = {"onnx": 90, "transposed": 90, "safetensors": 90, "halved": 160, "bf16": 160}  # MB; converted copies are made one weight at a time


def compiled(path: Path, kind: str, devices: int, out: Path) -> Found:
    """As the command does it, in this process."""
    options = driver.Options(devices, f"tp={devices}" if devices > 1 else "auto", "bf16" if kind == "bf16" else "fp32", target="h100")
    program = driver.compile_model(driver.load(str(path), options), options)
    write_folder(program.module, out, driver.final_weights(program), driver.plan_record(program), path.name)
    from dmlc.cli._summary import summary

    file = (out / "weights" / "model.safetensors").stat()
    return Found(0.0, 0.0, file.st_size / 1e6, file.st_blocks * 512 / 1e6, "\n".join(f"{name} {text}" for name, text in summary(program.module)))


@pytest.mark.parametrize("kind", LIMITS)
def test_weights_are_never_held_whole(tmp_path, kind):
    devices = 1 if kind == "halved" else 8
    (tmp_path / "small").mkdir()
    compiled(write_model(kind, 16, tmp_path / "small"), kind, devices, tmp_path / "small" / "out")  # what is imported and kept has its place now
    before, watch = private_mb(), Watch()
    watch.start()
    found = compiled(write_model(kind, SIDE, tmp_path), kind, devices, tmp_path / "out")
    watch.done.set()
    watch.join()
    above = max(watch.peak, private_mb()) - before
    check(kind, SIDE, devices, tmp_path / "out", dataclasses.replace(found, above=above))
    assert found.weights > (150 if kind in ("bf16", "halved") else 300) and above < LIMITS[kind]


@pytest.mark.parametrize(("shape", "perm"), [((3000, 70), (1, 0)), ((2, 5000, 3), (2, 0, 1)), ((40_000,), (0,)), ((3, 9000), (0, 1)), ((), ())])
def test_views_are_written_in_pieces(tmp_path, monkeypatch, shape, perm):
    """Row-major bytes whatever the strides, in pieces and with holes, also where one row is longer than a piece."""
    monkeypatch.setattr(weights, "_CHUNK", 1 << 13)
    monkeypatch.setattr(weights, "_HOLE", 1 << 12)
    array = np.zeros(shape, np.int16)
    array.reshape(-1)[::5003] = 1 + np.arange(len(range(0, array.size, 5003)))
    view, store = array.transpose(perm), WeightStore()
    store.add("w", view)
    store.add("tail", np.zeros(1 << 16, np.uint8), TensorType((1 << 16,), "ui8"))
    store.save(tmp_path / "w.safetensors")
    read = WeightStore.open(tmp_path / "w.safetensors")
    np.testing.assert_array_equal(read.get("w"), view)
    file = (tmp_path / "w.safetensors").stat()
    assert not read.get("tail").any() and file.st_blocks * 512 < file.st_size


def test_minus_zero_is_no_hole(tmp_path):
    store = WeightStore()
    store.add("w", np.full(1 << 20, -0.0, np.float32))
    store.save(tmp_path / "w.safetensors")
    assert np.signbit(WeightStore.open(tmp_path / "w.safetensors").get("w")).all()


def test_writing_to_a_mapped_weight_changes_no_file(tmp_path):
    store = WeightStore()
    store.add("w", np.arange(5))
    store.save(tmp_path / "w.safetensors")
    mapped = WeightStore.open(tmp_path / "w.safetensors")
    mapped.get("w")[:] = 7
    assert mapped.get("w").tolist() == [0, 1, 2, 3, 4]


def external(folder: Path, elements: int, file_size: int) -> Path:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(elements,), data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, (elements,))
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [info], [helper.make_tensor_value_info("y", TensorProto.FLOAT, (elements,))], [tensor])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9), str(folder / "model.onnx"))
    with open(folder / "w.bin", "wb") as file:
        file.write(np.arange(min(elements, 4), dtype=np.float32).tobytes())
        file.truncate(file_size)
    return folder / "model.onnx"


def test_external_data_goes_into_one_file(tmp_path):
    """Which trained weights are written back into."""
    data = whole_file(external(tmp_path, 4, 16))
    assert data is not None
    graph = onnx.ModelProto.FromString(data).graph
    np.testing.assert_array_equal(numpy_helper.to_array(graph.initializer[0]), np.arange(4))


def test_more_than_one_file_holds_is_not_read(tmp_path):
    before = private_mb()
    assert whole_file(external(tmp_path, 1 << 29, 1 << 31)) is None
    assert private_mb() - before < 50
