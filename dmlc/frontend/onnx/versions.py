"""Small facts about the schemas that several groups of operators share."""

from __future__ import annotations

from collections.abc import Sequence

from dmlc.ir.location import DmlcError

REFINED = (21, 23, 24, 25)  # versions of operators that move data: each only admits more dtypes


def checked_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    if any(s < 0 for s in sizes):
        raise DmlcError(f"a shape has a negative size: {list(sizes)}")
    return tuple(sizes)
