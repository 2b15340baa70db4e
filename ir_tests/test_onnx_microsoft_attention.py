"""Attention of onnxruntime's own domain against onnxruntime: masks, packed forms, caches, rotary positions, windows and sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_files import agrees, computed, imported, model_of, random_inputs, under_onnxruntime

RNG = np.random.default_rng(6)
DOMAIN = "com.microsoft"


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, list(inputs), list(outputs), domain=DOMAIN, **attributes)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Any], outputs: Sequence[str], constants: Mapping[str, Any]) -> onnx.ModelProto:
    return model_of(nodes, inputs, outputs, {k: np.asarray(v) for k, v in constants.items()}, opset=17, domains=[DOMAIN])


@pytest.mark.parametrize("mask", ["rows", "matrix", "lengths", "spans"])
def test_masks_of_attention(tmp_path, mask):
    masks = {
        "rows": np.array([[1] * 6, [1] * 4 + [0] * 2]),
        "matrix": np.stack([np.tril(np.ones((6, 6))), np.ones((6, 6))]),
        "lengths": np.array([6, 4]),
        "spans": np.array([6, 5, 0, 2]),
    }
    constants = {"w": floats(8, 24) / 3, "b": floats(24), "mask": masks[mask].astype(np.int32)}
    agrees(tmp_path, model([node("Attention", ["x", "w", "b", "mask"], ["y"], num_heads=2)], {"x": (2, 6, 8)}, ["y"], constants), 1e-4)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_a_cache(tmp_path, causal):
    made = node("Attention", ["x", "w", "b", "", "past"], ["y", "present"], num_heads=2, unidirectional=causal)
    inputs = {"x": (2, 3, 8), "past": (2, 2, 2, 4, 4)}
    agrees(tmp_path, model([made], inputs, ["y", "present"], {"w": floats(8, 24) / 3, "b": floats(24)}), 1e-4)


def test_keys_of_another_sequence(tmp_path):
    inputs = {"x": (2, 3, 8), "k": (2, 2, 5, 4), "v": (2, 2, 5, 4)}
    agrees(tmp_path, model([node("MultiHeadAttention", ["x", "k", "v"], ["y"], num_heads=2)], inputs, ["y"], {}), 1e-4)


@pytest.mark.parametrize("count", [2, 3])
def test_packed_keys_and_values(tmp_path, count):
    """onnxruntime's processor kernel takes them one by one only: [b, t, h, count, d] is compared with `count` tensors [b, t, h d]."""
    constants = {"b": floats(24)}
    one_by_one = model([node("MultiHeadAttention", ["x", "k", "v", "b"], ["y"], num_heads=2)], dict.fromkeys("xkv", (2, 5, 8)), ["y"], constants)
    onnx.save(one_by_one, str(tmp_path / "separate.onnx"))
    parts = {name: floats(2, 5, 8) for name in "xkv"}
    (wanted,) = under_onnxruntime(tmp_path / "separate.onnx", parts)
    joint = np.stack([parts[name].reshape(2, 5, 2, 4) for name in "xkv"[3 - count :]], 3)
    names, shapes = (["p", "", ""], {"p": joint.shape}) if count == 3 else (["x", "p", ""], {"x": (2, 5, 8), "p": joint.shape})
    packed = imported(tmp_path, model([node("MultiHeadAttention", [*names, "b"], ["y"], num_heads=2)], shapes, ["y"], constants))
    (found,) = computed(packed, {name: joint if name == "p" else parts[name] for name in shapes})
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention_with_a_cache(tmp_path, causal):
    names, results = ["x", "k", "v", "b", "mask", "", "pk", "pv"], ["y", "nk", "nv"]
    inputs = {"x": (2, 3, 8), "k": (2, 3, 8), "v": (2, 3, 8), "pk": (2, 2, 4, 4), "pv": (2, 2, 4, 4)}
    constants = {"b": floats(24), "mask": np.array([[1] * 7, [0] * 2 + [1] * 5], np.int32)}
    agrees(tmp_path, model([node("MultiHeadAttention", names, results, num_heads=2, unidirectional=causal)], inputs, results, constants), 1e-4)


