"""ai.onnx.ml on numbers: scalers, encoders, linear models and support vectors. Strings and dictionaries are refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx

from dmlc.frontend.onnx.emit import concrete, type_of
from dmlc.frontend.onnx.loader import source_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Known, Tensor
from dmlc.ir.location import DmlcError

ML = "ai.onnx.ml"
STRINGS = "labels that are strings"


def floats(n: Node, i: int = 0) -> Tensor:
    return n.cast(n[i], "f32")


def vector(values: Sequence[float], dtype: str = "f32") -> Known:
    """One number counts for all places."""
    return Known.of(values[0] if len(values) == 1 else np.asarray(values), dtype)


@op("Scaler", 1, domain=ML)
def scaler(n: Node) -> Tensor:
    """(x - offset) scale, one of each for all features or one a feature."""
    return n.pointwise("dmlc.mul", n.pointwise("dmlc.sub", floats(n), vector(n.attr("offset", (0.0,)))), vector(n.attr("scale", (1.0,))))


@op("Normalizer", 1, domain=ML)
def normalizer(n: Node) -> Tensor:
    """Each row over its largest value, the sum of its magnitudes or its length; a row of zeros stays one."""
    x, kind = floats(n), n.attr("norm", "MAX")
    dims = (n.rank(0) - 1,)
    if kind == "MAX":
        size = n.reduce("max", x, dims)
    elif kind == "L1":
        size = n.reduce("sum", n.emit("dmlc.abs", x), dims)
    elif kind == "L2":
        size = n.emit("dmlc.sqrt", n.reduce("sum", n.pointwise("dmlc.mul", x, x), dims))
    else:
        raise DmlcError(f"norm '{kind}' is not known")
    return n.pointwise("dmlc.div", x, n.select(n.pointwise("dmlc.eq", size, 0.0), 1.0, size))


@op("Binarizer", 1, domain=ML)
def binarizer(n: Node) -> Tensor:
    return n.cast(n.pointwise("dmlc.gt", n[0], n.attr("threshold", 0.0)), n.dtype(0))


@op("ArrayFeatureExtractor", 1, domain=ML)
def array_feature_extractor(n: Node) -> Tensor:
    """Places of the last dim; a vector counts as one row."""
    count = math.prod(n.shape(1))
    y = n.emit("dmlc.take", n[0], n.reshape(n.cast(n[1], "i64"), (count,)), dim=n.rank(0) - 1)
    return n.reshape(y, (1, count)) if n.rank(0) == 1 else y


@op("Imputer", 1, domain=ML)
def imputer(n: Node) -> Tensor:
    """A value, or NaN, replaced by one number or by one a feature."""
    real = type_of(n[0]).is_float
    replaced, by = (
        (n.attr("replaced_value_float", 0.0), n.attr("imputed_value_floats", ()))
        if real
        else (n.attr("replaced_value_int64", 0), n.attr("imputed_value_int64s", ()))
    )
    if not by:
        raise DmlcError("no value to put in place of a missing one")
    missing = n.emit("dmlc.isnan", n[0]) if real and math.isnan(replaced) else n.pointwise("dmlc.eq", n[0], replaced)
    return n.select(missing, vector(by, n.dtype(0)), n[0])


@op("FeatureVectorizer", 1, domain=ML)
def feature_vectorizer(n: Node) -> Tensor:
    """Features side by side, each input cut or filled with zeros to the number that is given for it."""
    parts = []
    for i, wanted in enumerate(n.attr("inputdimensions")):
        x = floats(n, i)
        x = n.reshape(x, (1, *concrete(x))) if len(concrete(x)) == 1 else x
        rows, have = concrete(x)[0], math.prod(concrete(x)[1:])
        x = n.slice(n.reshape(x, (rows, have)), 1, 0, min(wanted, have))
        parts.append(n.concat([x, n.full(0.0, "f32", (rows, wanted - have))], 1) if wanted > have else x)
    return n.concat(parts, 1)


# ---------------------------------------------------------------- encoders


def _listed(n: Node, what: str) -> tuple[np.ndarray, str]:
    """Keys or values of a label encoder and their dtype."""
    if n.attr(f"{what}_strings", None) is not None:
        raise Unsupported(STRINGS)
    tensor: onnx.TensorProto | None = n.attr(f"{what}_tensor", None)
    if tensor is not None:
        if tensor.data_type == onnx.TensorProto.STRING:
            raise Unsupported(STRINGS)
        source = source_of(tensor, n.importer.path)
        return source.load().reshape(-1), source.dtype
    real = n.attr(f"{what}_floats", None)
    return (np.asarray(real, np.float32), "f32") if real is not None else (np.asarray(n.attr(f"{what}_int64s"), np.int64), "i64")


def found(n: Node, x: Tensor, keys: np.ndarray, dtype: str) -> Tensor:
    """[..., keys]: which key each element is; NaN is NaN's."""
    table = Known.of(keys, dtype)
    wide = n.reshape(x, (*concrete(x), 1))
    same = n.pointwise("dmlc.eq", wide, table)
    if not np.isnan(keys.astype(np.float64)).any():
        return same
    return n.pointwise("dmlc.logical_or", same, n.pointwise("dmlc.logical_and", n.emit("dmlc.isnan", wide), Known.of(np.isnan(keys), "i1")))


