"""Random ONNX graphs over many operators against onnxruntime (`tools/fuzz_operators.py` runs more), and the faults that they found."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx import helper
from onnx_files import agrees, computed, imported, model_of

from dmlc.tools.fuzz_operators import difference, failure, main, text
from dmlc.tools.random_onnx import random_onnx

node = helper.make_node
SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_graph_means_what_onnxruntime_says(seed, tmp_path):
    """Every fourth one also after the whole pipeline, on two ranks."""
    wrong = failure(random_onnx(seed), [2] if seed % 4 == 0 else [], seed, tmp_path)
    assert wrong is None, f"{wrong}\nmake it smaller: tools/fuzz_operators.py --seed {seed}"


def test_graphs_are_what_they_should_be():
    graphs = [random_onnx(seed) for seed in SEEDS]
    made = sum((g.made for g in graphs), Counter[str]())
    assert len(made) > 100 and all(len(g.nodes) >= 8 for g in graphs)
    for operator in ("Conv", "MatMul", "If", "Loop", "Scan", "QuantizeLinear", "GatherND", "ScatterElements", "TopK", "Cast", "Resize", "Gelu"):
        assert made[operator], operator
    assert len({str(v.array.dtype) for g in graphs for v in g.values}) == 8


def test_graphs_are_reproducible_and_grow():
    assert text(random_onnx(3)) == text(random_onnx(3)) != text(random_onnx(4))
    short, long = (random_onnx(5, n).nodes for n in (4, 8))
    assert 4 <= len(short) < len(long) and long[: len(short)] == short


def test_a_wrong_number_is_noticed():
    wanted = {"y": np.array([1.0, 2.0], np.float32), "i": np.array([1, 2])}
    assert difference(wanted, {"y": np.array([1.0, 2.00001], np.float32), "i": np.array([1, 2])}) is None
    assert "scale" in (difference(wanted, {"y": np.array([1.0, 2.001], np.float32), "i": np.array([1, 2])}) or "")
    assert "1 of 2" in (difference(wanted, {"y": wanted["y"], "i": np.array([1, 3])}) or "")
    assert "shape" in (difference(wanted, {"y": np.zeros(3), "i": np.array([1, 3])}) or "")
    assert difference(wanted, {"y": np.array([1.0, np.nan]), "i": np.array([1, 2])})


def test_the_longer_run_counts(capsys):
    assert main(["--count", "2", "--devices"]) == 0
    assert capsys.readouterr().out.endswith("on [] ranks: 0 failures\n")


# ---------------------------------------------------------------- what they found


@pytest.mark.parametrize("attributes", [{"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"auto_pad": "SAME_LOWER", "strides": [2]}, {"auto_pad": "SAME_UPPER", "output_padding": [3]}])
def test_a_transposed_convolution_whose_windows_leave_gaps(tmp_path, attributes):
    """A stride above the kernel's size: SAME adds nothing at the end, as the specification's shape inference has it too."""
    weight = np.arange(1, 4, dtype=np.float32).reshape(1, 1, 3)
    agrees(tmp_path, model_of([node("ConvTranspose", ["x", "w"], ["y"], **{"strides": [4], **attributes})], {"x": (1, 1, 4)}, ["y"], {"w": weight}))


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_a_transposed_convolution_larger_than_its_windows_goes_on_at_the_end(tmp_path, auto_pad):
    model = model_of([node("ConvTranspose", ["x", "w"], ["y"], strides=[2], output_shape=[12], auto_pad=auto_pad)], {"x": (1, 1, 4)}, ["y"], {"w": np.ones((1, 1, 3), np.float32)})
    found = computed(imported(tmp_path, model), {"x": np.ones((1, 1, 4), np.float32)})[0]
    assert found.reshape(-1).tolist() == [1, 1, 2, 1, 2, 1, 2, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(("a", "b"), [((4,), (4, 3)), ((2, 4), (4,)), ((4,), (4,)), ((2, 4), (3, 4, 5)), ((3, 2, 4), (4,))])
def test_integer_products_of_vectors(tmp_path, a, b):
    constants = {"a": np.arange(int(np.prod(a)), dtype=np.uint8).reshape(a), "b": np.arange(-4, int(np.prod(b)) - 4, dtype=np.int8).reshape(b), "z": np.uint8(2)}
    nodes = [node("MatMulInteger", ["a", "b", "z"], ["i"]), node("Cast", ["i"], ["f"], to=1), node("Mul", ["f", "x"], ["y"])]
    agrees(tmp_path, model_of(nodes, {"x": (1,)}, ["y"], constants))
