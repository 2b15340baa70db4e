"""Slices of one fused projection become projections of sliced weights: q|k|v and gate|up can then be split over ranks by heads and by width.

Before: linear with a [3 d, d] weight, add of a bias, three slices.   After: three linears and adds, whose weights are slices of the stored one.
The new weights are arguments with a recipe, so the stored weight stays what it was; in training `dmlc.part` on them says what part of it they are,
so that trained parts find their way back. Also found behind a reshape of the columns ([.., 3, heads, size], or
[.., heads, 3 size]) and transposes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import Builder
from dmlc.ir.core import BlockArgument, Module, Op, Value
from dmlc.ops.base import attribute
from dmlc.passes._derive import derived_argument, is_stored
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context


@dataclass(frozen=True)
class UnfuseProjections(Pass):
    name: ClassVar[str] = "unfuse-projections"
    numerics: ClassVar[Numerics] = "exact"
    requires: ClassVar[tuple[str, ...]] = ("global",)

    def run(self, module: Module, context: Context) -> bool:
        changed = False
        for op in [op for op in module.main.body if op.name in ("dmlc.linear", "dmlc.matmul")]:
            found = find(op, context)
            if found is not None and (module.attrs.get("dmlc.mode") is None or _covered(found)):
                unfuse(module, found)
                changed = True
        return changed


@dataclass
class Fused:
    """A projection, its bias additions, the moves behind it and the slices that take it apart along one dim of `columns`.

    `columns` are the dims that the first reshape made of the output columns (the columns themselves if there is none); `dim` is the one sliced.
    `moves` pairs each reshape or transpose with the place of the sliced dim in its result.
    """

    product: Op
    biases: list[Op] = field(default_factory=list)
    moves: list[tuple[Op, int]] = field(default_factory=list)
    columns: tuple[int, ...] = ()
    dim: int = 0
    slices: list[Op] = field(default_factory=list)


def find(product: Op, context: Context) -> Fused | None:
    """The pattern behind a product of activations with a weight, or None."""
    weight = product.operands[1]
    if not is_stored(weight) or weight.tensor.rank != 2 or product.result.tensor.rank < 2:
        return None
    found, value = Fused(product), product.result
    while (bias := _only_user(value, "dmlc.add")) is not None and is_stored(_other(bias, value)) and _other(bias, value).shape == value.shape[-1:]:
        found.biases.append(bias)
        value = bias.result
    found.columns = value.shape[-1:]
    if not _follow(found, value):
        return None
    shared = [a for a in (weight, *(_bias_of(b) for b in found.biases)) if len(a.uses) > 1]
    if shared:
        context.remark(product, f"its weight %{shared[0].name} is used elsewhere too, so the projection stays fused")  # type: ignore[attr-defined]
        return None
    return found


def _only_user(value: Value, name: str) -> Op | None:
    return value.users[0] if len(value.uses) == 1 and value.users[0].name == name else None


def _other(op: Op, value: Value) -> Value:
    return op.operands[1] if op.operands[0] is value else op.operands[0]


def _bias_of(op: Op) -> Value:
    return next(v for v in op.operands if is_stored(v) and v.tensor.rank == 1)


def _follow(found: Fused, value: Value) -> bool:
    """Walk moves up to the slices. `where` maps each dim of the current value to a dim of `columns`, or None for leading dims."""
    where: list[int | None] = [None] * (value.tensor.rank - 1) + [0]
    steps: list[tuple[Op, list[int | None]]] = []
    while len(value.uses) == 1 and (op := value.users[0]).name in ("dmlc.reshape", "dmlc.transpose"):
        moved = _transposed(op, where) if op.name == "dmlc.transpose" else _reshaped(op, where, found)
        if moved is None:
            return False
        value, where = op.result, moved
        steps.append((op, where))
    found.slices = [u for u in value.users if u.name == "dmlc.slice"]
    if len(found.slices) != len(value.uses) or len(found.slices) < 2 or not _disjoint(found.slices):
        return False
    dim = where[found.slices[0].attrs["dim"]]
    if dim is None:
        return False
    found.dim = dim
    found.moves = [(op, at.index(dim)) for op, at in steps]
    return True


def _transposed(op: Op, where: list[int | None]) -> list[int | None]:
    return [where[p] for p in op.attrs["perm"]]


def _reshaped(op: Op, where: list[int | None], found: Fused) -> list[int | None] | None:
    """The first reshape of the columns may split them; every other one may only add or remove dims of size 1."""
    source, target = op.operands[0].shape, op.result.shape
    if len(found.columns) == 1 and where[-1] == 0 and source[-1] == found.columns[0]:
        lead = math.prod(source[:-1])
        cut = next((i for i in range(len(target) + 1) if math.prod(target[:i]) == lead and math.prod(target[i:]) == source[-1] and (i == len(target) or target[i] != 1)), None)
        if cut is not None and cut < len(target):
            found.columns = tuple(target[cut:])
            return [None] * cut + list(range(len(target) - cut))
    if [n for n in source if n != 1] != [n for n in target if n != 1]:
        return None
    kept = iter(w for w, n in zip(where, source) if n != 1)
    return [None if n == 1 else next(kept) for n in target]


def _disjoint(slices: list[Op]) -> bool:
    """Whether all slices cut the same dim into runs that do not overlap."""
    runs = sorted((attribute(s, "start"), s.attrs["stop"]) for s in slices)
    same = len({s.attrs["dim"] for s in slices}) == 1 and all(attribute(s, "step") == 1 for s in slices)
    return same and all(a[1] <= b[0] for a, b in zip(runs, runs[1:]))


def _covered(found: Fused) -> bool:
    """Whether the slices take every column: a trained weight has to come back whole."""
    return sum(s.attrs["stop"] - attribute(s, "start") for s in found.slices) == found.columns[found.dim]


# ---------------------------------------------------------------- the change


def unfuse(module: Module, found: Fused) -> None:
    """Emit the projections where the fused one stands, replace the slices, erase the rest."""
    weight, axis = found.product.operands[1], 0 if found.product.name == "dmlc.linear" else 1
    for number, cut in enumerate(found.slices):
        b = Builder.before(found.product)
        part = _part(module, found, weight, axis, cut)
        value = b.op(found.product.name, [found.product.operands[0], part], _renamed(found.product, number), tag=f"part{number}").result
        for bias in found.biases:
            with b.for_op(bias):
                value = b.op("dmlc.add", [value, _part(module, found, _bias_of(bias), 0, cut)], _renamed(bias, number), tag=f"part{number}").result
        value = _moved(b, found, value, cut)
        cut.replace([value])
    sources = [weight, *(_bias_of(bias) for bias in found.biases)]
    for op in reversed([found.product, *found.biases, *(m for m, _ in found.moves)]):
        op.erase()
    for arg in sources:
        module.main.body.erase_arg(arg)  # type: ignore[arg-type]


def _renamed(op: Op, number: int) -> dict:
    name = op.attrs.get("dmlc.name", "")
    return {"dmlc.name": f"{name}.{number}"} if name else {}


def _moved(b: Builder, found: Fused, value: Value, cut: Op) -> Value:
    """The moves repeated on a part: the sliced dim has the slice's size."""
    size = cut.result.shape[cut.attrs["dim"]]
    for op, place in found.moves:
        with b.for_op(op):
            if op.name == "dmlc.transpose":
                value = b.emit("dmlc.transpose", value, perm=op.attrs["perm"])
            else:
                shape = tuple(size if d == place else n for d, n in enumerate(op.result.shape))
                value = b.emit("dmlc.reshape", value, types=[value.tensor.with_shape(shape)])
    return value