@op("LabelEncoder", 1, domain=ML)
def label_encoder_of_strings(n: Node) -> Tensor:
    raise Unsupported(STRINGS)


@op("LabelEncoder", 2, 4, domain=ML)
def label_encoder(n: Node) -> Tensor:
    """The value beside the first key that an element equals, else the default."""
    (keys, dtype), (values, to) = _listed(n, "keys"), _listed(n, "values")
    if len(keys) != len(values) or not len(keys):
        raise DmlcError(f"{len(keys)} keys for {len(values)} values")
    tensor: onnx.TensorProto | None = n.attr("default_tensor", None)
    default = (
        source_of(tensor, n.importer.path).load().reshape(-1)[0]
        if tensor is not None
        else n.attr("default_float", -0.0)
        if to in ("f32", "f64")
        else n.attr("default_int64", -1)
    )
    same = found(n, n[0], keys, dtype)
    dim = n.rank(0)
    place = n.emit("dmlc.argmax", n.cast(same, "i32"), dim=dim, keepdim=False)
    value = n.emit("dmlc.take", Known.of(values, to), place, dim=0)
    return n.select(n.reduce("or", same, (dim,), False), value, Known.of(default, to))


@op("OneHotEncoder", 1, domain=ML)
def one_hot_encoder(n: Node) -> Tensor:
    """A new last dim with 1 at the element's category; other elements are zeros (which `zeros` = 0 forbids)."""
    if n.attr("cats_strings", None) is not None:
        raise Unsupported(STRINGS)
    return n.cast(found(n, n.cast(n[0], "i64"), np.asarray(n.attr("cats_int64s"), np.int64), "i64"), "f32")


# ---------------------------------------------------------------- linear models


def transformed(n: Node, scores: Tensor) -> Tensor:
    """Scores [n, targets] after `post_transform`."""
    kind = n.attr("post_transform", "NONE")
    if kind == "NONE":
        return scores
    if kind == "LOGISTIC":
        return n.emit("dmlc.sigmoid", scores)
    if kind == "SOFTMAX":
        return n.emit("dmlc.softmax", scores, dim=1)
    if kind == "SOFTMAX_ZERO":
        return _softmax_of_others(n, scores)
    if kind == "PROBIT":
        return _probit(n, scores)
    raise DmlcError(f"post_transform '{kind}' is not known")


def _softmax_of_others(n: Node, scores: Tensor) -> Tensor:
    """Scores of zero have no share; they stay 0."""
    high = n.reduce("max", scores, (1,))
    zero = n.pointwise("dmlc.le", n.emit("dmlc.abs", scores), 1e-7)
    shares = n.select(
        zero, n.pointwise("dmlc.mul", scores, n.emit("dmlc.exp", n.emit("dmlc.neg", high))), n.emit("dmlc.exp", n.pointwise("dmlc.sub", scores, high))
    )
    return n.pointwise("dmlc.div", shares, n.reduce("sum", n.select(zero, 0.0, shares), (1,)))


def _probit(n: Node, p: Tensor) -> Tensor:
    """The normal distribution's quantile, by Winitzki's approximation of the inverse error function (a = 0.147), as onnxruntime has it."""
    x = n.pointwise("dmlc.sub", n.pointwise("dmlc.mul", p, 2.0), 1.0)
    log = n.emit("dmlc.log", n.pointwise("dmlc.mul", n.pointwise("dmlc.sub", 1.0, x), n.pointwise("dmlc.add", x, 1.0)))
    half = n.pointwise("dmlc.add", n.pointwise("dmlc.mul", log, 0.5), 2 / (math.pi * 0.147))
    root = n.emit("dmlc.sqrt", n.pointwise("dmlc.sub", n.pointwise("dmlc.mul", half, half), n.pointwise("dmlc.mul", log, 1 / 0.147)))
    size = n.emit("dmlc.sqrt", n.pointwise("dmlc.sub", root, half))
    return n.pointwise("dmlc.mul", n.select(n.pointwise("dmlc.lt", x, 0.0), n.emit("dmlc.neg", size), size), math.sqrt(2))


def _linear(n: Node, rows: int) -> Tensor:
    """x [n, f] times coefficients [rows, f] and intercepts."""
    x = n.reshape(floats(n), (1, *n.shape(0))) if n.rank(0) == 1 else floats(n)
    coefficients, intercepts = n.attr("coefficients"), n.attr("intercepts", ())
    features = concrete(x)[1]
    if len(coefficients) != rows * features or len(intercepts) not in (0, rows):
        raise DmlcError(f"{len(coefficients)} coefficients and {len(intercepts)} intercepts for {rows} rows of {features} features")
    y = n.emit("dmlc.linear", x, Known.of(np.asarray(coefficients).reshape(rows, features), "f32"))
    return n.pointwise("dmlc.add", y, Known.of(np.asarray(intercepts), "f32")) if intercepts else y


