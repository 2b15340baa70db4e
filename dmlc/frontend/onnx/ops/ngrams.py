"""Counting n-grams (TfIdfVectorizer) of integers."""

from __future__ import annotations

import numpy as np

from dmlc.frontend.onnx.emit import concrete, type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Known, Tensor
from dmlc.ir.location import DmlcError


@op("TfIdfVectorizer", 9)
def tf_idf_vectorizer(n: Node) -> Tensor:
    """How often each n-gram of the pool occurs in a row, its items up to `max_skip_count` apart; then weighted."""
    if "pool_int64s" not in n.attributes:
        raise Unsupported("n-grams of strings")
    columns, mode = n.attr("ngram_indexes"), n.attr("mode")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise DmlcError(f"mode '{mode}' is not known")
    width = max(columns) + 1
    x = n.reshape(n.cast(n[0], "i64"), (n.shape(0)[0] if n.rank(0) == 2 else 1, n.shape(0)[-1]))
    count: Tensor = n.full(0.0, "f32", (concrete(x)[0], width))
    for size, grams in _pool(n, columns).items():
        for apart in range(1, n.attr("max_skip_count") + 2 if size > 1 else 2):
            found = _occurrences(n, x, list(grams), apart)
            if found is not None:
                place = np.zeros((len(grams), width))
                place[np.arange(len(grams)), list(grams.values())] = 1
                count = n.pointwise("dmlc.add", count, n.emit("dmlc.matmul", found, Known.of(place, "f32")))
    count = n.cast(n.pointwise("dmlc.gt", count, 0), "f32") if mode == "IDF" else count
    weights = n.attr("weights", ())
    if mode != "TF" and weights:
        if tuple(columns) != tuple(range(len(columns))):
            raise Unsupported("weights of n-grams that are not counted in the order of the pool")
        count = n.pointwise("dmlc.mul", count, Known.of(np.array(weights[:width]), "f32"))
    return count if n.rank(0) == 2 else n.reshape(count, (width,))


def _pool(n: Node, columns: tuple[int, ...]) -> dict[int, dict[tuple[int, ...], int]]:
    """By length, the n-grams wanted and the column each is counted in."""
    pool, starts = n.attr("pool_int64s"), n.attr("ngram_counts")
    low, high = n.attr("min_gram_length"), n.attr("max_gram_length")
    found: dict[int, dict[tuple[int, ...], int]] = {}
    number = 0
    for size, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)]), 1):
        for at in range(start, end - size + 1, size):
            if low <= size <= high:
                found.setdefault(size, {})[tuple(pool[at : at + size])] = columns[number]
            number += 1
    return found


def _occurrences(n: Node, x: Tensor, grams: list[tuple[int, ...]], apart: int) -> Tensor | None:
    """[rows, n-grams]: how often each occurs with its items so far apart; None where a row is too short."""
    rows, length = concrete(x)
    size = len(grams[0])
    starts = length - apart * (size - 1)
    if starts < 1:
        return None
    hits: Tensor | None = None
    for k in range(size):
        items = n.reshape(n.slice(x, 1, apart * k, apart * k + starts), (rows, starts, 1))
        same = n.pointwise("dmlc.eq", items, Known.of(np.array([g[k] for g in grams])))
        hits = same if hits is None else n.pointwise("dmlc.logical_and", hits, same)
    assert hits is not None and type_of(hits).dtype == "i1"
    return n.reduce("sum", n.cast(hits, "f32"), (1,), False)
