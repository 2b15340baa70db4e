"""The original model under onnxruntime, to compare with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dmlc.frontend.onnx.sizes import InputSpec
from dmlc.ir.location import DmlcError, Loc


class OnnxReference:
    """Runs a model file on numpy inputs by the model's (or the arguments') names; the session is made at the first call.

    `threads` = 0 lets onnxruntime choose.
    """

    def __init__(self, path: str | os.PathLike[str], inputs: Sequence[InputSpec], threads: int = 0):
        self.path, self.inputs, self.threads = str(path), list(inputs), threads
        self._session: Any = None

    def __call__(self, inputs: Mapping[str, Any], double: bool = False) -> dict[str, Any]:
        """Outputs by name. Raises `DmlcError` when onnxruntime is missing, refuses the model, or is asked for float64, which it cannot give."""
        if double:
            raise DmlcError("onnxruntime computes the model in its own precision only", Loc(self.path))
        session = self._open()
        feed = {s.name: inputs[s.name] if s.name in inputs else inputs[s.argument] for s in self.inputs}
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, feed)))

    def _open(self) -> Any:
        if self._session is None:
            try:
                import onnxruntime
            except ImportError:
                raise DmlcError("onnxruntime is not installed, so there is nothing to compare with (pip install onnxruntime)", Loc(self.path)) from None
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.log_severity_level = self.threads, 4
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC  # further rewrites compute in less precision than the file says
            try:
                self._session = onnxruntime.InferenceSession(self.path, options, providers=["CPUExecutionProvider"])
            except Exception as e:  # onnxruntime has many kinds of errors and no common one
                raise DmlcError(f"onnxruntime refuses the model: {e}", Loc(self.path)) from None
        return self._session
