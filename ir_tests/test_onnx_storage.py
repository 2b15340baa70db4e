"""Initializers of narrow types in every form a file may hold them: bytes, integers that carry bits, packed nibbles, a file beside the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx_files import computed, model_of

from dmlc.frontend.onnx import import_onnx
from dmlc.ir.location import DmlcError

node = helper.make_node

VALUES = {  # each exact in its type; an odd number of them, so that the last byte of packed ones is not full
    "FLOAT16": [1.5, -2, 65504, 6e-8, -0.0], "BFLOAT16": [1.5, -2, 3.3895314e38, 2.0**-133, -0.0],
    "FLOAT8E4M3FN": [1.5, -2, 448, 0.001953125, -0.0], "FLOAT8E4M3FNUZ": [1.5, -2, 240, 0.0009765625, 0.0],
    "FLOAT8E5M2": [1.5, -2, 57344, 1.52587890625e-05, -0.0], "FLOAT8E5M2FNUZ": [1.5, -2, 57344, 7.62939453125e-06, 0.0],
    "FLOAT8E8M0": [1, 2, 0.5, 2.0**127, 2.0**-126], "FLOAT4E2M1": [1.5, -2, 6, 0.5, -0.0],
    "INT4": [-8, 7, 0, -1, 3], "UINT4": [0, 15, 8, 1, 7], "INT2": [-2, 1, 0, -1, 1], "UINT2": [0, 3, 2, 1, 3],
    "INT8": [-128, 127, 0, -1, 5], "UINT8": [0, 255, 128, 1, 5], "INT16": [-32768, 32767, 0, -1, 5], "UINT16": [0, 65535, 32768, 1, 5],
    "UINT32": [0, 2**32 - 1, 2**31, 1, 5], "BOOL": [0, 1, 1, 0, 1],
}  # fmt: skip
PER_BYTE = {"INT4": 2, "UINT4": 2, "FLOAT4E2M1": 2, "INT2": 4, "UINT2": 4}


def tensor_of(kind: str, form: str) -> onnx.TensorProto:
    element = T.DataType.Value(kind)
    array = np.array(VALUES[kind], np.float64).astype(helper.tensor_dtype_to_np_dtype(element))
    if form == "numbers":
        return helper.make_tensor("w", element, [5], array)
    stored = numpy_helper.from_array(array, "w")
    assert stored.data_type == element and stored.HasField("raw_data")
    return stored


def model_with(tensor: onnx.TensorProto) -> onnx.ModelProto:
    model = model_of([node("Cast", ["w"], ["f"], to=T.FLOAT), node("Add", ["f", "x"], ["y"])], {"x": (5,)}, ["y"], opset=25, ir_version=12)
    model.graph.initializer.append(tensor)
    return model


def values_of(path) -> np.ndarray:
    return computed(import_onnx(path), {"x": np.zeros(5, np.float32)})[0]


@pytest.mark.parametrize("form", ["bytes", "numbers", "beside"])
@pytest.mark.parametrize("kind", VALUES)
def test_every_form_of_every_type(tmp_path, kind, form):
    tensor = tensor_of(kind, form)
    assert (tensor.HasField("raw_data")) == (form != "numbers")
    if form == "beside":
        (tmp_path / "w.bin").write_bytes(b"---" + tensor.raw_data)  # at an odd offset
        length = str(len(tensor.raw_data))
        tensor = onnx.TensorProto(name="w", data_type=tensor.data_type, dims=[5], data_location=T.EXTERNAL)
        for key, value in (("location", "w.bin"), ("offset", "3"), ("length", length)):
            tensor.external_data.add(key=key, value=value)
    (tmp_path / "model.onnx").write_bytes(model_with(tensor).SerializeToString())
    y = values_of(tmp_path / "model.onnx")
    np.testing.assert_array_equal(y, np.array(VALUES[kind]).astype(y.dtype) if kind != "FLOAT16" else np.array(VALUES[kind], np.float16).astype(np.float32))


@pytest.mark.parametrize("kind", PER_BYTE)
def test_packed_values_lie_low_bits_first(tmp_path, kind):
    """As the specification has it, in the bytes of both forms."""
    tensor, per = tensor_of(kind, "bytes"), PER_BYTE[kind]
    assert len(tensor.raw_data) == -(-5 // per)
    numbers = tensor_of(kind, "numbers")
    assert bytes(v & 255 for v in numbers.int32_data) == tensor.raw_data


@pytest.mark.parametrize("form", ["too few", "too many"])
@pytest.mark.parametrize("kind", VALUES)
def test_bytes_that_do_not_fit_the_shape(tmp_path, kind, form):
    tensor = tensor_of(kind, "bytes")
    tensor.raw_data = tensor.raw_data[:-1] if form == "too few" else tensor.raw_data + b"\0"
    (tmp_path / "model.onnx").write_bytes(model_with(tensor).SerializeToString())
    with pytest.raises(DmlcError, match=r"'w' of shape \[5\].* needs \d+ bytes but the file holds"):
        values_of(tmp_path / "model.onnx")


@pytest.mark.parametrize("kind", [k for k in VALUES if k != "UINT32"])
def test_numbers_that_do_not_fit_the_shape(tmp_path, kind):
    tensor = tensor_of(kind, "numbers")
    del tensor.int32_data[-1]
    (tmp_path / "model.onnx").write_bytes(model_with(tensor).SerializeToString())
    with pytest.raises(DmlcError, match="'w' of shape"):
        values_of(tmp_path / "model.onnx")
