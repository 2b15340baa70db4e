"""Running the original ONNX file with onnxruntime, for comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dmlc.frontend.onnx.sizes import InputSpec
from dmlc.ir.location import DmlcError, Loc


class OnnxReference:
    """Callable on inputs by argument name; gives outputs by name, as numpy arrays."""

    def __init__(self, path: str | Path, inputs: Sequence[InputSpec]):
        self.path, self.inputs = str(path), list(inputs)

    def __call__(self, inputs: Mapping[str, Any], double: bool = False) -> dict[str, Any]:
        import numpy
        import onnxruntime

        if double:
            raise DmlcError("onnxruntime has no float64 form of this model", Loc(self.path))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(self.path, options, providers=["CPUExecutionProvider"])
        dtypes = {i.name: _NUMPY.get(i.type) for i in session.get_inputs()}
        feed = {s.name: numpy.asarray(inputs[s.argument]).astype(dtypes.get(s.name) or numpy.asarray(inputs[s.argument]).dtype) for s in self.inputs if s.name in dtypes}
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, feed), strict=True))


_NUMPY = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}