@op("LinearRegressor", 1, domain=ML)
def linear_regressor(n: Node) -> Tensor:
    return transformed(n, _linear(n, n.attr("targets", 1)))


def labels_of(n: Node, name: str) -> np.ndarray:
    if n.attr("classlabels_strings", None):
        raise Unsupported(STRINGS)
    return np.asarray(n.attr(name), np.int64)


def chosen(n: Node, scores: Tensor, labels: np.ndarray) -> Tensor:
    """The label of each row's highest score."""
    return n.emit("dmlc.take", Known.of(labels), n.emit("dmlc.argmax", scores, dim=1, keepdim=False), dim=0)


def either(n: Node, score: Tensor, threshold: float, labels: Sequence[int]) -> Tensor:
    """One of two labels by a score [n, 1]."""
    above = n.pointwise("dmlc.gt", n.reshape(score, concrete(score)[:1]), threshold)
    return n.select(above, n.full(labels[1], "i64"), n.full(labels[0], "i64"))


@op("LinearClassifier", 1, domain=ML)
def linear_classifier(n: Node) -> list[Tensor]:
    """Labels [n] and scores [n, classes]. One row of coefficients for two classes scores the second of them."""
    labels = labels_of(n, "classlabels_ints")
    rows = max(1, len(n.attr("intercepts", ())) or len(n.attr("coefficients")) // n.shape(0)[-1])
    scores = _linear(n, rows)
    if rows > 1 or len(labels) != 2:
        return [chosen(n, scores, labels), transformed(n, scores)]
    kind = n.attr("post_transform", "NONE")
    if kind not in ("NONE", "LOGISTIC"):
        raise Unsupported(f"{kind} of one score for two classes")
    other = n.pointwise("dmlc.sub", 1.0, scores) if kind == "NONE" else n.emit("dmlc.neg", scores)
    return [either(n, scores, 0.0, labels.tolist()), transformed(n, n.concat([other, scores], 1))]


# ---------------------------------------------------------------- support vectors


def _kernels(n: Node, x: Tensor, vectors: np.ndarray) -> Tensor:
    """[n, vectors]: the kernel between each row and each support vector."""
    kind = n.attr("kernel_type", "LINEAR")
    gamma, start, degree = (*n.attr("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
    dots = n.emit("dmlc.linear", x, Known.of(vectors, "f32"))
    if kind == "LINEAR":
        return dots
    if kind == "RBF":
        own = n.reduce("sum", n.pointwise("dmlc.mul", x, x), (1,))
        apart = n.pointwise("dmlc.sub", n.pointwise("dmlc.add", own, Known.of((vectors**2).sum(1), "f32")), n.pointwise("dmlc.mul", dots, 2.0))
        return n.emit("dmlc.exp", n.pointwise("dmlc.mul", apart, -gamma))
    inner = n.pointwise("dmlc.add", n.pointwise("dmlc.mul", dots, gamma), start)
    if kind == "SIGMOID":
        return n.emit("dmlc.tanh", inner)
    if kind == "POLY":
        return n.pointwise("dmlc.pow", inner, degree)
    raise DmlcError(f"kernel_type '{kind}' is not known")


@op("SVMRegressor", 1, domain=ML)
def svm_regressor(n: Node) -> Tensor:
    """The kernels with all support vectors, weighted; without support vectors a linear model. `one_class`: 1 inside, -1 outside."""
    x, count = floats(n), n.attr("n_supports", 0)
    weights = np.asarray(n.attr("coefficients"))
    terms = _kernels(n, x, np.asarray(n.attr("support_vectors")).reshape(count, -1)) if count else x
    y = n.pointwise("dmlc.add", n.emit("dmlc.linear", terms, Known.of(weights.reshape(1, -1), "f32")), n.attr("rho", (0.0,))[0])
    if n.attr("one_class", 0):
        return n.select(n.pointwise("dmlc.gt", y, 0.0), n.full(1.0, "f32"), n.full(-1.0, "f32"))
    return transformed(n, y)


# ---------------------------------------------------------------- what is no tensor program


def _refused(why: str) -> Callable[[Node], Tensor]:
    def handler(n: Node) -> Tensor:
        raise Unsupported(why)

    return handler


for _name, _why in {
    "ZipMap": "its result is a list of dictionaries; take the scores that it reads as the model's output",
    "DictVectorizer": "it reads dictionaries",
    "CastMap": "it reads dictionaries",
    "CategoryMapper": "it maps strings",
    "SVMClassifier": "support vectors that vote on classes",
}.items():
    op(_name, 1, domain=ML)(_refused(_why))
