"""One call of an aten operator as the import tables see it, and the tables' registration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dmlc.interpret.evaluate import NAMES
from dmlc.ir.builder import Builder
from dmlc.ir.core import Op, Value
from dmlc.ir.dims import Dim, Size
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.registry import lookup
from dmlc.ir.types import TensorType, Type

if TYPE_CHECKING:
    from dmlc.frontend.torch_import import Importer

HANDLERS: dict[str, Callable[[Call], Any]] = {}

_INSTALLED = "site-packages/"


def aten(*names: str) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Register a handler for operators by packet name (`add`), or packet and overload (`max.dim`). It returns a value, or a list for several results."""

    def add(handler: Callable[[Call], Any]) -> Callable[[Call], Any]:
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = handler
        return handler

    return add


def operator_name(node: torch.fx.Node) -> str:
    """`add.Tensor` of `aten.add.Tensor`; operators of other libraries keep the library's name."""
    name = str(node.target)
    return name.removeprefix("aten.")


def handler_of(node: torch.fx.Node) -> Callable[[Call], Any] | None:
    name = operator_name(node)
    return HANDLERS.get(name) or HANDLERS.get(name.rsplit(".", 1)[0])


def dtype_name(dtype: torch.dtype) -> str:
    """The IR's name of a torch dtype. Raises `DmlcError` for one the IR does not have."""
    if dtype not in NAMES:
        raise DmlcError(f"dtype {dtype} is not supported")
    return NAMES[dtype]


def location_of(node: torch.fx.Node) -> Loc:
    """The line of the model's source that made the node: its innermost frame outside torch itself, or else the node's name."""
    places = []
    for line in (node.meta.get("stack_trace") or "").splitlines():
        parts = line.strip().split('"')
        if len(parts) == 3 and parts[0] == "File " and parts[2].startswith(", line "):
            places.append((parts[1], int(parts[2].split(",")[1].split()[1])))
    places = [p for p in places if not p[0].startswith("<")]  # code that the tracer wrote itself
    own = [p for p in places if "/torch/" not in p[0] and "/dmlc/frontend/" not in p[0]]
    if not own and not places:
        return Loc(node.name)
    path, number = (own or places)[-1]
    if _INSTALLED in path:
        path = path.rsplit(_INSTALLED, 1)[1]
    return Loc(path, number, 1)


