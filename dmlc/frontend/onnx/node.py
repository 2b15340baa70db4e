"""One node during import: its operands, its attributes and the means to build ops for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from dmlc.frontend.onnx.carried import Kind
from dmlc.frontend.onnx.emit import Emit, Emitter, concrete, type_of
from dmlc.frontend.onnx.graph import attribute_value
from dmlc.frontend.onnx.loader import source_of
from dmlc.frontend.onnx.open_values import is_open
from dmlc.frontend.onnx.table import Unsupported
from dmlc.frontend.onnx.tensors import CARRIERS, python_value
from dmlc.frontend.onnx.values import FOLD_LIMIT, Known, Tensor, Weight
from dmlc.ir.core import Value
from dmlc.ir.dims import Dim
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import UnknownSize

if TYPE_CHECKING:
    from dmlc.frontend.onnx.frame import Frame
    from dmlc.frontend.onnx.importer import Importer

_REQUIRED: Any = object()


class Node(Emit):
    """What a handler sees. Operands are numbered as in the schema; an absent one (empty name, or past the end) is None."""

    def __init__(self, importer: Importer, frame: Frame, proto: onnx.NodeProto, name: str, since: int, operands: Sequence[Tensor | None], emitter: Emitter):
        self.importer, self.frame, self.proto, self.name, self.since = importer, frame, proto, name, since
        super().__init__(emitter)
        self.operands = list(operands)
        self.elements = [frame.element(name) if name else None for name in proto.input]
        self.result_elements: list[int | None] = [None] * len(proto.output)
        self.attributes = {a.name: a for a in frame.bound_attributes(proto)}

    # ------------------------------------------------------------ operands

    def has(self, i: int) -> bool:
        return i < len(self.operands) and self.operands[i] is not None

    def get(self, i: int) -> Tensor | None:
        return self.operands[i] if i < len(self.operands) else None

    def __getitem__(self, i: int) -> Tensor:
        """Operand i, which must be there."""
        t = self.get(i)
        if t is None:
            raise DmlcError(f"operand {i} is missing")
        return t

    def shape(self, i: int) -> tuple[int, ...]:
        return concrete(self[i])

    def rank(self, i: int) -> int:
        return len(self.shape(i))

    def dtype(self, i: int) -> str:
        return type_of(self[i]).dtype

    def kind(self, i: int) -> Kind:
        """Operand i's dtype, and its element type if that is carried."""
        return Kind(self.elements[i], self.dtype(i))

    def param(self, i: int) -> Value:
        """Operand i as something that training changes, if it is a float initializer."""
        return self.value(self[i], "param" if type_of(self[i]).is_float else "const")

    def buffer(self, i: int) -> Value:
        return self.value(self[i], "buffer")

    def known(self, i: int, what: str) -> np.ndarray:
        """Operand i as an array. Raises `Unsupported` when it is not known at import."""
        t = self[i]
        if isinstance(t, Weight):
            if t.overridable:
                self.importer.remark(self, f"{what} is taken from the initializer '{t.name}', which callers can then no longer replace")
            t = t.read()
        if not isinstance(t, Known):
            raise Unsupported(f"{what} must be known at import, but it depends on the data")
        if t.array.size > FOLD_LIMIT:
            raise Unsupported(f"{what} has {t.array.size} elements, too many to work with at import")
        if is_open(t.array):
            raise UnknownSize.of(next(n for n in t.array.reshape(-1) if isinstance(n, Dim)), f"{what} must be known at import")
        return t.array

    def maybe_known(self, i: int) -> np.ndarray | None:
        t = self.get(i)
        if isinstance(t, Weight) and t.constant_like:
            t = t.read()
        return t.array if isinstance(t, Known) and t.array.size <= FOLD_LIMIT and not is_open(t.array) else None

    def single(self, t: Tensor) -> Known | None:
        """The tensor as one number known at import, or None."""
        if isinstance(t, Weight) and t.constant_like:
            t = t.read()
        return t if isinstance(t, Known) and t.array.size == 1 and not is_open(t.array) else None

    def number(self, i: int) -> bool | int | float | None:
        """Operand i as a Python number; None when it is absent, depends on the data or has several elements."""
        t = self.get(i)
        known = self.single(t) if t is not None else None
        return python_value(known.array, known.dtype) if known is not None else None

    def is_weight(self, t: Tensor) -> bool:
        """Whether the tensor stands in the file as numbers of its own: a float initializer or constant of several elements."""
        if isinstance(t, Known):
            return t.literal and t.array.size > 1 and type_of(t).is_float
        return isinstance(t, Weight) and type_of(t).is_float and not t.constant_like

    def ints(self, i: int, what: str) -> tuple[int, ...]:
        """Operand i as a list of integers known at import, open sizes among them (rank 0 counts as one)."""
        if (found := self.sizes(i)) is not None:
            return found
        array = self.known(i, what)
        if array.ndim > 1 or array.dtype.kind not in "iu":
            raise DmlcError(f"{what} must be a list of integers, not {array.dtype} of shape {list(array.shape)}")
        return tuple(int(v) for v in array.reshape(-1))

    def sizes(self, i: int) -> tuple[Any, ...] | None:
        """Operand i, if it is a list of integers of which some are open sizes."""
        t = self.get(i)
        return tuple(t.array.reshape(-1).tolist()) if isinstance(t, Known) and is_open(t.array) and t.array.ndim <= 1 else None

    # ------------------------------------------------------------ attributes

    def attr(self, name: str, default: Any = _REQUIRED) -> Any:
        """An attribute's value or the default; a value of another kind than the default is refused."""
        attribute = self.attributes.get(name)
        if attribute is None:
            if default is _REQUIRED:
                raise DmlcError(f"attribute '{name}' is missing")
            return default
        value = attribute_value(attribute)
        if default is not _REQUIRED and default is not None and type(default) is not type(value):
            raise DmlcError(f"attribute '{name}' should be a {type(default).__name__}, not a {type(value).__name__}")
        return value

    def ints_attr(self, name: str, count: int, default: int) -> tuple[int, ...]:
        """A list attribute with one integer a dim."""
        value = self.attr(name, (default,) * count)
        if len(value) != count:
            raise DmlcError(f"attribute '{name}' has {len(value)} entries, {count} are needed")
        return value

    def constant_attr(self, proto: onnx.TensorProto) -> Known:
        """A tensor inside the node (`value` of Constant and ConstantOfShape)."""
        source = source_of(proto, self.importer.path)
        if proto.data_type in CARRIERS:
            self.result_elements = [proto.data_type]
        return Known(source.load(), source.dtype)

    def axis(self, axis: int, rank: int) -> int:
        if not -rank <= axis < rank:
            raise DmlcError(f"axis {axis} is out of range for rank {rank}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Axes as sorted non-negative numbers. Raises `DmlcError` when one repeats or is out of range."""
        result = sorted(self.axis(int(a), rank) for a in axes)
        if len(set(result)) != len(result):
            raise DmlcError(f"axes {list(axes)} name a dim twice")
        return tuple(result)

    def wants(self, i: int) -> bool:
        """Whether the node's result i has a name."""
        return i < len(self.proto.output) and bool(self.proto.output[i])
