"""Faults that users of other importers met with weights: overridable ones (A8), external data outside the model's folder (A10) and of more than 2 GB (A11)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_cases import compile_copy, emit
from onnx import TensorProto, helper
from onnx_files import FLOAT, computed, model_of
from pipeline_cases import everywhere, ops_of, run_onnx, through
from rank_pool import shared_pool

from dmlc import driver
from dmlc.cli._run_inputs import check_inputs
from dmlc.frontend.onnx import import_onnx
from dmlc.interpret.run import run
from dmlc.ir.location import DmlcError
from dmlc.passmanager.context import Context

node = helper.make_node
RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------- A8: initializers that are inputs


def scaled(ir_version: int) -> onnx.ModelProto:
    nodes = [node("Constant", [], ["two"], value_float=2.0), node("Mul", ["w", "two"], ["t"]), node("Add", ["x", "t"], ["y"])]
    return model_of(
        nodes, {"x": ("n",), "w": (), "unused": (3,)}, ["y"], {"w": np.float32(3), "unused": np.zeros(3, np.float32)}, opset=13, ir_version=ir_version
    )


@everywhere
def test_a8_an_initializer_that_is_an_input_can_be_overridden(tmp_path, devices, plan):
    x = np.zeros(2, np.float32)
    shapes = {"shapes": {"x": (2,)}}
    assert run_onnx(tmp_path, scaled(8), {"x": x}, devices, plan, **shapes)[1][0].tolist() == [6, 6]
    given = {"x": x, "w": np.float32(10), "unused": np.ones(3, np.float32)}
    module, (y,) = run_onnx(tmp_path, scaled(8), given, devices, plan, **shapes)
    assert y.tolist() == [20, 20] and not any("dmlc.derived" in a.attrs for a in module.main.args)


def test_a8_a_folder_takes_what_it_overrides(tmp_path):
    """On two ranks, one of which holds each half of w."""
    nodes = [node("MatMul", ["x", "w"], ["t"]), node("Relu", ["t"], ["y"])]
    w, other, x = floats(4, 6), floats(4, 6), floats(2, 4)
    onnx.save(model_of(nodes, {"x": (2, 4), "w": (4, 6), "unused": (3,)}, ["y"], {"w": w, "unused": np.zeros(3, np.float32)}), str(tmp_path / "model.onnx"))
    loaded = driver.load(str(tmp_path / "model.onnx"), driver.Options(devices=2, plan="tp=2"))
    folder = emit(compile_copy(loaded, devices=2, plan="tp=2"), tmp_path / "out")
    for given, right in (({}, w), ({"w": other, "unused": np.ones(3, np.float32)}, other)):
        np.savez(tmp_path / "x.npz", x=x, **given)
        check_inputs(folder, tmp_path / "x.npz")
        np.testing.assert_allclose(shared_pool().run(folder, {"x": x, **given}).results["y"], np.maximum(x @ right, 0), rtol=1e-5)
    np.savez(tmp_path / "x.npz", x=x, w=other.T)
    with pytest.raises(DmlcError, match="'w' has shape"):
        check_inputs(folder, tmp_path / "x.npz")


@everywhere
def test_a8_until_ir_version_3_initializers_had_to_be_inputs(tmp_path, devices, plan):
    module, (y,) = run_onnx(tmp_path, scaled(3), {"x": np.zeros(2, np.float32)}, devices, plan)
    assert y.tolist() == [6, 6] and not ops_of(module, "dmlc.mul") and not [a for a in module.main.args if "dmlc.overridable" in a.attrs]


def external(folder: Path, location: str, offset: int = 0, length: int | None = None, shape: tuple[int, ...] = (4, 4)) -> Path:
    """y = x @ w with w's bytes in another file."""
    model = model_of([node("MatMul", ["x", "w"], ["y"])], {"x": ("n", shape[0])}, ["y"])
    tensor = model.graph.initializer.add(name="w", data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    entries = {"location": location, "offset": str(offset)} | ({} if length is None else {"length": str(length)})
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


# ---------------------------------------------------------------- A10


@everywhere
def test_a10_external_data_is_read_lazily(tmp_path, devices, plan):
    path = external(tmp_path, "w.bin", offset=4)
    w = np.arange(16, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(b"head" + w.tobytes())
    result = import_onnx(path, shapes={"x": (2, 4)}, devices=devices)
    assert isinstance(result.weights.get("w"), np.memmap)
    context = Context(result.weights)
    module = through(result.module, context, devices, plan)
    np.testing.assert_array_equal(run(module, {"x": np.eye(2, 4, dtype=np.float32)}, weights=context.weights, poison_pads=True)["y"], w.reshape(4, 4)[:2])


@pytest.mark.parametrize(
    ("location", "offset", "length", "why"),
    [
        ("../../etc/hostname", 0, None, "inside the model's folder"),
        ("../secret.bin", 0, None, "inside the model's folder"),
        ("sub/../../secret.bin", 0, None, "inside the model's folder"),
        ("..\\secret.bin", 0, None, "inside the model's folder"),
        ("/etc/hostname", 0, None, "inside the model's folder"),
        ("link.bin", 0, None, "link leads out"),
        ("linked/secret.bin", 0, None, "link leads out"),
        ("twice.bin", 0, None, "link leads out"),
        ("missing.bin", 0, None, "no such file"),
        ("folder", 0, None, "no such file"),
        ("", 0, None, "names no file"),
        ("w.bin\0", 0, None, "names no file"),
        ("w.bin", 8, None, "the file has 64"),
        ("w.bin", 2**63, None, "the file has 64"),
        ("w.bin", 0, -1, "length '-1'"),
        ("w.bin", -4, None, "offset '-4'"),
        ("w.bin", 0, 60, "length 60"),
        ("w.bin", 0, 1 << 70, "length"),
    ],
)
def test_a10_external_data_that_is_refused(tmp_path, monkeypatch, location, offset, length, why):
    """Before opening: neither the file outside nor the data file is ever read. The message names the tensor and the path."""
    folder = tmp_path / "model"
    path = external(folder, location, offset, length)
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (folder / "w.bin").write_bytes(bytes(64))
    (folder / "folder").mkdir()
    os.symlink(tmp_path / "secret.bin", folder / "link.bin")
    os.symlink("link.bin", folder / "twice.bin")
    os.symlink(tmp_path, folder / "linked")
    monkeypatch.setattr(np, "memmap", lambda *a, **k: pytest.fail("the data was opened"))
    with pytest.raises(DmlcError, match=why) as caught:
        import_onnx(path)
    assert "'w'" in str(caught.value) and location in str(caught.value)


def test_a10_links_into_one_folder_of_blobs_are_followed(tmp_path):
    """The layout of a content-addressed cache: the model and its data are both links into a sibling folder."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots"
    path = external(blobs, "w.bin")
    path.rename(blobs / "1f")
    (blobs / "2e").write_bytes(np.ones(16, np.float32).tobytes())
    snapshot.mkdir()
    os.symlink(blobs / "1f", snapshot / "model.onnx")
    os.symlink(blobs / "2e", snapshot / "w.bin")
    assert computed(import_onnx(snapshot / "model.onnx", shapes={"x": (2, 4)}), {"x": np.ones((2, 4), np.float32)})[0].tolist() == [[4.0] * 4] * 2


def test_a10_a_hard_link_is_a_file(tmp_path):
    """Package caches link so; nothing tells it from the file itself."""
    path = external(tmp_path / "model", "w.bin")
    (tmp_path / "elsewhere.bin").write_bytes(np.ones(16, np.float32).tobytes())
    os.link(tmp_path / "elsewhere.bin", tmp_path / "model" / "w.bin")
    assert computed(import_onnx(path, shapes={"x": (2, 4)}), {"x": np.ones((2, 4), np.float32)})[0].tolist() == [[4.0] * 4] * 2


# ---------------------------------------------------------------- A11


def test_a11_more_than_two_gigabytes_are_not_read(tmp_path):
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
