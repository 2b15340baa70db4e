"""Choosing concrete sizes for a graph's inputs: what the file fixes, what the user gave, and stated defaults."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from dmlc.frontend.onnx.tensors import dtype_of_element, dtype_or_carrier
from dmlc.ir.dims import Dim, Size, substitute, symbol
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import OpenSize, OpenSizes
from dmlc.ir.suggest import did_you_mean

DEFAULT_SIZE = 64


@dataclass(frozen=True)
class InputSpec:
    """One input of the model. `name` is the model's, `argument` the function's; `batch_dim` is the dim that grows with the batch."""

    name: str
    argument: str
    shape: tuple[Any, ...]
    dtype: str
    batch_dim: int | None = None


@dataclass(frozen=True)
class ChosenSize:
    """A row of the table of sizes that the file leaves open: its name, how large, who said so, and the dims that have it."""

    name: str
    size: int
    why: str
    dims: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} = {self.size} ({self.why}): {', '.join(self.dims)}"


@dataclass
class _Input:
    name: str
    dtype: str
    dims: list[int | str]  # an unnamed open dim is called `name[i]`


def _is_name(symbol: str) -> bool:
    """Some exporters write `?` or `-1` for every open dim, which ties none of them together."""
    return any(c.isalpha() for c in symbol) and symbol.lower() not in ("none", "null", "unk", "unknown")


class SizeBinder:
    """Binds each open size once. Named sizes of the file are shared between inputs; an unnamed one is called `input[dim]`."""

    def __init__(
        self,
        inputs: Iterable[onnx.ValueInfoProto],
        dims: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
        devices: int,
        batch_dims: Mapping[str, int],
        like: Mapping[str, int] | None = None,
    ):
        self.kept: dict[str, Size] = {}  # open sizes that stay so: what stands for each
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.batch_dims, self.devices = dict(batch_dims), devices
        self.inputs = [self._read(v) for v in inputs]
        self.bound: dict[str, tuple[int, str]] = {}
        self._check_names(dims)
        self._check_names(like or {})
        self._bind_given(dims)
        self.bound.update({name: (size, "--size-hint") for name, size in (like or {}).items() if name not in self.bound})
        self._bind_defaults()

    def specs(self, arguments: Mapping[str, str]) -> list[InputSpec]:
        return [InputSpec(i.name, arguments[i.name], self.shape(i), i.dtype, self._batch_dim(i)) for i in self.inputs]

    def shape(self, given: _Input) -> tuple[Any, ...]:
        return tuple(d if isinstance(d, int) else self.kept.get(d, self.bound[d][0]) for d in given.dims)

    def keep_open(self) -> OpenSizes:
        """Leave every size open that nobody fixed: each becomes a symbol named after it, priced as it would have been bound."""
        names, sizes = {}, {}
        for symbol_name, (size, why) in self.bound.items():
            if why in ("--dim", "--shape") or size < 1:
                continue
            names[symbol_name] = _identifier(symbol_name, set(names.values()))
            sizes[names[symbol_name]] = OpenSize(1, None, size)
        self.kept = {model: symbol(own) for model, own in names.items()}
        return OpenSizes(sizes, may_narrow=True)

    def bind_kept(self, numbers: Mapping[str, Size]) -> None:
        """Replace symbols, by what sizes have to be."""
        self.kept = {name: substitute(size, numbers) for name, size in self.kept.items()}

    def table(self) -> list[ChosenSize]:
        places: dict[str, list[str]] = {symbol: [] for symbol in self.bound}
        for i in self.inputs:
            for d, size in enumerate(i.dims):
                if isinstance(size, str):
                    places[size].append(f"{i.name}[{d}]")
        return [ChosenSize(s, size, why, tuple(places[s])) for s, (size, why) in self.bound.items() if places[s] and not isinstance(self.kept.get(s), Dim)]

    def _read(self, value: onnx.ValueInfoProto) -> _Input:
        optional = value.type.HasField("optional_type") and value.type.optional_type.elem_type.HasField("tensor_type")
        if not optional and not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value") or "no type"
            raise DmlcError(f"input '{value.name}' is not a tensor ({kind.removesuffix('_type')}), which is not supported")
        tensor = value.type.optional_type.elem_type.tensor_type if optional else value.type.tensor_type  # callers give an optional's element
        dtype = (dtype_of_element if optional else dtype_or_carrier)(tensor.elem_type, f"input '{value.name}'")
        given = self.shapes.get(value.name)
        if not tensor.HasField("shape"):
            if given is None:
                raise DmlcError(f"the file does not say the rank of input '{value.name}'; give it with --shape {value.name}=…")
            return _Input(value.name, dtype, [f"{value.name}[{i}]" for i in range(len(given))])
        dims: list[int | str] = []
        for i, d in enumerate(tensor.shape.dim):
            fixed = d.HasField("dim_value") and d.dim_value >= 0
            dims.append(d.dim_value if fixed else d.dim_param if _is_name(d.dim_param) else f"{value.name}[{i}]")
        return _Input(value.name, dtype, dims)

    def _check_names(self, dims: Mapping[str, int]) -> None:
        names = [i.name for i in self.inputs]
        for what, given in (("shape", self.shapes), ("batch dim", self.batch_dims)):
            for name in given:
                if name not in names:
                    raise DmlcError(f"a {what} is given for '{name}', but the model has no such input{did_you_mean(name, names) or _known(names)}")
        symbols = list(dict.fromkeys(d for i in self.inputs for d in i.dims if isinstance(d, str)))
        for name, size in dims.items():
            if name not in symbols:
                raise DmlcError(f"a size is given for '{name}', but the model has no such dim{did_you_mean(name, symbols) or _known(symbols)}")
            if size < 0:
                raise DmlcError(f"the size of '{name}' is given as {size}")
        for i in self.inputs:
            if i.name in self.batch_dims and not 0 <= self.batch_dims[i.name] < len(i.dims):
                raise DmlcError(f"input '{i.name}' has no dim {self.batch_dims[i.name]}")

    def _bind_given(self, dims: Mapping[str, int]) -> None:
        self.bound.update({name: (size, "--dim") for name, size in dims.items()})
        for i in self.inputs:
            shape = self.shapes.get(i.name)
            if shape is None:
                continue
            if len(shape) != len(i.dims):
                raise DmlcError(f"input '{i.name}' has {len(i.dims)} dims but the shape given for it has {len(shape)}")
            for d, (declared, size) in enumerate(zip(i.dims, shape)):
                self._bind_one(i.name, d, declared, size)

    def _bind_one(self, name: str, d: int, declared: int | str, size: int) -> None:
        if size < 0:
            raise DmlcError(f"dim {d} of input '{name}' is given as {size}")
        known = declared if isinstance(declared, int) else self.bound.get(declared, (size, ""))[0]
        if known != size:
            why = "the file fixes it" if isinstance(declared, int) else f"'{declared}' is"
            raise DmlcError(f"dim {d} of input '{name}' is given as {size}, but {why} {'at' if isinstance(declared, int) else 'already'} {known}")
        if isinstance(declared, str):
            self.bound.setdefault(declared, (size, "--shape"))

    def _bind_defaults(self) -> None:
        for i in self.inputs:
            batch = self._batch_dim(i)
            for d, size in enumerate(i.dims):
                if isinstance(size, str) and d == batch:
                    self.bound.setdefault(size, (self.devices, "default: the number of devices"))
        for i in self.inputs:
            for size in i.dims:
                if isinstance(size, str):
                    self.bound.setdefault(size, (DEFAULT_SIZE, f"default: {DEFAULT_SIZE}"))

    def _batch_dim(self, i: _Input) -> int | None:
        """As told; else dim 0 when the file leaves it open; else the dim that carries the name of another input's open dim 0."""
        if i.name in self.batch_dims:
            return self.batch_dims[i.name]
        if not i.dims:
            return None
        if isinstance(i.dims[0], str):
            return 0
        batch_names = {other.dims[0] for other in self.inputs if other.dims and isinstance(other.dims[0], str)}
        return next((d for d, size in enumerate(i.dims) if size in batch_names), None)


def _identifier(name: str, taken: set[str]) -> str:
    """A name of the file as a symbol's."""
    base = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "size"
    base = f"n_{base}" if base[0].isdigit() or base in ("floordiv", "ceildiv", "mod") else base
    unique, n = base, 1
    while unique in taken:
        n += 1
        unique = f"{base}_{n}"
    return unique


def _known(names: Iterable[str]) -> str:
    return f"; it has {', '.join(names) or 'none'}"
