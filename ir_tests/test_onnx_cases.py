"""Faults that users of other ONNX importers met: the right values, as the specification gives them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_files import FLOAT, INT64, computed, imported, model_of, outputs_of, under_onnxruntime

from dmlc.frontend.onnx import import_onnx
from dmlc.ir.location import DmlcError

node = helper.make_node


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_before_opset_13_normalises_all_dims_from_the_axis_on(tmp_path, operator):
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 10
    (y,) = outputs_of(tmp_path, model_of([node(operator, ["x"], ["y"])], {"x": x.shape}, ["y"], opset=11), {"x": x})
    np.testing.assert_allclose(y, under_onnxruntime(tmp_path / "model.onnx", {"x": x})[0], atol=1e-6)
    if operator == "Softmax":
        np.testing.assert_allclose(y.sum(axis=(1, 2)), 1, atol=1e-6)
        np.testing.assert_allclose(y[0, 0], [0.045330, 0.050097, 0.055366, 0.061189], atol=1e-6)


def test_softmax_since_opset_13_takes_the_last_dim(tmp_path):
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 10
    (y,) = outputs_of(tmp_path, model_of([node("Softmax", ["x"], ["y"])], {"x": x.shape}, ["y"], opset=13), {"x": x})
    np.testing.assert_allclose(y[0, 0, 0], 0.2138, atol=1e-4)


def _two_reshapes(allow_zero: int) -> onnx.ModelProto:
    nodes = [node("Reshape", ["x", "first"], ["m"]), node("Reshape", ["m", "second"], ["y"], allowzero=allow_zero)]
    return model_of(nodes, {"x": (0, 8, 2)}, ["m", "y"], {"first": np.array([4, 2, -1]), "second": np.array([0, 0, 4])})


def test_reshape_with_allowzero(tmp_path):
    m, y = outputs_of(tmp_path, _two_reshapes(1), {"x": np.zeros((0, 8, 2), np.float32)})
    assert m.shape == (4, 2, 0) and y.shape == (0, 0, 4)


def test_reshape_without_allowzero_copies_and_then_does_not_fit(tmp_path):
    with pytest.raises(DmlcError, match=r"\[4, 2, 4\]"):
        imported(tmp_path, _two_reshapes(0))


def test_minus_one_beside_a_copied_dim(tmp_path):
    model = model_of([node("Reshape", ["x", "s"], ["y"])], {"x": (2, 3, 4)}, ["y"], {"s": np.array([0, -1, 2])})
    assert outputs_of(tmp_path, model, {"x": np.zeros((2, 3, 4), np.float32)})[0].shape == (2, 6, 2)


def test_slice_to_the_end(tmp_path):
    constants = {"starts": np.array([0, 0, 0]), "ends": np.array([2**31 - 1, 1, 2**63 - 1]), "axes": np.array([0, 1, 2])}
    model = model_of([node("Slice", ["x", "starts", "ends", "axes"], ["y"])], {"x": ("batch", "seq", 768)}, ["y"], constants)
    result = imported(tmp_path, model, dims={"batch": 3, "seq": 5})
    assert result.module.main.results[0].shape == (3, 1, 768)


def test_slice_backwards_to_the_start(tmp_path):
    constants = {"starts": np.array([-1]), "ends": np.array([-(2**63) + 1]), "axes": np.array([0]), "steps": np.array([-2])}
    model = model_of([node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])], {"x": (6,)}, ["y"], constants)
    (y,) = outputs_of(tmp_path, model, {"x": np.arange(6, dtype=np.float32)})
    assert y.tolist() == [5, 3, 1]


@pytest.mark.parametrize(
    ("size", "scale", "attributes", "rows"),
    [
        (3, 1.5, {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}, {0: [0, 0, 1, 2], 1: [0, 0, 1, 2], 2: [3, 3, 4, 5], 3: [6, 6, 7, 8]}),
        (4, 2.0, {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "floor"}, {0: [0, 0, 0, 1, 1, 2, 2, 3], 3: [4, 4, 4, 5, 5, 6, 6, 7]}),
        (4, 2.0, {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, {0: [0, 0, 1, 1, 2, 2, 3, 3]}),
    ],
)
def test_resize_nearest(tmp_path, size, scale, attributes, rows):
    x = np.arange(size * size, dtype=np.float32).reshape(1, 1, size, size)
    model = model_of([node("Resize", ["x", "", "scales"], ["y"], **attributes)], {"x": x.shape}, ["y"], {"scales": np.array([1, 1, scale, scale], np.float32)}, opset=13)
    (y,) = outputs_of(tmp_path, model, {"x": x})
    for row, values in rows.items():
        assert y[0, 0, row].tolist() == values


@pytest.mark.parametrize(
    ("operator", "attributes", "wanted"),
    [("Div", {}, [-2, -2, -3, -3]), ("Mod", {"fmod": 0}, [-1, 1, -1, 1]), ("Mod", {"fmod": 1}, [2, -2, 1, -1])],
)
@pytest.mark.parametrize("constant", [False, True])
def test_division_and_remainder_of_negative_integers(tmp_path, operator, attributes, wanted, constant):
    """The same whether computed by the program or folded at import."""
    a, b = np.array([8, -8, 7, -7]), np.array([-3, 3, -2, 2])
    nodes = [node(operator, ["a", "b"], ["q"], **attributes), node("Mul", ["q", "x"], ["y"])]
    given = {"x": np.ones(4, np.int64)} | ({} if constant else {"a": a, "b": b})
    model = model_of(nodes, dict.fromkeys(given, (INT64, (4,))), ["y"], {"a": a, "b": b} if constant else {})
    assert outputs_of(tmp_path, model, given)[0].tolist() == wanted


@pytest.mark.parametrize(
    ("operands", "constants", "wanted"),
    [
        (["x", "", "high"], {"high": 1.0}, [-5, 0.5, 1, np.nan]),
        (["x", "low"], {"low": 0.5}, [0.5, 0.5, 9, np.nan]),
        (["x", "low", "high"], {"low": 2.0, "high": -1.0}, [-1, -1, -1, np.nan]),
    ],
)
@pytest.mark.parametrize("bounds", ["known", "given at run time"])
def test_clip_with_optional_bounds(tmp_path, operands, constants, wanted, bounds):
    x = np.array([-5, 0.5, 9, np.nan], np.float32)
    numbers = {k: np.float32(v) for k, v in constants.items()}
    dynamic = numbers if bounds != "known" else {}
    model = model_of([node("Clip", operands, ["y"])], {"x": (4,), **dict.fromkeys(dynamic, ())}, ["y"], numbers if not dynamic else {})
    np.testing.assert_array_equal(outputs_of(tmp_path, model, {"x": x, **dynamic})[0], np.array(wanted, np.float32))


def test_empty_initializers_of_resize_are_absent_operands(tmp_path):
    constants = {"roi": np.zeros(0, np.float32), "scales": np.zeros(0, np.float32), "sizes": np.array([1, 1, 4, 4])}
    model = model_of([node("Resize", ["x", "roi", "scales", "sizes"], ["y"])], {"x": (1, 1, 2, 2)}, ["y"], constants, opset=11)
    assert outputs_of(tmp_path, model, {"x": np.zeros((1, 1, 2, 2), np.float32)})[0].shape == (1, 1, 4, 4)


def _scaled(ir_version: int) -> onnx.ModelProto:
    nodes = [node("Constant", [], ["two"], value_float=2.0), node("Mul", ["w", "two"], ["t"]), node("Add", ["x", "t"], ["y"])]
    return model_of(nodes, {"x": (2,), "w": (), "unused": (3,)}, ["y"], {"w": np.float32(3), "unused": np.zeros(3, np.float32)}, opset=13, ir_version=ir_version)


def test_an_initializer_that_is_an_input_can_be_overridden(tmp_path):
    result = imported(tmp_path, _scaled(8))
    x = np.zeros(2, np.float32)
    assert computed(result, {"x": x})[0].tolist() == [6, 6]
    assert computed(result, {"x": x, "w": np.float32(10), "unused": np.ones(3, np.float32)})[0].tolist() == [20, 20]
    assert [i.name for i in result.inputs] == ["x"]


def test_until_ir_version_3_initializers_had_to_be_inputs(tmp_path):
    result = imported(tmp_path, _scaled(3))
    assert computed(result, {"x": np.zeros(2, np.float32)})[0].tolist() == [6, 6]
    assert not [a for a in result.module.main.args if "dmlc.overridable" in a.attrs]
    assert [op.name for op in result.module.main.body] == ["dmlc.full", "dmlc.add", "func.return"]


# ---------------------------------------------------------------- external data


def _external(folder: Path, location: str, offset: int = 0, length: int | None = None, shape: tuple[int, ...] = (4, 4)) -> Path:
    """y = x @ w with w's bytes in another file."""
    model = model_of([node("MatMul", ["x", "w"], ["y"])], {"x": (2, shape[0])}, ["y"])
    tensor = model.graph.initializer.add(name="w", data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    entries = {"location": location, "offset": str(offset)} | ({} if length is None else {"length": str(length)})
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def test_external_data_is_read_lazily(tmp_path):
    path = _external(tmp_path, "w.bin", offset=4)
    w = np.arange(16, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(b"head" + w.tobytes())
    result = import_onnx(path)
    x = np.eye(2, 4, dtype=np.float32)
    np.testing.assert_array_equal(computed(result, {"x": x})[0], w.reshape(4, 4)[:2])
    assert isinstance(result.weights.get("w"), np.memmap)


@pytest.mark.parametrize(
    ("location", "offset", "length", "why"),
    [
        ("../secret.bin", 0, None, "inside the model's folder"),
        ("sub/../../secret.bin", 0, None, "inside the model's folder"),
        ("/etc/hostname", 0, None, "inside the model's folder"),
        ("link.bin", 0, None, "link leads out"),
        ("linked/secret.bin", 0, None, "link leads out"),
        ("missing.bin", 0, None, "no such file"),
        ("", 0, None, "names no file"),
        ("w.bin", 8, None, "the file has 64"),
        ("w.bin", 0, -1, "length '-1'"),
        ("w.bin", -4, None, "offset '-4'"),
        ("w.bin", 0, 60, "length 60"),
    ],
)
def test_external_data_that_is_refused(tmp_path, monkeypatch, location, offset, length, why):
    """Before opening: neither the file outside nor the data file is ever read."""
    folder = tmp_path / "model"
    path = _external(folder, location, offset, length)
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (folder / "w.bin").write_bytes(bytes(64))
    os.symlink(tmp_path / "secret.bin", folder / "link.bin")
    os.symlink(tmp_path, folder / "linked")
    monkeypatch.setattr(np, "memmap", lambda *a, **k: pytest.fail("the data was opened"))
    with pytest.raises(DmlcError, match=why) as caught:
        import_onnx(path)
    assert "'w'" in str(caught.value) and location in str(caught.value)


def test_links_into_one_folder_of_blobs_are_followed(tmp_path):
    """The layout of a content-addressed cache: the model and its data are both links into a sibling folder."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots"
    path = _external(blobs, "w.bin")
    path.rename(blobs / "1f")
    (blobs / "2e").write_bytes(np.ones(16, np.float32).tobytes())
    snapshot.mkdir()
    os.symlink(blobs / "1f", snapshot / "model.onnx")
    os.symlink(blobs / "2e", snapshot / "w.bin")
    assert computed(import_onnx(snapshot / "model.onnx"), {"x": np.ones((2, 4), np.float32)})[0].tolist() == [[4.0] * 4] * 2


def test_more_than_two_gigabytes_are_not_read(tmp_path):
    """Three weights of 1 GiB each, as a sparse file: imported without touching them."""
    import resource

    side = 16384
    names = ["a", "b", "c"]
    nodes = [node("MatMul", [x, w], [y]) for x, w, y in zip(["x", "t", "u"], names, ["t", "u", "y"])]
    model = model_of(nodes, {"x": (1, side)}, ["y"])
    for i, name in enumerate(names):
        tensor = model.graph.initializer.add(name=name, data_type=FLOAT, dims=(side, side), data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "w.bin"), ("offset", str(i * side * side * 4)), ("length", str(side * side * 4))):
            tensor.external_data.add(key=key, value=value)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with open(tmp_path / "w.bin", "wb") as f:
        f.truncate(3 * side * side * 4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = import_onnx(tmp_path / "model.onnx")
    assert sum(a.tensor.bytes for a in result.module.main.args) > 3 << 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    assert result.weights.get("c").shape == (side, side)


# ---------------------------------------------------------------- casts and pools


def test_casts_without_a_specified_result_are_not_folded(tmp_path):
    """300, NaN and infinities have no int8; the program computes them as it would without folding. 50 and -50 do."""
    wild, tame = np.array([300, np.nan, np.inf, -np.inf], np.float32), np.array([50, -50.9], np.float32)
    nodes = [node("Cast", ["wild"], ["w"], to=TensorProto.INT8), node("Cast", ["tame"], ["t"], to=TensorProto.INT8)]
    folded = [node("Constant", [], [n], value=onnx.numpy_helper.from_array(v)) for n, v in (("wild", wild), ("tame", tame))]
    constant = imported(tmp_path, model_of([*folded, *nodes], {"x": (1,)}, ["w", "t"]))
    assert [op.name for op in constant.module.main.body] == ["dmlc.cast", "func.return"]
    dynamic = outputs_of(tmp_path, model_of(nodes, {"wild": (4,), "tame": (2,)}, ["w", "t"]), {"wild": wild, "tame": tame})
    for a, b in zip(computed(constant, {"x": np.zeros(1, np.float32)}), dynamic):
        assert a.dtype == np.int8 and a.tolist() == b.tolist()
    assert dynamic[1].tolist() == [50, -50]


def test_average_pool_counts_padding_but_not_what_ceil_mode_adds(tmp_path):
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1, "count_include_pad": 1}
    (y,) = outputs_of(tmp_path, model_of([node("AveragePool", ["x"], ["y"], **attributes)], {"x": x.shape}, ["y"], opset=19), {"x": x})
    np.testing.assert_allclose(y[0, 0], [[1.5556, 3.3333, 2.0], [6.3333, 11, 6], [4.5, 7.5, 4]], atol=1e-4)


def test_a_window_that_would_start_in_the_padding_is_dropped(tmp_path):
    attributes = {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    model = model_of([node("AveragePool", ["x"], ["y"], **attributes)], {"x": (1, 3, 2, 2)}, ["y"], opset=19)
    assert outputs_of(tmp_path, model, {"x": np.ones((1, 3, 2, 2), np.float32)})[0].shape == (1, 3, 1, 1)


def test_two_outputs_may_be_one_value(tmp_path):
    """B3: equal nodes under two output names."""
    nodes = [node("Cos", ["x"], ["t"]), node("Squeeze", ["t", "axes"], ["o1"]), node("Squeeze", ["t", "axes"], ["s2"]), node("Floor", ["s2"], ["o2"])]
    x = np.array([4.164, 3.107, 6.293, 4.184, 5.94, 4.6, 5.547], np.float32).reshape(1, 1, 1, 7)
    result = imported(tmp_path, model_of(nodes, {"x": x.shape}, ["o1", "o2"], {"axes": np.array([2])}))
    o1, o2 = computed(result, {"x": x})
    np.testing.assert_allclose(o1.reshape(-1), [-0.5213, -0.9994, 0.99995, -0.5041, 0.9417, -0.1122, 0.7410], atol=1e-4)
    assert o2.reshape(-1).tolist() == [-1, -1, 0, -1, 0, -1, 0] and result.outputs == ["o1", "o2"]


def test_an_output_that_is_used_further_keeps_its_name(tmp_path):
    """B1: both t2 = 1.702 x and t4 = x sigmoid(t2) are outputs."""
    nodes = [node("Mul", ["x", "k"], ["t2"]), node("Sigmoid", ["t2"], ["t3"]), node("Mul", ["x", "t3"], ["t4"])]
    model = model_of(nodes, {"x": (3,)}, ["t4", "t2"], {"k": np.float32(1.702)})
    t4, t2 = outputs_of(tmp_path, model, {"x": np.array([-1, 0, 2], np.float32)})
    np.testing.assert_allclose(t4, [-0.154204, 0, 1.935659], atol=1e-5)
    np.testing.assert_allclose(t2, [-1.702, 0, 3.404], atol=1e-5)
