"""Reading an ONNX file: the protobuf, its sanity, and where initializers' bytes lie.

Rule for external data: the location is a relative path without `..`; following symbolic links, the file must lie inside the folder
that the given model path stands in, or inside the folder of the file that path finally leads to. So a cache whose model and data are both
links into one folder of blobs works, and a link out of the model's folder does not. Offsets and lengths are checked against the
file's size before it is opened. Data is memory-mapped, never copied. A hard link cannot be told from a file and is accepted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from dmlc.frontend.onnx.graph import subgraphs
from dmlc.frontend.onnx.tensors import CARRIED_BITS, CARRIERS, NUMPY, array_of, carried_array, dtype_or_carrier, shape_of_proto
from dmlc.ir.location import DmlcError, Loc

PROTOBUF_LIMIT = (1 << 31) - 1  # bytes of one message
NEWEST_OPSET = onnx.defs.onnx_opset_version()


@dataclass(frozen=True)
class Source:
    """A tensor of the file: shape, dtype, and a function that reads it (a memory map for external data)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def load_model(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Parse a model without its external data. Raises `DmlcError` for what is missing, damaged or not ONNX."""
    path = Path(path)
    loc = Loc(str(path))
    if not path.exists():
        raise DmlcError("no such file", loc)
    if not path.is_file():
        raise DmlcError("not a file", loc)
    try:
        data = path.read_bytes()
    except OSError as e:
        raise DmlcError(f"cannot be read: {e.strerror}", loc) from None
    if not data:
        raise DmlcError("the file is empty", loc)
    if data.startswith(b"version https://git-lfs"):
        raise DmlcError("the file is a Git LFS pointer, not the model; fetch it with `git lfs pull`", loc)
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise DmlcError("not an ONNX model: the file is damaged, cut short or of another format", loc) from None
    _check_header(model, loc)
    _check_text(model.graph, loc)
    for function in model.functions:
        _check_text(function, loc)
    return model


def whole_file(path: str | os.PathLike[str]) -> bytes | None:
    """The model as one file, its external data inside it; None where that passes protobuf's limit of 2 GB."""
    path = Path(path)
    model = load_model(path)
    ranges = [(t, _range(t, shape_of_proto(t), path)) for t in _tensors(model.graph) if t.data_location == onnx.TensorProto.EXTERNAL]
    if model.ByteSize() + sum(r.size for _, r in ranges) > PROTOBUF_LIMIT:
        return None
    for tensor, where in ranges:
        tensor.raw_data = where.bytes()
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT
    return model.SerializeToString()


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every tensor with values, those of subgraphs too."""
    yield from graph.initializer
    for node in graph.node:
        yield from (a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR)
        for inner in subgraphs(node):
            yield from _tensors(inner)


def _check_header(model: onnx.ModelProto, loc: Loc) -> None:
    if not model.HasField("graph") or (not model.graph.node and not model.graph.output):
        raise DmlcError("not an ONNX model: it has no graph", loc)
    if not model.opset_import:
        raise DmlcError("the model does not say its operator set (opset_import)", loc)
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and not 1 <= entry.version <= NEWEST_OPSET:
            raise DmlcError(f"the model uses operator set {entry.version}; known are 1 to {NEWEST_OPSET}", loc)
    if not model.graph.output:
        raise DmlcError("the graph has no outputs", loc)


def _check_text(graph: onnx.GraphProto | onnx.FunctionProto, loc: Loc) -> None:
    """Names must be UTF-8: protobuf hands others out as bytes, which no later step expects."""
    texts = [t for n in graph.node for t in (n.name, n.op_type, n.domain, *n.input, *n.output, *(a.name for a in n.attribute))]
    if isinstance(graph, onnx.GraphProto):
        values = [*graph.input, *graph.output]
        texts += [t.name for t in (*graph.initializer, *values)] + [d.dim_param for v in values for d in v.type.tensor_type.shape.dim]
    else:
        texts += [graph.name, graph.domain, *graph.input, *graph.output]
    broken = next((t for t in texts if not isinstance(t, str)), None)
    if broken is not None:
        raise DmlcError(f"the model is damaged: the name {broken!r} is not valid text", loc)
    for inner in (g for n in graph.node for g in subgraphs(n)):
        _check_text(inner, loc)


def source_of(tensor: onnx.TensorProto, model_path: Path) -> Source:
    """Where a tensor's values come from, checked but not read."""
    shape, dtype = shape_of_proto(tensor), dtype_or_carrier(tensor.data_type, f"tensor '{tensor.name}'")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return Source(tensor.name, shape, dtype, _external(tensor, shape, dtype, model_path))
    return Source(tensor.name, shape, dtype, lambda: array_of(tensor))


@dataclass(frozen=True)
class _Range:
    """Bytes of a file."""

    place: Path
    offset: int
    size: int

    def bytes(self) -> bytes:
        return np.memmap(self.place, np.uint8, "r", self.offset, (self.size,)).tobytes() if self.size else b""


def _range(tensor: onnx.TensorProto, shape: tuple[int, ...], model_path: Path) -> _Range:
    """Where external data lies; checked against the file's size."""
    entries = {e.key: e.value for e in tensor.external_data}
    place = _inside(tensor.name, entries.get("location", ""), model_path)
    dtype = dtype_or_carrier(tensor.data_type, f"tensor '{tensor.name}'")
    bits = CARRIED_BITS.get(tensor.data_type, 8 * np.dtype(NUMPY[dtype]).itemsize)
    needed = (math.prod(shape) * bits + 7) // 8
    offset, length = _number(tensor.name, entries, "offset", 0), _number(tensor.name, entries, "length", needed)
    if length != needed:
        raise DmlcError(f"tensor '{tensor.name}' needs {needed} bytes but its external data '{entries['location']}' has length {length}")
    size = place.stat().st_size
    if offset + length > size:
        raise DmlcError(f"tensor '{tensor.name}': bytes {offset} to {offset + length} of '{entries['location']}' are wanted, but the file has {size}")
    return _Range(place, offset, needed)


def _external(tensor: onnx.TensorProto, shape: tuple[int, ...], dtype: str, model_path: Path) -> Callable[[], np.ndarray]:
    where = _range(tensor, shape, model_path)
    if where.size == 0:
        return lambda: np.zeros(shape, NUMPY[dtype])
    if tensor.data_type in CARRIERS:
        return lambda: carried_array(_inside_the_file(tensor, where.bytes()), dtype)
    return lambda: np.memmap(where.place, NUMPY[dtype], "c", where.offset, shape)


def _inside_the_file(tensor: onnx.TensorProto, data: bytes) -> onnx.TensorProto:
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=data)


def _number(tensor: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, str(default))
    if not (text.isascii() and text.isdigit()):
        raise DmlcError(f"tensor '{tensor}': external data '{entries.get('location', '')}' has {key} '{text}'")
    return int(text)


def _inside(tensor: str, location: str, model_path: Path) -> Path:
    """The real path of external data, which must lie inside the model's folder (see the rule above)."""
    refused = f"tensor '{tensor}': external data '{location}' is refused: "
    if not location or "\0" in location:
        raise DmlcError(refused + "it names no file")
    if os.path.isabs(location) or ".." in Path(location.replace("\\", "/")).parts:
        raise DmlcError(refused + "it must be a path inside the model's folder")
    place = Path(os.path.realpath(model_path.parent / location))
    folders = {os.path.realpath(model_path.parent), os.path.dirname(os.path.realpath(model_path))}
    if not any(place.is_relative_to(f) for f in sorted(folders)):
        raise DmlcError(refused + f"the link leads out of the model's folder, to '{place}'")
    if not place.is_file():
        raise DmlcError(refused + "there is no such file")
    return place
