"""Reading ONNX files into the IR."""

from dmlc.frontend.onnx.api import ImportResult, import_onnx
from dmlc.frontend.onnx.sizes import ChosenSize, InputSpec

__all__ = ["ChosenSize", "ImportResult", "InputSpec", "import_onnx"]
