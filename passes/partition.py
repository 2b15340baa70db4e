"""`partition`: the global program becomes one rank's program, with explicit collectives.

`dmlc.place` on each op says how it runs; the shardings of its operands and results follow. A value is brought into each sharding that
is asked of it once, by the steps `dmlc.cost.reshard` gives. Operands with a reduced factor are masked where a rank holds padding,
and so are operands used as indices. Everything that depends on the rank is a value: axis index, window, slice, mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dmlc.cost.reshard import Step, reshard, step_bytes
from dmlc.ir.attribute_printer import attribute_text
from dmlc.ir.attributes import Sharding
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, BlockArgument, Module, Op, OpResult, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType
from dmlc.ops.base import attribute, definition, index_of, rule_of
from dmlc.ops.comm import delivered_types
from dmlc.ops.place import Place, illegal, states, strategy_of
from dmlc.passmanager.base import Pass
from dmlc.passmanager.context import Context

INDEX = TensorType((), "i64")


@dataclass(frozen=True)
class Partition(Pass):
    name = "partition"
    numerics = "reordered"
    requires = ("global",)
    ensures = ("partitioned",)

    def run(self, module: Module, context: Context) -> bool:
        if "dmlc.spmd" in module.attrs or module.mesh_op is None:
            context.remark(module.main.op, "declined: " + ("the program is a rank's already" if "dmlc.spmd" in module.attrs else "the module has no mesh"))
            return False
        Partitioner(module).run()
        module.attrs["dmlc.spmd"] = None
        return True


class RankValues:
    """Axis indices and windows of this rank, each emitted once at its first use."""

    def __init__(self, mesh: Mesh, block: Block, ids: IdPool):
        self.mesh, self.ids = mesh, ids
        self.b = Builder(block, None, ids)
        self._known: dict[Any, Any] = {}

    def constant(self, n: int) -> Value:
        return self._once(("n", n), lambda: self._emit("dmlc.full", (), {"value": n}, [INDEX])[0])

    def index(self, axis: str) -> Value:
        return self._once(("axis", axis), lambda: self._emit("comm.axis_index", (), {"axis": axis}, [INDEX])[0])

    def window(self, n: int, axes: Sequence[str], grain: int = 1) -> tuple[Value, Value]:
        """Global start and valid count of this rank's part of a dim of n elements split by `axes`."""
        if not axes:
            return self.constant(0), self.constant(n)

        def make() -> tuple[Value, Value]:
            operands = [self.constant(n), *(self.index(a) for a in axes)]
            counts = tuple(self.mesh.sizes[a] for a in axes)
            return self._emit("dmlc.window", operands, {"counts": counts, "grain": grain}, [INDEX, INDEX])  # type: ignore[reportReturnType]

        return self._once(("window", n, tuple(axes), grain), make)

    def _emit(self, name: str, operands: Sequence[Value], attrs: dict[str, Any], types: list[TensorType]) -> tuple[Value, ...]:
        attrs["dmlc.id"] = self.ids.fresh("rank." + name.split(".")[-1])
        return tuple(self.b.op(name, operands, attrs, types).results)

    def _once(self, key: Any, make: Any) -> Any:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


class Environment:
    """What a strategy's `emit` sees: the builder, its axes, windows over them, collectives over them, the results' local types."""

    def __init__(self, partitioner: Partitioner, axes: tuple[str, ...], local_types: list[TensorType]):
        self._partitioner, self.axes, self.local_types = partitioner, axes, local_types
        self.mesh = partitioner.mesh
        self.b = partitioner.b
        self.ranks = self.mesh.extent(axes)

    def window(self, n: int, grain: int = 1) -> tuple[Value, Value]:
        return self._partitioner.rank_values.window(n, self.axes, grain)

    def all_reduce(self, value: Value, combiner: str = "sum") -> Value:
        return self.b.emit("comm.all_reduce", value, types=[value.type], tag="ar", axes=self.axes, combiner=combiner)

    def all_gather(self, value: Value, dim: int, n: int, grain: int = 1) -> Value:
        attrs = {"axes": self.axes, "dims": (dim,), "sizes": (n,), "grains": (grain,)}
        return self.b.op("comm.all_gather", [value], attrs, delivered_types("comm.all_gather", attrs, [value.tensor], self.mesh), tag="ag").result