class Call:
    """An aten call: its arguments by the names of the operator's schema, and an emitter for the ops that replace it."""

    def __init__(self, importer: Importer, node: torch.fx.Node):
        self.importer, self.node = importer, node
        schema = node.target._schema  # type: ignore[union-attr]
        self.arguments: dict[str, Any] = {}
        for i, argument in enumerate(schema.arguments):
            given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
            self.arguments[argument.name] = given

    def __contains__(self, name: str) -> bool:
        """Whether the argument exists and is not None."""
        return self.arguments.get(name) is not None

    def __getitem__(self, name: str) -> Any:
        """A plain argument: symbolic sizes become integers; None if the operator has no such argument."""
        return self.plain(self.arguments.get(name))

    def get(self, name: str, default: Any = None) -> Any:
        found = self[name]
        return default if found is None else found

    def plain(self, argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return [self.plain(a) for a in argument]
        if isinstance(argument, torch.fx.Node) and isinstance(argument.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            argument = argument.meta["val"]
        if isinstance(argument, torch.SymInt):
            return self.importer.size(argument)
        return argument

    def error(self, message: str) -> DmlcError:
        return DmlcError(f"aten.{operator_name(self.node)}: {message}", location_of(self.node))

    # ------------------------------------------------------------ types

    @property
    def type(self) -> TensorType:
        """The call's result type (of the first result if there are several)."""
        return self.types[0]

    @property
    def types(self) -> list[TensorType]:
        val = self.node.meta["val"]
        return [self.importer.type(v) for v in (val if isinstance(val, (list, tuple)) else [val])]

    def dtype_of(self, name: str) -> str:
        """The dtype of a tensor argument."""
        return self.value(name).dtype

    # ------------------------------------------------------------ operands

    def is_tensor(self, name: str) -> bool:
        argument = self.arguments.get(name)
        return isinstance(argument, torch.fx.Node) and argument in self.importer.env

    def value(self, name: str, dtype: str | None = None) -> Value:
        """A tensor argument, cast to `dtype`; a number becomes a rank-0 constant of that dtype (the result's if not given)."""
        argument = self.arguments.get(name)
        if self.is_tensor(name):
            return self.cast(self.importer.env[argument], dtype)
        number = self[name]
        if not isinstance(number, (bool, int, float, Dim)):
            raise self.error(f"argument '{name}' is {number!r}, which is not supported")
        return self.full(number, dtype or self.type.dtype)

    def values(self, name: str) -> list[Value]:
        """A list of tensors."""
        return [self.importer.env[a] for a in self.arguments[name]]

    def x(self, dtype: str | None = None) -> Value:
        """The first argument."""
        return self.value(next(iter(self.arguments)), dtype)

    def dim(self, name: str = "dim", rank: int | None = None) -> int:
        """A dim argument, counted from the front."""
        rank = self.x().tensor.rank if rank is None else rank
        return self[name] % max(rank, 1)

    def dims(self, name: str = "dim") -> tuple[int, ...]:
        """Dims of a reduction, sorted; all of them when none is given."""
        rank, given = self.x().tensor.rank, self[name]
        if given is None or given == []:
            return tuple(range(rank))
        given = given if isinstance(given, list) else [given]
        return tuple(sorted(d % max(rank, 1) for d in given))

    # ------------------------------------------------------------ emitting

    def op(self, name: str, *operands: Value, types: Sequence[Type] | None = None, label: str = "", **attrs: Any) -> Op:
        """Emit one op; `label` is appended to its `dmlc.name`. Attributes that equal their defaults are left out."""
        builder: Builder = self.importer.builder
        defaults = lookup(name).attributes
        attrs = {k: v for k, v in attrs.items() if k not in defaults or v != defaults[k] or type(v) is not type(defaults[k])}
        attrs["dmlc.name"] = self.importer.name(self.node) + (f".{label}" if label else "")
        return builder.op(name, operands, attrs, types)

    def emit(self, name: str, *operands: Value, types: Sequence[Type] | None = None, label: str = "", **attrs: Any) -> Value:
        return self.op("dmlc." + name, *operands, types=types, label=label, **attrs).result

    def full(self, number: bool | int | float | Dim, dtype: str, shape: Sequence[int] = ()) -> Value:
        type_ = TensorType(tuple(shape), dtype)
        if isinstance(number, Dim):  # a size that is known when the program runs
            return self.broadcast(self.cast(self.emit("full", types=[TensorType((), "i64")], label="size", value=number), dtype), shape)
        number = float(number) if type_.is_float else bool(number) if dtype == "i1" else int(number)
        return self.emit("full", types=[type_], label="value", value=number)

    def stopped(self, value: Value) -> Value:
        """`value` as a constant to gradients, where there are any."""
        return self.emit("stop_gradient", value) if self.importer.train and value.tensor.is_float else value

    def cast(self, value: Value, dtype: str | None) -> Value:
        return value if dtype is None or value.dtype == dtype else self.emit("cast", value, label="cast", to=dtype)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        return value if value.shape == shape else self.emit("reshape", value, types=[value.tensor.with_shape(shape)])

    def broadcast(self, value: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        return value if value.shape == shape else self.emit("broadcast", value, types=[value.tensor.with_shape(shape)])

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        perm = tuple(perm)
        return value if perm == tuple(range(len(perm))) else self.emit("transpose", value, perm=perm)

    def slice(self, value: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
        """Elements start, start + step, … below stop of a dim (bounds already within it)."""
        if (start, stop, step) == (0, value.shape[dim], 1):
            return value
        return self.emit("slice", value, dim=dim, start=start, stop=stop, step=step)

    def mean(self, value: Value, dims: Sequence[int], keepdim: bool) -> Value:
        """Sum times 1/n; NaN over nothing. Over an open size, sum over n."""
        count: Size = 1
        for d in dims:
            count *= value.shape[d]
        total = self.emit("reduce_sum", value, label="sum", dims=tuple(dims), keepdim=keepdim)
        if isinstance(count, Dim):
            return self.emit("div", total, self.full(count, value.dtype))
        return self.emit("mul", total, self.full(1.0 / count if count else float("nan"), value.dtype))
