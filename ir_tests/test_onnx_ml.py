"""Operators of ai.onnx.ml on numbers against onnxruntime; those on strings and dictionaries are refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_files import INT64, computed, imported, model_of, under_onnxruntime

from dmlc.ir.location import DmlcError

ML = "ai.onnx.ml"
RNG = np.random.default_rng(3)


def model(
    operator: str, shapes: Mapping[str, Any], outputs: Sequence[str], version: int, constants: Mapping[str, np.ndarray] = {}, **attributes: Any
) -> onnx.ModelProto:
    node = helper.make_node(operator, [*shapes, *constants], list(outputs), domain=ML, **attributes)
    made = model_of([node], shapes, outputs, constants, opset=17)
    made.opset_import.append(helper.make_opsetid(ML, version))
    return made


def agrees(folder: Path, made: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    given = dict(zip([i.name for i in made.graph.input], inputs))
    result = imported(folder, made)
    wanted = under_onnxruntime(folder / "model.onnx", given)
    for ours, theirs in zip(computed(result, given), wanted, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * float(np.abs(theirs).max(initial=1e-6)))
        assert theirs.dtype.kind != "f" or len(np.unique(theirs)) > 1
    return wanted


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


X = floats(6, 4)
MISSING = np.where(X > 1, np.float32(np.nan), X)
COUNTS = RNG.integers(0, 5, (6, 4))
PLAIN: dict[str, tuple[str, np.ndarray, dict[str, Any]]] = {
    "scaler": ("Scaler", X, {"offset": [1.0, 2.0, 3.0, 4.0], "scale": [0.5, 1.0, 2.0, 4.0]}),
    "one scale for all": ("Scaler", COUNTS, {"offset": [1.0], "scale": [0.5]}),
    "largest": ("Normalizer", X, {"norm": "MAX"}),
    "sum": ("Normalizer", np.concatenate([X, np.zeros((1, 4), np.float32)]), {"norm": "L1"}),
    "length": ("Normalizer", X, {"norm": "L2"}),
    "binarizer": ("Binarizer", X, {"threshold": 0.2}),
    "imputer of nan": ("Imputer", MISSING, {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": float("nan")}),
    "imputer of numbers": ("Imputer", COUNTS, {"imputed_value_int64s": [9], "replaced_value_int64": 2}),
    "one hot": ("OneHotEncoder", COUNTS, {"cats_int64s": [3, 1, 7], "zeros": 1}),
    "integers to integers": ("LabelEncoder", COUNTS, {"keys_int64s": [3, 1], "values_int64s": [30, 10], "default_int64": 5}),
    "integers to floats": ("LabelEncoder", COUNTS, {"keys_int64s": [3, 1], "values_floats": [0.5, 1.5]}),
    "floats to integers": ("LabelEncoder", np.round(X), {"keys_floats": [1.0, -1.0], "values_int64s": [3, 4]}),
    "linear": ("LinearRegressor", X, {"coefficients": floats(8).tolist(), "intercepts": [0.5, -0.5], "targets": 2}),
    "linear, softmax": ("LinearRegressor", X, {"coefficients": floats(12).tolist(), "targets": 3, "post_transform": "SOFTMAX"}),
    "linear, softmax of others": ("LinearRegressor", X, {"coefficients": [0.0] * 4 + floats(8).tolist(), "targets": 3, "post_transform": "SOFTMAX_ZERO"}),
    "linear, probit": ("LinearRegressor", np.abs(X) / 9, {"coefficients": [0.3, 0.5, 0.1, 0.2], "intercepts": [0.1], "post_transform": "PROBIT"}),
    "kernels, rbf": ("SVMRegressor", X, {"kernel_type": "RBF", "kernel_params": [0.3, 0.0, 0.0], "n_supports": 3, "support_vectors": floats(12).tolist(), "coefficients": [1.0, -1.0, 0.5], "rho": [0.2]}),
    "kernels, polynomials": ("SVMRegressor", X, {"kernel_type": "POLY", "kernel_params": [0.3, 0.5, 2.0], "n_supports": 3, "support_vectors": floats(12).tolist(), "coefficients": [1.0, -1.0, 0.5], "rho": [0.2]}),
    "kernels, tanh": ("SVMRegressor", X, {"kernel_type": "SIGMOID", "kernel_params": [0.3, 0.5, 0.0], "n_supports": 3, "support_vectors": floats(12).tolist(), "coefficients": [1.0, -1.0, 0.5], "rho": [0.2]}),
    "one class": ("SVMRegressor", X, {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0], "n_supports": 3, "support_vectors": floats(12).tolist(), "coefficients": [1.0, -1.0, 0.5], "rho": [0.0], "one_class": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", PLAIN)
def test_operators_of_one_input(tmp_path, case):
    operator, x, attributes = PLAIN[case]
    element = {"float32": TensorProto.FLOAT, "int64": INT64}[str(x.dtype)]
    agrees(tmp_path, model(operator, {"x": (element, x.shape)}, ["y"], 2, **attributes), x)


@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4)])
def test_places_of_the_last_dim(tmp_path, shape):
    agrees(tmp_path, model("ArrayFeatureExtractor", {"x": shape}, ["y"], 1, {"i": np.array([[3, 0]])}), floats(*shape))


def test_a_label_encoder_of_tensors(tmp_path):
    """Version 4: keys, values and a default of any dtype; NaN is a key like others."""
    tensors = {"keys": np.array([1, np.nan, -1], np.float32), "values": np.array([10, 20, 30]), "default": np.array([-7])}
    attributes = {f"{name}_tensor": numpy_helper.from_array(value) for name, value in tensors.items()}
    agrees(tmp_path, model("LabelEncoder", {"x": (6, 4)}, ["y"], 4, **attributes), np.where(X > 1, np.float32(np.nan), np.round(X)))


def test_features_side_by_side(tmp_path):
    inputs = [floats(3, 2), floats(3, 4)]
    agrees(tmp_path, model("FeatureVectorizer", {"a": (3, 2), "b": (3, 4)}, ["y"], 1, inputdimensions=[2, 4]), *inputs)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("labels", [[4, 7], [4, 7, 9]])
def test_linear_classifiers(tmp_path, transform, labels):
    rows = 1 if len(labels) == 2 else 3
    attributes = {"coefficients": floats(rows * 4).tolist(), "intercepts": floats(rows).tolist(), "classlabels_ints": labels, "post_transform": transform}
    agrees(tmp_path, model("LinearClassifier", {"x": (6, 4)}, ["y", "scores"], 1, **attributes), X)


# ---------------------------------------------------------------- trees


def grown(kind: str, targets: Sequence[int], modes: Sequence[str], trees: int = 5, depth: int = 3, low: float = -1.0, mixed: bool = False) -> dict[str, Any]:
    """Random trees over four features, some branches shorter, a weight a leaf for the tree's target (`mixed`: any); NaN goes either way."""
    rng = np.random.default_rng(trees)
    nodes: dict[str, list[Any]] = {
        k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing_value_tracks_true")
    }
    leaves: dict[str, list[Any]] = {k: [] for k in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        count, pending = 1, [(0, depth)]
        while pending:
            node, left = pending.pop(0)
            inner = left == depth or (left and rng.random() < 0.8)
            children = (count, count + 1) if inner else (0, 0)
            row = (tree, node, int(rng.integers(4)), float(rng.normal()), str(rng.choice(modes)) if inner else "LEAF", *children, int(rng.integers(2)))
            for column, value in zip(nodes.values(), row):
                column.append(value)
            if inner:
                pending += [(count, left - 1), (count + 1, left - 1)]
                count += 2
            else:
                for column, value in zip(
                    leaves.values(), (tree, node, int(rng.choice(targets)) if mixed else targets[tree % len(targets)], float(rng.uniform(low, 1)))
                ):
                    column.append(value)
    return {f"nodes_{k}": v for k, v in nodes.items()} | {f"{kind}_{k}": v for k, v in leaves.items()}


MANY = np.where(RNG.random((40, 4)) < 0.1, np.float32(np.nan), floats(40, 4))


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressors(tmp_path, aggregate):
    attributes = grown("target", [0, 1], ["BRANCH_LEQ"]) | {"n_targets": 2, "aggregate_function": aggregate, "base_values": [0.25, -0.5]}
    agrees(tmp_path, model("TreeEnsembleRegressor", {"x": MANY.shape}, ["y"], 1, **attributes), MANY)


def test_trees_of_many_comparisons(tmp_path):
    attributes = grown("target", [0], ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_NEQ"], trees=8)
    agrees(tmp_path, model("TreeEnsembleRegressor", {"x": MANY.shape}, ["y"], 3, n_targets=1, **attributes), MANY)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_tree_classifiers(tmp_path, transform):
    attributes = grown("class", [0, 1, 2], ["BRANCH_LEQ"], mixed=True) | {"classlabels_int64s": [5, 6, 8], "post_transform": transform}
    agrees(tmp_path, model("TreeEnsembleClassifier", {"x": MANY.shape}, ["y", "scores"], 3, **attributes), MANY)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("low", [0.0, -1.0])
def test_trees_that_score_one_of_two_classes(tmp_path, transform, low):
    attributes = grown("class", [0], ["BRANCH_LEQ"], trees=1 + 4 * (low < 0), low=low) | {"classlabels_int64s": [5, 6], "post_transform": transform}
    agrees(tmp_path, model("TreeEnsembleClassifier", {"x": MANY.shape}, ["y", "scores"], 3, **attributes), MANY)


def test_trees_of_two_lists(tmp_path):
    """x0 <= 1 ? (x1 < 0 ? 5 : 7) : -3, and a tree that adds 10 where x2 > 0.5."""
    attributes = {
        "nodes_featureids": [0, 1, 2], "nodes_truenodeids": [1, 0, 3], "nodes_falsenodeids": [2, 1, 4], "nodes_trueleafs": [0, 1, 1], "nodes_falseleafs": [1, 1, 1],
        "nodes_splits": numpy_helper.from_array(np.array([1, 0, 0.5], np.float32)), "nodes_modes": numpy_helper.from_array(np.array([0, 1, 3], np.uint8)), "tree_roots": [0, 2],
        "leaf_targetids": [0] * 5, "leaf_weights": numpy_helper.from_array(np.array([5, 7, -3, 10, 0], np.float32)), "n_targets": 1, "aggregate_function": 1, "post_transform": 0,
    }  # fmt: skip
    x = floats(40, 4)
    (y,) = agrees(tmp_path, model("TreeEnsemble", {"x": x.shape}, ["y"], 5, **attributes), x)
    assert set(np.unique(y)) == {-3, 5, 7, 15, 17}


def test_damaged_trees_are_refused(tmp_path):
    attributes = grown("target", [0], ["BRANCH_LEQ"], trees=1)
    for change, why in (
        ({"nodes_truenodeids": [0, *attributes["nodes_truenodeids"][1:]]}, "in no tree"),
        ({"nodes_truenodeids": [99, *attributes["nodes_truenodeids"][1:]]}, "no other's child"),
    ):
        with pytest.raises(DmlcError, match=why):
            imported(tmp_path, model("TreeEnsembleRegressor", {"x": MANY.shape}, ["y"], 3, n_targets=1, **attributes | change))


@pytest.mark.parametrize(
    ("operator", "attributes", "why"),
    [
        ("ZipMap", {"classlabels_int64s": [0, 1]}, "a list of dictionaries"),
        ("LabelEncoder", {"keys_int64s": [1], "values_strings": ["a"]}, "strings"),
        ("OneHotEncoder", {"cats_strings": ["a"]}, "strings"),
        ("LinearClassifier", {"coefficients": [1.0] * 4, "classlabels_strings": ["a", "b"]}, "strings"),
        ("SVMClassifier", {"classlabels_ints": [0, 1]}, "vote on classes"),
    ],
)
def test_strings_and_dictionaries_are_refused_by_name(tmp_path, operator, attributes, why):
    with pytest.raises(DmlcError) as caught:
        imported(tmp_path, model(operator, {"x": (6, 4)}, ["y"], 2, **attributes))
    assert operator in caught.value.message and why in "; ".join(caught.value.notes)
