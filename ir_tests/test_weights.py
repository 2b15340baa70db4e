"""The weights store: round trip, laziness, deterministic bytes, damaged files."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ir.weights import WeightStore


def example() -> WeightStore:
    rng = np.random.default_rng(0)
    store = WeightStore()
    store.add("layer.weight", rng.standard_normal((5, 3)).astype(np.float32))
    store.add("scalar", np.float64(2.5).reshape(()))
    store.add("half", rng.integers(0, 1 << 16, (7,)).astype(np.uint16))  # bf16 bits
    store.add("bits", rng.integers(0, 256, (4,)).astype(np.uint8), TensorType((4,), "f8E4M3FN"))
    store.add("flags", np.array([True, False, True]))
    store.add("empty", np.zeros((0, 4), np.int64))
    return store


def test_round_trip(tmp_path):
    store = example()
    store.save(tmp_path / "w.safetensors")
    read = WeightStore.open(tmp_path)
    assert sorted(read.keys()) == sorted(store.keys())
    for key in store:
        assert read.type(key) == store.type(key)
        np.testing.assert_array_equal(read.get(key), store.get(key))
    assert isinstance(read.get("layer.weight"), np.memmap)


def test_other_readers_agree(tmp_path):
    from safetensors.numpy import load_file

    example().save(tmp_path / "w.safetensors", ["layer.weight", "scalar", "flags", "empty"])
    for key, array in load_file(tmp_path / "w.safetensors").items():
        np.testing.assert_array_equal(array, example().get(key))


def test_bytes_do_not_depend_on_order(tmp_path):
    store = example()
    turned = WeightStore()
    for key in reversed(store.keys()):
        turned.add(key, store.get(key), store.type(key))
    store.save(tmp_path / "a")
    turned.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_functions_are_called_on_demand():
    calls = []
    store = WeightStore()
    store.add("w", lambda: calls.append(1) or np.ones(3, np.float32), TensorType((3,), "f32"))
    assert store.type("w").shape == (3,) and not calls
    assert store.get("w").sum() == 3 and calls == [1]


def test_unknown_key_names_the_nearest():
    with pytest.raises(DmlcError, match="did you mean 'layer.weight'"):
        example().get("layer.weigth")


def test_same_key_in_two_files_is_refused(tmp_path):
    for name in ("a", "b"):
        example().save(tmp_path / f"{name}.safetensors")
    with pytest.raises(DmlcError, match="two files"):
        WeightStore.open(tmp_path)


def test_missing_file_is_one_message(tmp_path):
    with pytest.raises(DmlcError, match="cannot read"):
        WeightStore.open(tmp_path / "none.safetensors")


def header_of(path) -> tuple[dict, bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


@pytest.mark.parametrize(
    "change", [{"data_offsets": [0, 1 << 40]}, {"data_offsets": [-8, 0]}, {"shape": [-1, 3]}, {"shape": [1 << 40]}, {"dtype": "F3"}, {"shape": None}]
)
def test_entries_that_do_not_fit_are_refused(tmp_path, change):
    path = tmp_path / "w.safetensors"
    example().save(path)
    header, data = header_of(path)
    header["scalar"].update(change)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    with pytest.raises(DmlcError):
        WeightStore.open(path)


def test_damaged_files_never_give_another_error(tmp_path):
    path = tmp_path / "w.safetensors"
    example().save(path)
    good = path.read_bytes()
    rng = random.Random(0)
    for _ in range(300):
        bad = bytearray(good[: rng.randrange(len(good))] if rng.random() < 0.5 else good)
        for _ in range(rng.randrange(1, 6)):
            if bad:
                bad[rng.randrange(min(len(bad), 400))] = rng.randrange(256)
        path.write_bytes(bytes(bad))
        try:
            store = WeightStore.open(path)
        except DmlcError:
            continue
        for key in store:
            assert store.get(key).shape == store.type(key).shape
