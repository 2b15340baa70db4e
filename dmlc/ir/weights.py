"""Weights by key: memory-mapped or made on demand, never held in the module's text.

Arrays are numpy's. Two kinds of numbers that numpy lacks are kept as bits: bf16 as uint16, the two 8-bit floats as uint8.
Files are safetensors (https://github.com/huggingface/safetensors, section Format): eight bytes with the header's length, a JSON header, the data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dmlc.ir.location import DmlcError
from dmlc.ir.suggest import did_you_mean
from dmlc.ir.types import BYTES, TensorType

if TYPE_CHECKING:
    import numpy

SAFETENSORS = {
    "f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "f8E4M3FN": "F8_E4M3", "f8E5M2": "F8_E5M2",
    "i64": "I64", "i32": "I32", "i16": "I16", "i8": "I8", "ui8": "U8", "i1": "BOOL",
}  # fmt: skip
NUMPY = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "uint16", "f8E4M3FN": "uint8", "f8E5M2": "uint8",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "ui8": "uint8", "i1": "bool",
}  # fmt: skip
_FROM_SAFETENSORS = {v: k for k, v in SAFETENSORS.items()}
_FROM_NUMPY = {v: k for k, v in NUMPY.items() if k not in ("f8E4M3FN", "f8E5M2")}
_CHUNK = 1 << 26  # bytes written at a time
_HOLE = 1 << 20  # bytes of zeros that are left out rather than written
_HEADER_LIMIT = 100_000_000  # bytes; the format's own bound


@dataclass(frozen=True)
class _Entry:
    make: Callable[[], Any]
    type: TensorType | None


class WeightStore:
    """Arrays by key, in the order they were added. Nothing is read before `get`. `without_values` are keys of weights of which only the type is known:
    to `get` them is an error."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self.without_values: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def keys(self) -> list[str]:
        return list(self._entries)

    def add(self, key: str, value: Any, type: TensorType | None = None) -> None:
        """Put an array, or a function of no arguments that returns one, under `key` (replacing what was there).

        `type` is needed where the array does not tell it: 8-bit floats, and functions whose result should not be made just to know its size.
        """
        if not callable(value):
            array = value
            type, value = type or type_of_array(array), lambda: array
        self._entries[key] = _Entry(value, type)

    def get(self, key: str) -> numpy.ndarray:
        """The array under `key`: a view of the file where the weights lie in one (writing to it changes the view alone). Raises `DmlcError` for an unknown key."""
        return self._entry(key).make()

    def type(self, key: str) -> TensorType:
        """Shape and dtype under `key`."""
        entry = self._entry(key)
        return entry.type if entry.type is not None else type_of_array(entry.make())

    def update(self, other: WeightStore) -> None:
        self._entries.update(other._entries)
        self.without_values += other.without_values

    def _entry(self, key: str) -> _Entry:
        if key not in self._entries:
            raise DmlcError(f"there are no weights under '{key}'{did_you_mean(key, self._entries)}")
        return self._entries[key]

    @classmethod
    def open(cls, path: str | Path) -> WeightStore:
        """All tensors of a safetensors file, or of every `*.safetensors` of a folder (sorted by name). Raises `DmlcError` for a damaged file."""
        path = Path(path)
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        store = cls()
        for file in files:
            for key, entry in _read_header(file).items():
                if key in store:
                    raise DmlcError(f"'{key}' is in two files of {path}")
                store._entries[key] = entry
        return store

    def save(self, path: str | Path, keys: Iterable[str] | None = None) -> None:
        """Write a safetensors file. The same arrays give the same bytes, whatever the order they were added in. One array is held at a time, a mapped
        one not even whole; long runs of zeros become holes where the file system has them."""
        types = {k: self.type(k) for k in (self._entries if keys is None else keys)}
        order = sorted(types, key=lambda k: (-BYTES[types[k].dtype], k))  # widest first keeps every tensor aligned
        with open(path, "wb") as out:
            out.write(_header(order, types))
            for key in order:
                _write_array(out, self.get(key), types[key], key)
            out.truncate()  # a hole at the end counts too


def type_of_array(array: Any) -> TensorType:
    """Type of a numpy array; uint16 means bf16."""
    dtype = _FROM_NUMPY.get(str(array.dtype))
    if dtype is None:
        raise DmlcError(f"weights of numpy type {array.dtype} are not supported")
    return TensorType(tuple(int(n) for n in array.shape), dtype)


def _header(order: list[str], types: dict[str, TensorType]) -> bytes:
    entries, offset = {}, 0
    for key in order:
        t = types[key]
        entries[key] = {"dtype": SAFETENSORS[t.dtype], "shape": list(t.shape), "data_offsets": [offset, offset + t.bytes]}
        offset += t.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_array(out: BinaryIO, array: numpy.ndarray, type: TensorType, key: str) -> None:
    import numpy

    if tuple(array.shape) != type.shape or array.dtype != NUMPY[type.dtype]:
        raise DmlcError(f"weights '{key}' are {array.dtype}{list(array.shape)}, not {type}")
    for piece in _pieces(array):
        data = numpy.ascontiguousarray(piece).reshape(-1).view(numpy.uint8)
        for start in range(0, data.size, _HOLE):
            part = data[start : start + _HOLE]
            if part.size == _HOLE and not part.any():
                out.seek(_HOLE, 1)
            else:
                out.write(part)


def _pieces(array: numpy.ndarray) -> Iterator[numpy.ndarray]:
    """Parts of at most `_CHUNK` bytes that follow each other in row-major order, whatever the strides."""
    if array.nbytes <= _CHUNK:
        yield array
        return
    step = _CHUNK * len(array) // array.nbytes
    for start in range(0, len(array), max(1, step)):
        piece = array[start : start + max(1, step)]
        yield from [piece] if step else _pieces(piece[0])


def _read_header(path: Path) -> dict[str, _Entry]:
    """Key -> entry of one file; checks that every tensor lies inside it and has the size its shape says."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(_HEADER_LIMIT, size - 8):
                raise DmlcError(f"{path} is not a safetensors file: its header does not fit")
            header = json.loads(file.read(length))
    except OSError as e:
        raise DmlcError(f"cannot read {path}: {e.strerror}") from None
    except ValueError:
        raise DmlcError(f"{path} is not a safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise DmlcError(f"{path} is not a safetensors file: its header is not an object")
    start = 8 + length
    return {key: _file_entry(path, key, info, start, size) for key, info in header.items() if key != "__metadata__"}


def _file_entry(path: Path, key: str, info: Any, start: int, size: int) -> _Entry:
    try:
        type = TensorType(tuple(int(n) for n in info["shape"]), _FROM_SAFETENSORS[info["dtype"]])
        low, high = (int(n) for n in info["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise DmlcError(f"{path}: the entry of '{key}' is damaged or of an unknown type") from None
    if any(n < 0 for n in type.shape) or low < 0 or high - low != type.bytes or start + high > size:
        raise DmlcError(f"{path}: the bytes of '{key}' do not fit its type {type}")
    return _Entry(lambda: _map(path, start + low, type), type)


def _map(path: Path, offset: int, type: TensorType) -> numpy.ndarray:
    import numpy

    shape: tuple[int, ...] = type.shape  # type: ignore[assignment]
    if math.prod(shape) == 0:  # an empty range cannot be mapped
        return numpy.empty(shape, NUMPY[type.dtype])
    return numpy.memmap(path, NUMPY[type.dtype], "c", offset, shape)
