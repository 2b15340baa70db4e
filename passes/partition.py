"""`partition`: the global program becomes one rank's program, with explicit collectives.

`dmlc.place` on each op says how it runs; the shardings of its operands and results follow. A value is brought into each sharding that
is asked of it once, by the steps `dmlc.cost.reshard` gives. Operands with a reduced factor are masked where a rank holds padding,
and so are operands used as indices. Everything that depends on the rank or the microbatch is a value: axis index, window, slice, mask.
A training step is made with the microbatches as one more axis; `passes/_loops.py` then turns that axis into loops.
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
from dmlc.passes._loops import SINK, form_loops
from dmlc.passes._rank_values import Environment, RankValues, batch_size
from dmlc.passes._region_split import RegionSplitter
from dmlc.passmanager.base import Pass
from dmlc.passmanager.context import Context
from dmlc.simulate.liveness import outside_values


@dataclass(frozen=True)
class Partition(Pass):
    """`peel`: take the last microbatch out of the loop where there is a data axis, so that gradients travel while it runs."""

    peel: bool = True
    name = "partition"
    numerics = "reordered"
    requires = ("global",)
    ensures = ("partitioned",)

    def run(self, module: Module, context: Context) -> bool:
        if "dmlc.spmd" in module.attrs or module.mesh_op is None:
            context.remark(module.main.op, "declined: " + ("the program is a rank's already" if "dmlc.spmd" in module.attrs else "the module has no mesh"))
            return False
        Partitioner(module, self.peel).run()
        module.attrs["dmlc.spmd"] = None
        return True


class Versions:
    """A global value's local forms, by sharding, in the order they were made."""

    def __init__(self, type_: TensorType, natural: Sharding, local: Value):
        self.type, self.natural = type_, natural
        self.forms: dict[Sharding, Value] = {natural: local}


