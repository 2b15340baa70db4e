"""Data types and constant tensors of ONNX as numpy arrays.

Arrays keep the weight store's form: bf16 as uint16 bits, the 8-bit floats as uint8 bits, i1 as bool; the dtype's name travels beside them.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
import torch

from dmlc.frontend.onnx.open_values import of_sizes
from dmlc.interpret.evaluate import DTYPES
from dmlc.ir.dims import Dim
from dmlc.ir.location import DmlcError

T = onnx.TensorProto

ELEMENT_TYPES = {
    T.FLOAT: "f32", T.DOUBLE: "f64", T.FLOAT16: "f16", T.BFLOAT16: "bf16", T.FLOAT8E4M3FN: "f8E4M3FN", T.FLOAT8E5M2: "f8E5M2",
    T.INT64: "i64", T.INT32: "i32", T.INT16: "i16", T.INT8: "i8", T.UINT8: "ui8", T.BOOL: "i1",
}  # fmt: skip

# Types the IR lacks, and the type of the IR that holds each of their values exactly (see carried.py); for uint64, their bits.
CARRIERS = {
    T.UINT16: "i32", T.UINT32: "i64", T.UINT64: "i64", T.UINT4: "ui8", T.INT4: "i8", T.UINT2: "ui8", T.INT2: "i8",
    T.FLOAT8E4M3FNUZ: "f16", T.FLOAT8E5M2FNUZ: "f16", T.FLOAT4E2M1: "f16", T.FLOAT8E8M0: "f32",
}  # fmt: skip
INTEGER_CARRIED = {T.UINT16: (0, 65535), T.UINT32: (0, 4294967295), T.UINT4: (0, 15), T.INT4: (-8, 7), T.UINT2: (0, 3), T.INT2: (-2, 1)}  # smallest, largest
CARRIED_BITS = {T.UINT64: 64, T.UINT16: 16, T.UINT32: 32, T.UINT4: 4, T.INT4: 4, T.UINT2: 2, T.INT2: 2, T.FLOAT8E4M3FNUZ: 8, T.FLOAT8E5M2FNUZ: 8, T.FLOAT4E2M1: 4, T.FLOAT8E8M0: 8}

NUMPY = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "f8E4M3FN": np.uint8, "f8E5M2": np.uint8,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "ui8": np.uint8, "i1": np.bool_,
}  # fmt: skip

_BITS = {"bf16": torch.uint16, "f8E4M3FN": torch.uint8, "f8E5M2": torch.uint8}

_FIELDS = {
    T.FLOAT: "float_data", T.DOUBLE: "double_data", T.INT64: "int64_data", T.INT32: "int32_data", T.INT16: "int32_data", T.INT8: "int32_data",
    T.UINT8: "int32_data", T.BOOL: "int32_data", T.FLOAT16: "int32_data", T.BFLOAT16: "int32_data", T.FLOAT8E4M3FN: "int32_data", T.FLOAT8E5M2: "int32_data",
}  # fmt: skip

INTEGER_LIMITS = {name: (np.iinfo(NUMPY[name]).min, np.iinfo(NUMPY[name]).max) for name in ("i64", "i32", "i16", "i8", "ui8")}


def element_name(element_type: int) -> str:
    """ONNX's own name of an element type, for messages."""
    return T.DataType.Name(element_type).lower() if element_type in T.DataType.values() else f"element type {element_type}"


def dtype_of_element(element_type: int, what: str) -> str:
    """The IR's name of an ONNX element type. Raises `DmlcError` naming `what` for types the IR does not have."""
    if element_type not in ELEMENT_TYPES:
        raise DmlcError(f"{what} has element type {element_name(element_type)}, which is not supported")
    return ELEMENT_TYPES[element_type]


def dtype_or_carrier(element_type: int, what: str) -> str:
    """As `dtype_of_element`, with the carrier's dtype for a type that is carried. The caller keeps the element type."""
    return CARRIERS.get(element_type) or dtype_of_element(element_type, what)


def shape_of_proto(tensor: onnx.TensorProto) -> tuple[int, ...]:
    if any(n < 0 for n in tensor.dims):
        raise DmlcError(f"tensor '{tensor.name}' has a negative size: {list(tensor.dims)}")
    return tuple(tensor.dims)