class Versions:
    """A global value's local forms, by sharding, in the order they were made."""

    def __init__(self, type_: TensorType, natural: Sharding, local: Value):
        self.type, self.natural = type_, natural
        self.forms: dict[Sharding, Value] = {natural: local}


class Partitioner:
    """Rebuilds the body of `main` op by op. `b` emits at the end of the new block on behalf of the op at hand."""

    def __init__(self, module: Module):
        self.module, self.mesh = module, Mesh.of(module)
        self.function = module.main
        self.old = self.function.body
        self.block = Block()
        self.ids = IdPool(self.function)
        self.b = Builder(self.block, None, self.ids)
        self.rank_values = RankValues(self.mesh, self.block, self.ids)
        self.versions: dict[Value, Versions] = {}

    def run(self) -> None:
        self._arguments()
        for op in self.old:
            with self.b.for_op(op):
                self._return(op) if op is self.old.last else self._op(op)
        region = self.function.op.region
        for op in region.op.walk() if region.op else ():
            op.operands = ()
        region.blocks = []
        region.add_block(self.block)

    # -------------------------------------------------- signature

    def _arguments(self) -> None:
        for arg in self.old.args:
            attrs = dict(arg.attrs)
            key = "dmlc.sharding" if attrs.get("dmlc.role", "input") == "input" else "dmlc.storage"
            sharding = attrs.get(key) or self.mesh.replicated(arg.tensor.rank)
            local = self.mesh.local_type(arg.tensor, sharding)
            attrs[key] = sharding
            if local != arg.type:
                attrs["dmlc.global"] = arg.shape
            new = self.block.add_arg(local, arg.name, attrs)
            self.versions[arg] = Versions(arg.tensor, sharding, new)

    def _return(self, op: Op) -> None:
        values = []
        for value, attrs in zip(op.operands, self.function.result_attrs):
            natural = self.versions[value].natural
            target = attrs.get("dmlc.sharding") or Sharding(natural.mesh, natural.dims, (), natural.grains)
            local = self.get(value, target)
            attrs["dmlc.sharding"] = target
            if local.type != value.type:
                attrs["dmlc.global"] = value.tensor.shape
            values.append(local)
        self.b.op("func.return", values, dict(op.attrs), ())

    # -------------------------------------------------- resharding

    def get(self, value: Value, target: Sharding) -> Value:
        """The local form of a global value in a sharding, made from the cheapest form there is."""
        versions = self.versions[value]
        if target in versions.forms:
            return versions.forms[target]
        paths = [(self._bytes(versions, source, steps), n, source, steps) for n, source in enumerate(versions.forms) if (steps := reshard(self.mesh, source, target, versions.type.shape)) is not None]
        if not paths:
            forms = f"{attribute_text(versions.natural)} cannot become {attribute_text(target)}"
            raise DmlcError(f"an operand that lies as {forms}; a complete value is nobody's partial sum", self.b.loc)
        _, _, source, steps = min(paths, key=lambda p: p[:2])
        local = versions.forms[source]
        with self.b.for_op(value.op if value.op is not None else self.b.origin):  # type: ignore[arg-type]
            for step in steps:
                if step.after not in versions.forms:
                    versions.forms[step.after] = self._step(local, step)
                local = versions.forms[step.after]
        return local

    def _bytes(self, versions: Versions, source: Sharding, steps: list[Step]) -> int:
        total, here = 0, source
        for step in steps:
            if step.kind != "slice":
                total += step_bytes(self.mesh, here, step, versions.type.shape, 1)
            here = step.after
        return total

    def _step(self, local: Value, step: Step) -> Value:
        attrs = dict(step.attrs)
        if step.kind == "slice":
            start, _ = self.rank_values.window(attrs["size"], step.axes, attrs["grain"])
            size = self.mesh.local_size(attrs["size"], step.axes, attrs["grain"])
            return self.b.emit("dmlc.shard_slice", local, start, tag="slice", dim=attrs["dim"], size=size)
        tags = {"comm.all_reduce": "ar", "comm.all_gather": "ag", "comm.reduce_scatter": "rs", "comm.all_to_all": "a2a"}
        return self.b.op(step.kind, [local], attrs, delivered_types(step.kind, attrs, [local.tensor], self.mesh), tag=tags[step.kind]).result

    def mask(self, local: Value, value: Value, sharding: Sharding, dims: Sequence[int], identity: Any) -> Value:
        """`local` with the padding of `dims` replaced by the identity."""
        for d in dims:
            axes, n, grain = sharding.dims[d], value.shape[d], sharding.grain(d)
            if axes and not self.mesh.is_even(n, axes, grain):
                _, valid = self.rank_values.window(n, axes, grain)
                local = self.b.emit("dmlc.mask_pad", local, valid, tag="mask", dim=d, identity=identity)
        return local

    # -------------------------------------------------- ops

    def _op(self, op: Op) -> None:
        if op.regions:
            return self._region_op(op)
        if op.name == "dmlc.reshard":
            target = op.attrs["to"]
            self._bind(op.results[0], target, self.get(op.operands[0], target))
            return None
        place = Place.from_attr(op.attrs.get("dmlc.place"))
        if (why := illegal(self.mesh, op, place)) is not None:
            called = f" ({op.attrs['dmlc.name']})" if "dmlc.name" in op.attrs else ""
            raise DmlcError(f"'{op.name}'{called} cannot be placed so: {why}", op.loc)
        asked, given = states(self.mesh, op, place)
        operands = [self.get(v, s) for v, s in zip(op.operands, asked)]
        operands = [self._masked(op, i, local, asked[i]) for i, local in enumerate(operands)]
        types = [self.mesh.local_type(r.tensor, s) for r, s in zip(op.results, given)]
        chosen = strategy_of(op, place)
        if chosen is not None:
            made = list(chosen.emit(Environment(self, place.strategy[1], types), op, operands))  # type: ignore[index]
        else:
            made = list(self._local_op(op, place, operands, types, given).results)
        for result, sharding, local, type_ in zip(op.results, given, made, types, strict=True):
            if local.type != type_:
                raise DmlcError(f"'{op.name}' gives {local.type} on a rank where {type_} is due", op.loc)
            self._bind(result, sharding, local)
        return None

    def _bind(self, result: OpResult | BlockArgument, sharding: Sharding, local: Value) -> None:
        self.versions[result] = Versions(result.tensor, sharding, local)

    def _masked(self, op: Op, i: int, local: Value, sharding: Sharding) -> Value:
        rule, value = rule_of(op), op.operands[i]
        if i in index_of(op):
            return self.mask(local, value, sharding, range(value.tensor.rank), 0)
        for d, factors in enumerate(rule.operands[i]):
            reduced = [f for f in factors if f in rule.reduced]
            if reduced:
                local = self.mask(local, value, sharding, [d], rule.combiner(reduced[0]))
        return local

    def _local_op(self, op: Op, place: Place, operands: list[Value], types: list[TensorType], given: list[Sharding]) -> Op:
        d = definition(op)
        attrs = {k: v for k, v in op.attrs.items() if k != "dmlc.place"}
        if d.local is not None:
            attrs.update(d.local(Environment(self, (), types), op, dict(place.factors)))
        if d.starts and any(given[0].dims):
            operands = self._started(op, operands, given[0])
        return self.b.op(op.name, operands, attrs, types)

    def _started(self, op: Op, operands: list[Value], sharding: Sharding) -> list[Value]:
        """A source's operands with where this rank's part begins: one start a dim appended (random), or the start value moved along the op's `dim` (iota)."""
        shape = op.results[0].shape
        if definition(op).starts == "all":
            return operands + [self.rank_values.window(n, axes, sharding.grain(d))[0] for d, (n, axes) in enumerate(zip(shape, sharding.dims))]
        d, step = attribute(op, "dim"), attribute(op, "step")
        if not sharding.dims[d]:
            return operands
        start = self.rank_values.window(shape[d], sharding.dims[d], sharding.grain(d))[0]
        if step != 1:
            start = self.b.emit("dmlc.mul", start, self.rank_values.constant(step))
        return [self.b.emit("dmlc.add", operands[0], start) if operands else start]

    def _region_op(self, op: Op) -> None:
        """Ops with regions run whole on every rank: operands and captured values are replicated."""
        mapping: dict[Value, Value] = {}
        inside = {r for o in op.walk() for r in o.results} | {a for o in op.walk() for g in o.regions for blk in g.blocks for a in blk.args}
        for nested in op.walk():
            nested.attrs.pop("dmlc.place", None)
            for v in nested.operands:
                if v not in inside and v not in mapping:
                    mapping[v] = self.get(v, self.mesh.replicated(v.tensor.rank))
        self.b.insert(op.clone(mapping))
        for r in op.results:
            self._bind(r, self.mesh.replicated(r.tensor.rank), mapping[r])