class Partitioner:
    """Rebuilds the body of `main` op by op. `b` emits at the end of the new block on behalf of the op at hand."""

    def __init__(self, module: Module, peel: bool = True):
        self.module, self.mesh, self.peel = module, Mesh.of(module), peel
        self.function = module.main
        self.old = self.function.body
        self.block = Block()
        self.ids = IdPool(self.function)
        self.b = Builder(self.block, None, self.ids)
        self.rank_values = RankValues(self.mesh, self.block, self.ids)
        self.special = {"dmlc.reshard": self._reshard, "dmlc.barrier": self._barrier, "dmlc.gradient": self._gradient, "dmlc.add_n": self._add_n}
        self.versions: dict[Value, Versions] = {}

    def run(self) -> None:
        self._arguments()
        if self.mesh.axes.sequential:
            self.rank_values.microbatches(batch_size(self.function, self.mesh))
        for op in self.old:
            with self.b.for_op(op):
                self._return(op) if op is self.old.last else self._op(op)
        region = self.function.op.region
        for op in region.op.walk() if region.op else ():
            op.operands = ()
        region.blocks = []
        region.add_block(self._looped() if self.mesh.axes.sequential else self.block)

    def _looped(self) -> Block:
        peel = self.peel and self.mesh.sizes.get("data", 1) > 1 and self.module.attrs.get("dmlc.mode") == "train"
        return form_loops(self.block, self.mesh, self.ids, self.rank_values.count, peel)

    # -------------------------------------------------- signature

    def _arguments(self) -> None:
        for arg in self.old.args:
            attrs = dict(arg.attrs)
            key = "dmlc.sharding" if attrs.get("dmlc.role", "input") == "input" else "dmlc.storage"
            sharding = attrs.get(key) or self.mesh.replicated(arg.tensor.rank)
            if key == "dmlc.storage":
                sharding = self._at_rest(arg, sharding)
            local = self.mesh.local_type(arg.tensor, sharding)
            attrs[key] = sharding
            if self._is_batched(arg, sharding):
                self.versions[arg] = Versions(arg.tensor, sharding, self._batch_argument(arg, attrs, sharding, local))
                continue
            if local != arg.type:
                attrs["dmlc.global"] = arg.shape
            new = self.block.add_arg(local, arg.name, attrs)
            self.versions[arg] = Versions(arg.tensor, sharding, new)

    def _at_rest(self, arg: BlockArgument, sharding: Sharding) -> Sharding:
        """Where a value rests between steps: whole along dims that microbatches split (a table with a row for each sample); each takes its slice."""
        dims = [() if set(d) & set(self.mesh.axes.sequential) else d for d in sharding.dims]
        return self.mesh.sharding(dims, dict(sharding.unreduced), [sharding.grain(d) for d in range(arg.tensor.rank)], arg.shape)

    def _is_batched(self, arg: BlockArgument, sharding: Sharding) -> bool:
        """Whether an input comes by microbatches: where the batch cannot be cut, as the only one."""
        if self.mesh.axes.sequential:
            return any(a in self.mesh.axes.sequential for d in sharding.dims for a in d)
        step = self.module.attrs.get("dmlc.mode") is not None
        return step and arg.attrs.get("dmlc.role", "input") == "input" and arg.attrs.get("dmlc.batch_dim") is not None

    def _batch_argument(self, arg: BlockArgument, attrs: dict[str, Any], sharding: Sharding, local: TensorType) -> Value:
        """An input comes as [microbatches, ...], each with this rank's rows; the program takes one of them at a time."""
        axes = self.mesh.axes.sequential
        dims = ((), *(self.mesh.devices_of(d) for d in sharding.dims))
        whole = tuple(n * self.mesh.extent(self.mesh.devices_of(d)) if set(d) & set(axes) else g for n, g, d in zip(local.shape, arg.shape, sharding.dims))
        attrs |= {"dmlc.sharding": Sharding(sharding.mesh, dims), "dmlc.global": (self.mesh.extent(axes), *whole), "dmlc.micro": None}
        value: Value = self.block.add_arg(local.with_shape((self.mesh.extent(axes), *local.shape)), arg.name, attrs)
        if axes:
            attrs_of = {"dim": 0, "size": 1, "dmlc.id": self.ids.fresh(f"{arg.name}.slice")}
            value = self.b.op("dmlc.shard_slice", [value, self.rank_values.index(axes[0])], attrs_of).result
        return self.b.op("dmlc.reshape", [value], {"dmlc.id": self.ids.fresh(f"{arg.name}.microbatch")}, [local]).result

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
        paths = [
            (self._bytes(versions, source, steps), n, source, steps)
            for n, source in enumerate(versions.forms)
            if (steps := reshard(self.mesh, source, target, versions.type.shape)) is not None
        ]
        if not paths:
            forms = f"{attribute_text(versions.natural)} cannot become {attribute_text(target)}"
            raise DmlcError(f"an operand that lies as {forms}; a complete value is nobody's partial sum", self.b.loc)
        _, _, source, steps = min(paths, key=lambda p: p[:2])
        local = versions.forms[source]
        with self.b.for_op(value.op if value.op is not None else self.b.origin):  # type: ignore[arg-type]
            for step in steps:
                if step.after not in versions.forms:
                    versions.forms[step.after] = self._step(local, step)
                    if step.kind == "comm.all_gather" and self.mesh.axes.sequential and _regathered(value):
                        versions.forms[step.after].op.attrs[SINK] = None  # type: ignore[union-attr]
                local = versions.forms[step.after]
        return local

    def _bytes(self, versions: Versions, source: Sharding, steps: list[Step]) -> int:
        total, here = 0, source
        for step in steps:
            if not step.is_local(self.mesh):
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
            if axes and (self.rank_values.is_batch(axes) or not self.mesh.is_even(n, axes, grain)):
                _, valid = self.rank_values.window(n, axes, grain)
                local = self.b.emit("dmlc.mask_pad", local, valid, tag="mask", dim=d, identity=identity)
        return local

    # -------------------------------------------------- ops

    def _op(self, op: Op) -> None:
        if op.regions and "dmlc.place" not in op.attrs:
            return self._whole_region(op)
        if op.name in self.special:
            return self.special[op.name](op)
        place = Place.from_attr(op.attrs.get("dmlc.place"))
        self._place_op(op, place)

    def _place_op(self, op: Op, place: Place) -> None:
        if (why := illegal(self.mesh, op, place)) is not None:
            called = f" ({op.attrs['dmlc.name']})" if "dmlc.name" in op.attrs else ""
            raise DmlcError(f"'{op.name}'{called} cannot be placed so: {why}", op.loc)
        asked, given = states(self.mesh, op, place)
        operands = [self.get(v, s) for v, s in zip(op.operands, asked)]
        operands = [self._masked(op, i, local, asked[i]) for i, local in enumerate(operands)]
        types = [self.mesh.local_type(r.tensor, s) for r, s in zip(op.results, given)]
        chosen = strategy_of(op, place)
        if op.regions:
            made = list(RegionSplitter(self, op, place).made(operands, types).results)
        elif chosen is not None:
            made = list(chosen.emit(Environment(self.b, self.rank_values, place.strategy[1], types), op, operands))  # type: ignore[index]
        else:
            made = list(self._local_op(op, place, operands, types, given).results)
        for result, sharding, local, type_ in zip(op.results, given, made, types, strict=True):
            if local.type != type_:
                raise DmlcError(f"'{op.name}' gives {local.type} on a rank where {type_} is due", op.loc)
            self._bind(result, sharding, local)
        return None

    # -------------------------------------------------- ops with a way of their own

    def _reshard(self, op: Op) -> None:
        self._bind(op.results[0], op.attrs["to"], self.get(op.operands[0], op.attrs["to"]))

    def _barrier(self, op: Op) -> None:
        """The value as it lies, held back until the trigger is there in some form."""
        value, trigger = op.operands
        natural = self.versions[value].natural
        ready = next(iter(self.versions[trigger].forms.values()))
        attrs = dict(op.attrs)
        self._bind(op.results[0], natural, self.b.op(op.name, [self.get(value, natural), ready], attrs).result)

    def _gradient(self, op: Op) -> None:
        """Added up over microbatches as the accumulator lies, then brought to where the update wants it."""
        value, natural = op.operands[0], self.versions[op.operands[0]].natural
        complete = Sharding(natural.mesh, natural.dims, (), natural.grains)
        self.get(value, op.attrs.get("dmlc.accumulate") or natural)
        storage = op.attrs.get("dmlc.storage") or complete
        self._bind(op.results[0], storage, self.get(value, storage))

    def _add_n(self, op: Op) -> None:
        """Scalars unreduced over the same axes are added first; then one reduction an axis, inner axes first."""
        sums: dict[tuple[str, ...], list[Value]] = {}
        for v in op.operands:
            natural = self.versions[v].natural
            done = self.mesh.sharding((), {a: c for a, c in natural.unreduced if a not in self.mesh.axes.sequential})
            sums.setdefault(tuple(a for a, _ in done.unreduced), []).append(self.get(v, done))
        while any(sums):
            waiting = [axes for axes in sums if axes]
            over = waiting[0] if len(waiting) == 1 else next((a,) for a in reversed(self.mesh.order) if any(a in axes for axes in waiting))
            keys = [axes for axes in waiting if over[0] in axes]
            totals = [self._total(op, sums.pop(k)) for k in keys]
            made = self.b.op("comm.all_reduce", totals, {"axes": over, "combiner": "sum"}, [t.type for t in totals], tag="ar").results
            for k, r in zip(keys, made):
                sums.setdefault(tuple(a for a in k if a not in over), []).append(r)
        self._bind(op.results[0], self.mesh.replicated(0), self._total(op, sums[()]))

    def _total(self, op: Op, values: list[Value]) -> Value:
        return values[0] if len(values) == 1 else self.b.op("dmlc.add_n", values, {"dmlc.phase": "update"}, tag="sum").result

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
            attrs.update(d.local(Environment(self.b, self.rank_values, (), types), op, dict(place.factors)))
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

    def _whole_region(self, op: Op) -> None:
        """An op with regions and without a place runs whole on every rank: operands and captured values are replicated."""
        mapping: dict[Value, Value] = {}
        for nested in op.walk():
            nested.attrs.pop("dmlc.place", None)
        for v in outside_values(op):
            mapping[v] = self.get(v, self.mesh.replicated(v.tensor.rank))
        self.b.insert(op.clone(mapping))
        for r in op.results:
            self._bind(r, self.mesh.replicated(r.tensor.rank), mapping[r])


def _regathered(value: Value) -> bool:
    """Whether a parameter (or what a barrier or a cast makes of it) is gathered anew in every microbatch."""
    while value.op is not None and value.op.name in ("dmlc.barrier", "dmlc.cast"):
        value = value.op.operands[0]
    return isinstance(value, BlockArgument) and value.attrs.get("dmlc.regather") == "per-microbatch"