def _part(module: Module, found: Fused, source: Value, axis: int, cut: Op) -> Value:
    """The columns of a weight or bias that a slice takes, as an argument with a recipe."""
    assert isinstance(source, BlockArgument)
    start, stop = attribute(cut, "start"), cut.attrs["stop"]
    split = (*source.shape[:axis], *found.columns, *source.shape[axis + 1 :])
    kept = math.prod(found.columns) // found.columns[found.dim] * (stop - start)
    joined = (*source.shape[:axis], kept, *source.shape[axis + 1 :])

    def recipe(b: Builder, value: Value) -> Value:
        value = value if value.shape == split else b.emit("dmlc.reshape", value, types=[value.tensor.with_shape(split)])
        value = b.emit("dmlc.slice", value, dim=axis + found.dim, start=start, stop=stop)
        return value if value.shape == joined else b.emit("dmlc.reshape", value, types=[value.tensor.with_shape(joined)])

    names = source.attrs.get("dmlc.names")
    stem = names[0] if names else source.attrs.get("dmlc.name", source.name)
    made = derived_argument(module, [source], recipe, f"{stem}[{start}:{stop}]")
    if module.attrs.get("dmlc.mode") is not None:
        place = {"shape": source.shape, "split": split, "dim": axis + found.dim, "start": start, "stop": stop}
        made.attrs["dmlc.part"] = AttrDict(names=tuple(names or (stem,)), **place)
        if "dmlc.frozen" in source.attrs:
            made.attrs["dmlc.frozen"] = None
    return made
