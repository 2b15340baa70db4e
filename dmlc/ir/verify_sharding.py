"""Meshes, shardings and places name axes that exist, each once, and fit the ranks of what they describe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dmlc.ir.attributes import AttrDict, Axes, Sharding
from dmlc.ir.core import Function, Module, Op
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.suggest import did_you_mean
from dmlc.ir.types import TensorType, Type

COMBINERS = ("sum", "prod", "max", "min", "and", "or")
NOT_FACTORS = ("linear", "strategy", "grains")  # the other keys of dmlc.place


class Shardings:
    """Checks every sharding of a module against its meshes."""

    def __init__(self, module: Module):
        self.module = module
        self.meshes: dict[str, tuple[str, ...]] = {}

    def verify(self) -> None:
        for op in self.module.body:
            if op.name == "dmlc.mesh":
                self._mesh(op)
        for op in self.module.walk():
            for key, value in op.attrs.items():
                if key == "dmlc.place":
                    self._place(op, value)
                elif key != "res_attrs":
                    self._attribute(value, f"attribute '{key}' of '{op.name}'", op.loc)
            if op.name == "dmlc.reshard":
                self._rank(op.attrs.get("to"), op.results[0].type, "the target of 'dmlc.reshard'", op.loc)
        for function in self.module.functions:
            self._signature(function)

    def _mesh(self, op: Op) -> None:
        axes = op.attrs.get("axes")
        if not isinstance(axes, Axes):
            raise DmlcError("'dmlc.mesh' needs axes = #dmlc.axes<[...]>", op.loc)
        names = tuple(name for name, _ in axes.sizes)
        for name, size in axes.sizes:
            if names.count(name) > 1:
                raise DmlcError(f"the mesh has two axes \"{name}\"", op.loc)
            if size < 1:
                raise DmlcError(f"axis \"{name}\" has size {size}; it must be at least 1", op.loc)
        self.meshes[op.attrs["sym_name"]] = names

    def _signature(self, function: Function) -> None:
        named = [(f"%{a.name}", a.type, a.attrs) for a in function.args]
        named += [(f"result {i}", v.type, a) for i, (v, a) in enumerate(zip(function.results, function.op.attrs.get("res_attrs", ())))]
        for owner, type_, attrs in named:
            for key, value in attrs.items():
                self._attribute(value, f"{key} of {owner}", function.op.loc)
                self._rank(value, type_, f"{key} of {owner}", function.op.loc)

    def _rank(self, value: Any, type_: Type, owner: str, loc: Loc) -> None:
        if isinstance(value, Sharding) and isinstance(type_, TensorType) and len(value.dims) != type_.rank:
            raise DmlcError(f"{owner} has {len(value.dims)} dims for a tensor of rank {type_.rank}", loc)

    def _attribute(self, value: Any, owner: str, loc: Loc) -> None:
        for sharding in _shardings_in(value):
            self._sharding(sharding, owner, loc)

    def _sharding(self, sharding: Sharding, owner: str, loc: Loc) -> None:
        if sharding.mesh not in self.meshes:
            raise DmlcError(f"{owner} names the mesh @{sharding.mesh}, which is not in the module{did_you_mean(sharding.mesh, self.meshes)}", loc)
        used = [a for axes in sharding.dims for a in axes] + [a for a, _ in sharding.unreduced]
        self._axes(used, self.meshes[sharding.mesh], owner, loc)
        for _, combiner in sharding.unreduced:
            if combiner not in COMBINERS:
                raise DmlcError(f"{owner} has the unknown combiner \"{combiner}\"", loc)
        if sharding.grains and (len(sharding.grains) != len(sharding.dims) or min(sharding.grains) < 1):
            raise DmlcError(f"{owner} needs one grain of at least 1 for each of its {len(sharding.dims)} dims", loc)

    def _axes(self, used: Sequence[str], known: Sequence[str], owner: str, loc: Loc) -> None:
        for i, axis in enumerate(used):
            if axis not in known:
                raise DmlcError(f"{owner} names the axis \"{axis}\"; the mesh has {', '.join(known) or 'none'}{did_you_mean(axis, known)}", loc)
            if axis in used[:i]:
                raise DmlcError(f"{owner} uses the axis \"{axis}\" twice", loc)

    def _place(self, op: Op, place: Any) -> None:
        """`dmlc.place`: each axis serves one factor, one unreduced operand set or the strategy."""
        owner = f"dmlc.place of '{op.name}'" + (f" ({op.attrs['dmlc.name']})" if "dmlc.name" in op.attrs else "")
        if not isinstance(place, AttrDict):
            raise DmlcError(f"{owner} is not a dictionary", op.loc)
        used = [a for key, axes in place.items() if key not in NOT_FACTORS for a in _names(axes, owner, op.loc)]
        used += [*_mapping(place.get("linear"), owner, op.loc)]
        used += [a for axes in _mapping(place.get("strategy"), owner, op.loc).values() for a in _names(axes, owner, op.loc)]
        known = tuple(dict.fromkeys(a for names in self.meshes.values() for a in names))
        self._axes(used, known, owner, op.loc)


def _names(axes: Any, owner: str, loc: Loc) -> tuple[str, ...]:
    if not isinstance(axes, tuple) or not all(isinstance(a, str) for a in axes):
        raise DmlcError(f"{owner} gives no list of axis names", loc)
    return axes


def _mapping(value: Any, owner: str, loc: Loc) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, AttrDict):
        raise DmlcError(f"'linear' and 'strategy' in {owner} are dictionaries", loc)
    return value


def _shardings_in(value: Any) -> Iterator[Sharding]:
    if isinstance(value, Sharding):
        yield value
    elif isinstance(value, (tuple, AttrDict)):
        for part in value.values() if isinstance(value, AttrDict) else value:
            yield from _shardings_in(part)
