"""Ensembles of decision trees as tensor programs: all trees of all rows go down one level at a time, leaves stay where they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from dmlc.frontend.onnx.emit import concrete
from dmlc.frontend.onnx.loader import source_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.ml import ML, chosen, either, labels_of, transformed
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Known, Tensor
from dmlc.ir.location import DmlcError

COMPARISONS = {"BRANCH_LEQ": "le", "BRANCH_LT": "lt", "BRANCH_GTE": "ge", "BRANCH_GT": "gt", "BRANCH_EQ": "eq", "BRANCH_NEQ": "ne"}
MODES = (*COMPARISONS, "BRANCH_MEMBER")  # as TreeEnsemble numbers them
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass
class Trees:
    """Nodes of all trees in one list. A leaf's two children are the leaf itself.

    `weights` [nodes, targets]: what a leaf adds to each target; NaN where it says nothing about one. `dtype`: of thresholds and weights.
    """

    roots: np.ndarray
    modes: list[str]
    features: np.ndarray
    values: np.ndarray
    true: np.ndarray
    false: np.ndarray
    missing: np.ndarray  # which way NaN goes: 1 true
    weights: np.ndarray
    dtype: str
    whole: bool = True  # whether every node must be in a tree

    @property
    def depth(self) -> int:
        """Levels below the roots. Raises `DmlcError` for children that lead back or out of the list."""
        count = len(self.modes)
        if min(self.true.min(), self.false.min(), self.roots.min()) < 0 or max(self.true.max(), self.false.max(), self.roots.max()) >= count:
            raise DmlcError("a child is no node of its tree")
        reached = set(self.roots.tolist())
        front, levels, branches = np.unique(self.roots), 0, np.array([mode != "LEAF" for mode in self.modes])
        while True:
            inner = front[branches[front]]
            if not inner.size and len(reached) < count and self.whole:
                raise DmlcError("some nodes are in no tree that has a root")
            if not inner.size:
                return levels
            front, levels = np.unique(np.concatenate((self.true[inner], self.false[inner]))), levels + 1
            reached.update(front.tolist())
            if levels > count:
                raise DmlcError("a tree's nodes lead back to themselves")


def _numbers(n: Node, name: str) -> tuple[np.ndarray, str]:
    """A list attribute, or the tensor that stands in its place."""
    tensor: onnx.TensorProto | None = n.attr(f"{name}_as_tensor", None)
    if tensor is not None:
        source = source_of(tensor, n.importer.path)
        return source.load().reshape(-1), source.dtype
    return np.asarray(n.attr(name, ()), np.float32), "f32"


def _by_ids(n: Node, kind: str, targets: int) -> Trees:
    """The form with tree and node ids; `kind` names the lists of weights (target or class)."""
    ids = list(zip(n.attr("nodes_treeids"), n.attr("nodes_nodeids")))
    place = {key: i for i, key in enumerate(ids)}
    trees = [tree for tree, _ in ids]
    modes = [m if isinstance(m, str) else m.decode() for m in n.attr("nodes_modes")]
    (values, dtype), (given, _) = _numbers(n, "nodes_values"), _numbers(n, f"{kind}_weights")
    leaf = np.array([m == "LEAF" for m in modes])
    own = np.arange(len(ids))
    true, false = (np.where(leaf, own, [place.get(key, -1) for key in zip(trees, n.attr(f"nodes_{which}nodeids"))]) for which in ("true", "false"))
    weights = np.full((len(ids), targets), np.nan, given.dtype)
    for tree, node, target, weight in zip(n.attr(f"{kind}_treeids"), n.attr(f"{kind}_nodeids"), n.attr(f"{kind}_ids"), given):
        row = weights[place[tree, node]]
        row[target] = weight if np.isnan(row[target]) else row[target] + weight
    children = set(true[~leaf]) | set(false[~leaf])
    missing = np.asarray(n.attr("nodes_missing_value_tracks_true", ()) or (0,) * len(ids))
    roots = np.array([i for i in own if i not in children])
    if sorted(trees[i] for i in roots) != sorted(set(trees)):
        raise DmlcError("each tree has one node that is no other's child, these have not")
    return Trees(roots, modes, np.asarray(n.attr("nodes_featureids")), values, true, false, missing, weights, dtype)


def _compared(n: Node, trees: Trees, at: Tensor, x: Tensor) -> Tensor:
    """[n, trees]: which go to the true child."""
    inner = [i for i, m in enumerate(trees.modes) if m != "LEAF"]
    unknown = {trees.modes[i] for i in inner} - set(COMPARISONS)
    if unknown:
        raise Unsupported(f"nodes of kind {', '.join(sorted(unknown))}")
    seen = n.emit("dmlc.take_along", x, _read(n, trees.features, "i64", at), dim=1)
    threshold = _read(n, trees.values, trees.dtype, at)
    result: Tensor | None = None
    for mode in dict.fromkeys(trees.modes[i] for i in inner):
        holds = n.pointwise(f"dmlc.{COMPARISONS[mode]}", seen, threshold)
        result = holds if result is None else n.select(_read(n, np.array([m == mode for m in trees.modes]), "i1", at), holds, result)
    assert result is not None
    if trees.missing.any():
        result = n.pointwise("dmlc.logical_or", result, n.pointwise("dmlc.logical_and", n.emit("dmlc.isnan", seen), _read(n, trees.missing != 0, "i1", at)))
    return result


def _read(n: Node, table: np.ndarray, dtype: str, at: Tensor) -> Tensor:
    return n.emit("dmlc.take", Known.of(table, dtype), at, dim=0)


def _leaf_weights(n: Node, trees: Trees) -> Tensor:
    """[n, trees, targets]"""
    x = n.cast(n.reshape(n[0], (1, *n.shape(0))) if n.rank(0) == 1 else n[0], trees.dtype)
    at = n.broadcast(Known.of(trees.roots[None]), (concrete(x)[0], len(trees.roots)))
    for _ in range(trees.depth):
        at = n.select(_compared(n, trees, at, x), _read(n, trees.true, "i64", at), _read(n, trees.false, "i64", at))
    return _read(n, trees.weights, trees.dtype, at)


def _aggregated(n: Node, trees: Trees, kind: str) -> Tensor:
    """[n, targets]; MIN and MAX are over the trees that say something about a target, and 0 where none does."""
    if kind in ("SUM", "AVERAGE"):
        trees.weights = np.nan_to_num(trees.weights)
        total = n.reduce("sum", _leaf_weights(n, trees), (1,), False)
        return total if kind == "SUM" else n.pointwise("dmlc.mul", total, 1 / len(trees.roots))
    if kind not in AGGREGATES:
        raise DmlcError(f"aggregate_function '{kind}' is not known")
    silent = -np.inf if kind == "MAX" else np.inf
    trees.weights = np.where(np.isnan(trees.weights), silent, trees.weights)
    best = n.reduce(kind.lower(), _leaf_weights(n, trees), (1,), False)
    return n.select(n.pointwise("dmlc.eq", best, float(silent)), 0.0, best)


def _told(n: Node, trees: Trees) -> Tensor | None:
    """[n, targets]: whether a tree says anything about it; None if every leaf speaks of all."""
    leaves = np.array([mode == "LEAF" for mode in trees.modes])
    silent = np.isnan(trees.weights)
    if not silent[leaves].any():
        return None
    told = replace(trees, weights=np.where(silent, 0, 1).astype(trees.weights.dtype))
    return n.pointwise("dmlc.gt", n.reduce("max", _leaf_weights(n, told), (1,), False), 0.0)


def _with_base(n: Node, scores: Tensor, dtype: str) -> Tensor:
    base, _ = _numbers(n, "base_values")
    return n.pointwise("dmlc.add", scores, Known.of(base, dtype)) if base.size else scores


@op("TreeEnsembleRegressor", 1, 3, 5, domain=ML)
def tree_ensemble_regressor(n: Node) -> Tensor:
    trees = _by_ids(n, "target", n.attr("n_targets", 1))
    scores = _with_base(n, _aggregated(n, trees, n.attr("aggregate_function", "SUM")), trees.dtype)
    return n.cast(transformed(n, scores), "f32")


@op("TreeEnsembleClassifier", 1, 3, 5, domain=ML)
def tree_ensemble_classifier(n: Node) -> list[Tensor]:
    """Labels [n] and scores [n, classes]. Of two classes the trees may score one; the other is what remains, or its negative."""
    labels = labels_of(n, "classlabels_int64s")
    trees = _by_ids(n, "class", len(labels))
    positive = bool((np.nan_to_num(trees.weights) >= 0).all())
    scored = sorted(set(n.attr("class_ids")))
    if len(labels) != 2 or len(scored) != 1:
        told = None if positive or n.attr("base_values", ()) or n.attr("base_values_as_tensor", None) else _told(n, trees)
        scores = _with_base(n, _aggregated(n, trees, "SUM"), trees.dtype)
        return [chosen(n, scores if told is None else n.select(told, scores, float("-inf")), labels), n.cast(transformed(n, scores), "f32")]
    trees.weights = trees.weights[:, scored[0] : scored[0] + 1]
    base, _ = _numbers(n, "base_values")
    score = _aggregated(n, trees, "SUM")
    if base.size:
        score = n.pointwise("dmlc.add", score, float(base[scored[0] if base.size > 1 else 0]))
    kind = n.attr("post_transform", "NONE")
    if kind not in ("NONE", "LOGISTIC"):
        raise Unsupported(f"{kind} of one score for two classes")
    other = n.pointwise("dmlc.sub", 1.0, score) if positive and kind == "NONE" else n.emit("dmlc.neg", score)
    return [either(n, score, 0.5 if positive else 0.0, labels.tolist()), n.cast(transformed(n, n.concat([other, score], 1)), "f32")]


@op("TreeEnsemble", 5, domain=ML)
def tree_ensemble(n: Node) -> Tensor:
    """The form with nodes and leaves in two lists; children are places in one or the other."""

    def listed(name: str, default: Any = ()) -> np.ndarray:
        value = n.attr(name, default) if default != () else n.attr(name, None)
        return np.asarray(source_of(value, n.importer.path).load() if isinstance(value, onnx.TensorProto) else value if value is not None else ())

    inner, leaves = len(listed("nodes_featureids")), len(listed("leaf_targetids"))
    own = np.arange(inner, inner + leaves)
    true, false = (np.concatenate((listed(f"nodes_{w}nodeids") + inner * (listed(f"nodes_{w}leafs") != 0), own)) for w in ("true", "false"))
    dtype = source_of(n.attr("nodes_splits"), n.importer.path).dtype
    weights = np.full((inner + leaves, n.attr("n_targets", 1)), np.nan)
    weights[own, listed("leaf_targetids")] = listed("leaf_weights")
    filler = np.zeros(leaves, np.int64)
    missing = np.concatenate(
        (listed("nodes_missing_value_tracks_true") if n.attr("nodes_missing_value_tracks_true", None) else np.zeros(inner, np.int64), filler)
    )
    modes = [MODES[int(m)] for m in listed("nodes_modes")] + ["LEAF"] * leaves
    features, values = np.concatenate((listed("nodes_featureids"), filler)), np.concatenate((listed("nodes_splits"), filler))
    trees = Trees(np.asarray(n.attr("tree_roots")), modes, features, values, true.astype(np.int64), false.astype(np.int64), missing, weights, dtype, whole=False)
    scores = _aggregated(n, trees, AGGREGATES[n.attr("aggregate_function", 1)])
    return n.cast(_transformed_by_number(n, scores), dtype)


def _transformed_by_number(n: Node, scores: Tensor) -> Tensor:
    number = n.attributes.pop("post_transform", None)
    if number is not None:
        n.attributes["post_transform"] = onnx.helper.make_attribute("post_transform", TRANSFORMS[number.i])
    return transformed(n, scores)
