"""A plan taken over from a program with fewer layers: the layers it lacks are placed as the one that stands for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dmlc.ir.core import BlockArgument, Function, Module, Op
from dmlc.ops.base import own_attrs
from dmlc.passmanager.base import Pass
from dmlc.passmanager.context import Context
from dmlc.simulate.work import note_work

ON_OPS = ("dmlc.place", "dmlc.accumulate", "dmlc.storage")
ON_ARGUMENTS = ("dmlc.sharding", "dmlc.storage", "dmlc.regather")


@dataclass(frozen=True)
class Names:
    """What an op is called in both programs. An op that import made, or a pass on its behalf (`12`, `12.contract`), goes by its id; the optimizer's own
    by what they are made of. `imported` are the ids of the program before any pass, `same` leads to the layer that stands for another."""

    imported: frozenset[str]
    same: Mapping[str, str] = field(default_factory=dict)

    def of(self, function: Function) -> dict[Op, Any]:
        known: dict[Op, Any] = {}
        numbers: dict[Op, Any] = {}
        for op in function.body:
            first, point, rest = op.id.partition(".")
            if first in self.imported and (point or op.attrs.get("dmlc.phase") != "update"):  # numbers of ops that are gone are given again
                known[op] = self.same.get(first, first) + point + rest
            elif op.name == "dmlc.add_n":
                known[op] = (op.name, op.result.type)  # of as many as there are
            else:
                own = tuple(sorted((kv for kv in own_attrs(op).items() if kv[0] != "param"), key=lambda kv: kv[0]))
                known[op] = (op.name, own, tuple(self.argument(v) if isinstance(v, BlockArgument) else numbers[v.op] for v in op.operands))  # type: ignore[index]
            numbers[op] = hash(known[op])  # keeps what is made of much short
        return known

    def argument(self, arg: BlockArgument) -> str:
        """The name; a state's is that of its parameter and its own."""
        of = arg.attrs.get("dmlc.of")
        return self.same.get(arg.name, arg.name) if of is None else self.same.get(of, of) + arg.name.removeprefix(of)


@dataclass(frozen=True)
class Placed:
    """What `plan` wrote: the mesh, on the module, on ops, arguments and results."""

    mesh: Op
    plan: Any
    ops: Mapping[Any, dict[str, Any]]
    arguments: Mapping[str, dict[str, Any]]
    results: Mapping[str, Any]

    @classmethod
    def of(cls, module: Module, names: Names) -> Placed:
        function = module.main
        assert module.mesh_op is not None
        return cls(
            module.mesh_op.clone(),
            module.attrs["dmlc.plan"],
            {name: _those(op.attrs, ON_OPS) for op, name in names.of(function).items()},
            {a.name: _those(a.attrs, ON_ARGUMENTS) for a in function.args},
            {attrs["dmlc.name"]: attrs["dmlc.sharding"] for attrs in function.result_attrs if "dmlc.updates" not in attrs},
        )


@dataclass(frozen=True)
class Follow(Pass):
    """Stands before `plan`, which then finds the program placed. Raises `KeyError` where the programs differ by more than layers."""

    placed: Placed | None = None
    names: Names | None = None
    name = "follow"
    numerics = "exact"
    requires = ("global",)

    def run(self, module: Module, context: Context) -> bool:
        placed, names, function = self.placed, self.names, module.main
        assert placed is not None and names is not None
        for op, name in names.of(function).items():
            if op is not function.return_op:
                op.attrs.update(placed.ops[name])
        for arg in function.args:
            arg.attrs.update(placed.arguments[names.argument(arg)])
        for attrs in function.result_attrs:
            updated = attrs.get("dmlc.updates")
            attrs["dmlc.sharding"] = placed.results[attrs["dmlc.name"]] if updated is None else _resting(function.arg(updated))
        first = module.body.first
        assert first is not None
        module.body.insert_before(first, placed.mesh.clone())
        module.attrs["dmlc.plan"] = placed.plan
        note_work(module)
        return True


def _resting(arg: BlockArgument) -> Any:
    return arg.attrs["dmlc.storage"]


def _those(attrs: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: attrs[key] for key in keys if key in attrs}
