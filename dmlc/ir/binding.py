"""Giving a module with open sizes their numbers: by name, or by the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dmlc.ir.core import Function, Module
from dmlc.ir.dims import Dim, Size, substitute, symbols_of, terms_of
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import ATTRIBUTE, OpenSizes, bound_size
from dmlc.ir.suggest import did_you_mean


@dataclass(frozen=True)
class Origin:
    """Where a symbol's number is read: dim `dim` of the input `name` is `factor * symbol + offset`."""

    name: str
    dim: int
    factor: int = 1
    offset: int = 0


def global_shape(arg: Any) -> tuple[Size, ...]:
    """The unsharded shape of an argument."""
    return tuple(arg.attrs.get("dmlc.global", arg.shape))


def origins(module: Module) -> dict[str, Origin]:
    """Symbol -> the dim of an input that tells it, the plainest there is. Raises `DmlcError` for a size that no input tells."""
    found: dict[str, Origin] = {}
    for arg in module.main.args:
        if arg.attrs.get("dmlc.role", "input") != "input":
            continue
        for d, size in enumerate(global_shape(arg)):
            linear = _linear(size)
            if linear is not None and (linear[0] not in found or linear[1:] == (1, 0) != (found[linear[0]].factor, found[linear[0]].offset)):
                found[linear[0]] = Origin(arg.name, d, linear[1], linear[2])
    for name in OpenSizes.of(module).sizes:
        if name not in found:
            raise DmlcError(f"no input tells how large the open size '{name}' is")
    return found


def _linear(size: Size) -> tuple[str, int, int] | None:
    """(symbol, factor, offset) of a size that is factor * symbol + offset."""
    names = symbols_of(size)
    if len(names) != 1:
        return None
    terms = terms_of(size)
    offset = terms.pop((), 0)
    factor = terms.get((names[0],), 0)
    return (names[0], factor, offset) if len(terms) == 1 and factor > 0 else None


def numbers_of(module: Module, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Symbol -> number from the global shapes of the inputs; what no given shape tells has its representative value. Raises `DmlcError` for a
    shape that the program does not serve."""
    sizes = OpenSizes.of(module).sizes
    found = {name: s.like for name, s in sizes.items()}
    for name, at in origins(module).items():
        if at.name in shapes and at.dim < len(shapes[at.name]):
            found[name] = (shapes[at.name][at.dim] - at.offset) // at.factor
    for arg in module.main.args:
        if arg.name in shapes:
            _check(arg, tuple(shapes[arg.name]), found)
    for name, n in found.items():
        if not sizes[name].allows(n):
            raise DmlcError(f"{name} = {n} is not served: the program takes {allowed(name, sizes[name].least, sizes[name].most)}")
    return found


def _check(arg: Any, given: tuple[int, ...], numbers: Mapping[str, int]) -> None:
    wanted = global_shape(arg)
    if len(given) != len(wanted):
        raise DmlcError(f"input '{arg.name}' has {len(given)} dims; the program takes {len(wanted)}")
    for d, (n, size) in enumerate(zip(given, wanted)):
        if substitute(size, numbers) != n:
            raise DmlcError(f"dim {d} of input '{arg.name}' is {n}; it has to be {size}" + (f" = {substitute(size, numbers)}" if isinstance(size, Dim) else ""))


def allowed(name: str, least: int, most: int | None) -> str:
    """The range of a size in words."""
    return f"{name} from {least} to {most}" if most is not None else f"{name} of {least} and more"


def bind(module: Module, numbers: Mapping[str, Size]) -> Module:
    """A copy of the module with the symbols replaced; those left out stay open."""
    copy = module.clone()
    for op in copy.walk():
        _bind_op(op, numbers)
    for function in copy.functions:
        function.op.attrs["res_attrs"] = [{k: bound_size(v, numbers) for k, v in attrs.items()} for attrs in _result_attrs(function)]
    left = {name: s for name, s in OpenSizes.of(module).sizes.items() if name not in numbers}
    OpenSizes(left).declare(copy)
    return copy


def _result_attrs(function: Function) -> list[dict[str, Any]]:
    return function.result_attrs if function.body.last is not None else []


def _bind_op(op: Any, numbers: Mapping[str, Size]) -> None:
    for key, value in op.attrs.items():
        if key not in ("res_attrs", ATTRIBUTE):
            op.attrs[key] = bound_size(value, numbers)
    for result in op.results:
        result.type = bound_size(result.type, numbers)
    for region in op.regions:
        for block in region.blocks:
            for arg in block.args:
                arg.type = bound_size(arg.type, numbers)
                arg.attrs = {k: bound_size(v, numbers) for k, v in arg.attrs.items()}


def bound_to(module: Module, shapes: Mapping[str, Sequence[int]]) -> Module:
    """The module itself where nothing is open, else a copy with the sizes that the inputs of these shapes give."""
    return bind(module, numbers_of(module, shapes)) if ATTRIBUTE in module.attrs else module


def at_usual_sizes(module: Module, given: Mapping[str, int] | None = None) -> Module:
    """The module itself where nothing is open, else a copy with the sizes given by name, the others at their representative values. Raises
    `DmlcError` for a size that it does not have or serve."""
    sizes = OpenSizes.of(module).sizes
    for name, n in (given or {}).items():
        if name not in sizes:
            raise DmlcError(f"the program has no open size '{name}'{did_you_mean(name, sizes)}; open are: {', '.join(sizes) or 'none'}")
        if not sizes[name].allows(n):
            raise DmlcError(f"{name} = {n} is not served: the program takes {allowed(name, sizes[name].least, sizes[name].most)}")
    return bind(module, {name: s.like for name, s in sizes.items()} | dict(given or {})) if sizes else module
