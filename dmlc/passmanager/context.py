"""What a pass may ask for beside the module: weights and a place for its remarks.

What steers a pass stands in the module's text. The context only finds what the text refers to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dmlc.ir.core import Module, Op
from dmlc.ir.location import UNKNOWN, DmlcError, Remark
from dmlc.ir.weights import WeightStore


class Context:
    """Serves one run of a pipeline. `weights` hold what the module's `dense_resource` keys name; passes may add derived arrays."""

    def __init__(self, weights: WeightStore | None = None, options: dict[str, Any] | None = None):
        self.weights = weights if weights is not None else WeightStore()
        self.options: dict[str, Any] = dict(options or {})
        self.remarks: list[Remark] = []
        self._made: set[Remark] = set()
        self.pass_name = ""

    @classmethod
    def for_module(cls, module: Module, folder: Path | None = None) -> Context:
        """A context whose weights are those that the module's `dmlc.weights` names, relative to `folder` (the text file's own)."""
        where = module.attrs.get("dmlc.weights")
        if where is None:
            return cls()
        path = (folder or Path()) / where
        if not path.exists():
            notes = ("keep the text in the folder of its weights, or correct dmlc.weights in its first line",)
            raise DmlcError(f"there is no file {path}, where this text's weights should lie (dmlc.weights)", module.op.loc, notes)
        return cls(WeightStore.open(path))

    def remark(self, op: Op | None, text: str) -> None:
        """Tell the user something about `op`: declined, relaxed, replicated, and why. Equal remarks are kept once."""
        remark = Remark(self.pass_name, text, op.id if op is not None else "", op.loc if op is not None else UNKNOWN)
        if remark not in self._made:
            self._made.add(remark)
            self.remarks.append(remark)