def array_of(tensor: onnx.TensorProto) -> np.ndarray:
    """The values of a tensor that lie inside the file, in the weight store's form. Raises `DmlcError` when their number does not fit the shape."""
    dtype, shape = dtype_or_carrier(tensor.data_type, f"tensor '{tensor.name}'"), shape_of_proto(tensor)
    if tensor.data_type in CARRIERS:
        return carried_array(tensor, dtype)
    numel, numpy_type = math.prod(shape), np.dtype(NUMPY[dtype])
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data
        if len(raw) != numel * numpy_type.itemsize:
            raise DmlcError(f"tensor '{tensor.name}' of shape {list(shape)} and type {dtype} needs {numel * numpy_type.itemsize} bytes but the file holds {len(raw)}")
        return np.frombuffer(raw, numpy_type.newbyteorder("<")).astype(numpy_type, copy=False).reshape(shape)
    values = getattr(tensor, _FIELDS[tensor.data_type])
    if len(values) != numel:
        raise DmlcError(f"tensor '{tensor.name}' of shape {list(shape)} needs {numel} values but the file holds {len(values)}")
    wide = np.array(values, dtype=np.int64) if _FIELDS[tensor.data_type] == "int32_data" else np.array(values, dtype=numpy_type)
    if dtype == "f16":
        return wide.astype(np.uint16).view(np.float16).reshape(shape)
    return wide.astype(numpy_type).reshape(shape)


def carried_array(tensor: onnx.TensorProto, dtype: str) -> np.ndarray:
    """The values of a tensor of a carried type, in their carrier."""
    needed = (math.prod(tensor.dims) * CARRIED_BITS[tensor.data_type] + 7) // 8
    if tensor.HasField("raw_data") and len(tensor.raw_data) != needed:
        raise DmlcError(f"tensor '{tensor.name}' of shape {list(tensor.dims)} needs {needed} bytes but the file holds {len(tensor.raw_data)}")
    try:
        return onnx.numpy_helper.to_array(tensor).astype(NUMPY[dtype])
    except ValueError as e:
        raise DmlcError(f"tensor '{tensor.name}' of shape {list(tensor.dims)} does not fit its values: {e}") from None


def to_torch(array: np.ndarray, dtype: str) -> torch.Tensor:
    """A torch tensor with the values of an array in the store's form."""
    tensor = torch.from_numpy(np.array(array, dtype=NUMPY[dtype], order="C", copy=True))
    return tensor.view(DTYPES[dtype]) if dtype in _BITS else tensor


def from_torch(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    tensor = tensor.detach().contiguous()
    return (tensor.view(_BITS[dtype]) if dtype in _BITS else tensor).numpy()


def python_value(array: np.ndarray, dtype: str) -> bool | int | float:
    """A single element as a Python number; f32 as the shortest decimal that rounds to it (0.1, not 0.10000000149…)."""
    first = array.reshape(-1)[0]
    return shortest(first) if dtype == "f32" else to_torch(np.asarray(first), dtype).item()


_LARGEST = float(np.finfo(np.float32).max)
_FORMULAS = {np.float32(x): x for x in (math.sqrt(2 / math.pi), math.sqrt(2), math.sqrt(0.5))}  # in GELU, in both its forms


def shortest(number: float) -> float:
    """The shortest decimal that rounds to the same f32, or the formula's number that does: exporters wrote such a number, and PyTorch's
    programs hold it."""
    exact = np.float32(number)
    if exact in _FORMULAS:
        return _FORMULAS[exact]
    short = float(str(exact))
    return short if abs(short) <= _LARGEST else float(exact)


def array_from(values: object, dtype: str) -> np.ndarray:
    """Python numbers as an array in the store's form; integers out of range are refused. Open sizes make an array of objects."""
    if isinstance(values, Dim) or (isinstance(values, (list, tuple)) and any(isinstance(n, Dim) for n in values)):
        return of_sizes(values)
    wide = np.asarray(values)
    if dtype in INTEGER_LIMITS and wide.size:
        low, high = INTEGER_LIMITS[dtype]
        fits = low <= wide.min() and (wide.max() < float(high + 1) if wide.dtype.kind == "f" else wide.max() <= high)
        if not fits:  # nor does NaN
            raise DmlcError(f"a constant does not fit {dtype}: {wide.min()} … {wide.max()}")
    if dtype in _BITS:
        return from_torch(torch.tensor(wide.astype(np.float64)).to(DTYPES[dtype]), dtype)
    return wide.astype(NUMPY[dtype])