ANGLES = np.arange(16)[:, None] * 0.5 ** np.arange(8)
TURNS = {"cos": np.cos(ANGLES).astype(np.float32), "sin": np.sin(ANGLES).astype(np.float32)}
H, KV, D = 4, 2, 16


def group_query(
    past: int, new: int, total: int, last: Any, extra: Sequence[str] = (), constants: Mapping[str, Any] = {}, packed: bool = False, **attributes: Any
) -> onnx.ModelProto:
    """GroupQueryAttention over a cache of `past` places; `last` = None: each sequence's last place is an input."""
    names = ["x", "", ""] if packed else ["x", "k", "v"]
    inputs: dict[str, Any] = {"x": (2, new, (H + 2 * KV) * D)} if packed else {"x": (2, new, H * D), "k": (2, new, KV * D), "v": (2, new, KV * D)}
    inputs |= {"pk": (2, KV, past, D), "pv": (2, KV, past, D)} if past else {}
    inputs |= {"last": (TensorProto.INT32, (2,))} if last is None else {}
    numbers = {"t": np.int32(total), **({} if last is None else {"last": np.asarray(last, np.int32)})} | dict(constants)
    made = node(
        "GroupQueryAttention",
        [*names, *(("pk", "pv") if past else ("", "")), "last", "t", *extra],
        ["y", "nk", "nv"],
        num_heads=H,
        kv_num_heads=KV,
        **attributes,
    )
    return model([made], inputs, ["y", "nk", "nv"], numbers)


GROUPED: dict[str, Any] = {
    "a prompt": ((0, 5, 5, [4, 4]), {}),
    "a prompt in one tensor, turned": ((0, 5, 5, [4, 4], ["cos", "sin"], TURNS, True), {"do_rotary": 1}),
    "a prompt, pairs turned": ((0, 5, 5, [4, 4], ["cos", "sin"], TURNS), {"do_rotary": 1, "rotary_interleaved": 1}),
    "a token": ((4, 1, 5, [4, 4], ["cos", "sin"], TURNS), {"do_rotary": 1}),
    "a token, other lengths": ((6, 1, 6, [5, 3], ["cos", "sin"], TURNS), {"do_rotary": 1}),
    "a token, lengths from data": ((6, 1, 6, None, ["cos", "sin"], TURNS), {"do_rotary": 1}),
    "a window": ((0, 6, 6, [5, 5]), {"local_window_size": 3}),
    "a token, a window": ((5, 1, 6, [5, 5]), {"local_window_size": 2}),
    "softcap": ((0, 5, 5, [4, 4]), {"softcap": 0.7}),
    "a sink of one": ((0, 5, 5, [4, 4]), {"smooth_softmax": 1}),
    "sinks": ((4, 1, 5, [4, 3], ["", "", "", "", "sink"], {"sink": floats(H)}), {}),
    "a bias and softcap": ((0, 5, 5, [4, 4], ["", "", "", "bias"], {"bias": floats(1, H, 5, 5)}), {"softcap": 2.0, "scale": 0.3}),
}


@pytest.mark.parametrize("case", GROUPED)
def test_group_query_attention(tmp_path, case):
    given, attributes = GROUPED[case]
    made = group_query(*given, **attributes)
    result = imported(tmp_path, made)
    inputs = random_inputs(result)
    wanted = under_onnxruntime(tmp_path / "model.onnx", inputs)
    last = given[3] or inputs["last"].tolist()
    for ours, theirs in zip(computed(result, inputs), wanted, strict=True):
        assert ours.shape == theirs.shape
        for b, places in enumerate(last):  # what lies behind a sequence's last place is nobody's
            kept = slice(places + 1) if ours.ndim == 4 else slice(None)
            np.testing.assert_allclose(ours[b][..., kept, :], theirs[b][..., kept, :], rtol=0, atol=1e-5 * float(np.abs(theirs).max()))
        assert theirs.std() > 0
