"""Over what batch norms take their statistics in training: the request's `batch_norm` becomes an attribute of each of them."""

from __future__ import annotations

from dmlc.ir.core import Module
from dmlc.passes._step import request


def set_statistics(module: Module) -> None:
    """`batch_norm` of `dmlc.train` is "global" (a microbatch over all ranks) or "rank" (each rank's part of it)."""
    chosen = request(module, "batch_norm", "global")
    for op in module.main.op.walk():
        if op.name == "dmlc.batch_norm_train" and chosen != "global":
            op.attrs.setdefault("statistics", chosen)
