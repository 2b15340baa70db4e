"""Every decision about a program, in one immutable value, and its text: a handful of attributes and the order of the ops.

    places      dmlc.place       on ops         factor -> mesh axes (or a strategy)
    storage     dmlc.storage     on arguments   where the value rests between steps
    stage       dmlc.stage       on ops         pipeline stage
    complete    dmlc.complete    on the op after which the named ops' unreduced values are reduced
    precision   dmlc.precision   on ops
    recompute   dmlc.remat       on ops
    prefetch    dmlc.prefetch    on ops         the op whose result lets a barrier open
    regather    dmlc.regather    on arguments
    groups      dmlc.group       on ops         number of the fused group
    buckets     dmlc.bucket      on collectives number of the bucket
    chunks      dmlc.chunks      on ops         how many pieces
    layout      dmlc.layout      on ops         order of the dims in memory
    order       the ops' order in each region
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, Function, Module, Op

Id = str
Map = AttrDict

OP_MAPS = {
    "places": "dmlc.place", "stage": "dmlc.stage", "precision": "dmlc.precision",
    "prefetch": "dmlc.prefetch", "chunks": "dmlc.chunks", "layout": "dmlc.layout",
}  # fmt: skip
ARGUMENT_MAPS = {"storage": "dmlc.storage", "regather": "dmlc.regather"}
SETS = {"groups": "dmlc.group", "buckets": "dmlc.bucket"}
NOT_ORDERED = TERMINATORS | {"comm.wait"}


@dataclass(frozen=True)
class Choice:
    """What every `decide` returns and every `apply` takes; keys are `dmlc.id`s, of arguments their names, of regions `region_id`s."""

    places: Map = field(default_factory=Map)
    storage: Map = field(default_factory=Map)
    stage: Map = field(default_factory=Map)
    complete: Map = field(default_factory=Map)
    precision: Map = field(default_factory=Map)
    recompute: frozenset[Id] = frozenset()
    prefetch: Map = field(default_factory=Map)
    regather: Map = field(default_factory=Map)
    groups: tuple[tuple[Id, ...], ...] = ()
    buckets: tuple[tuple[Id, ...], ...] = ()
    chunks: Map = field(default_factory=Map)
    layout: Map = field(default_factory=Map)
    order: Map = field(default_factory=Map)

    def with_(self, **changes: Any) -> Choice:
        """A copy with other fields; plain dictionaries become maps."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values.update({k: Map(v) if isinstance(v, Mapping) and not isinstance(v, Map) else v for k, v in changes.items()})
        return Choice(**values)

    # -------------------------------------------------- text

    @classmethod
    def of(cls, source: Module | Function, order: bool = True) -> Choice:
        """The decisions that stand in the text of a module's main function (or of `source`)."""
        function = source.main if isinstance(source, Module) else source
        ops = [op for op in function.ops() if op.id]
        fields: dict[str, Any] = {name: Map((op.id, op.attrs[key]) for op in ops if key in op.attrs) for name, key in OP_MAPS.items()}
        for name, key in ARGUMENT_MAPS.items():
            fields[name] = Map((a.name, a.attrs[key]) for a in function.args if key in a.attrs)
        for name, key in SETS.items():
            fields[name] = _sets(ops, key)
        fields["complete"] = Map((v, op.id) for op in ops for v in _names(op.attrs.get("dmlc.complete", ())))
        fields["recompute"] = frozenset(op.id for op in ops if op.attrs.get("dmlc.remat"))
        if order:
            fields["order"] = Map((key, tuple(ordered_ids(block))) for key, block in regions_of(function))
        return cls(**fields)

    def annotate(self, target: Module | Function) -> None:
        """Write all decisions but the order (that is the ops' own, see `schedule`) into the text, and remove what is not decided."""
        function = target.main if isinstance(target, Module) else target
        ops = [op for op in function.ops() if op.id]
        for name, key in OP_MAPS.items():
            _write(((op.id, op.attrs) for op in ops), key, getattr(self, name))
        for name, key in ARGUMENT_MAPS.items():
            _write(((a.name, a.attrs) for a in function.args), key, getattr(self, name))
        for name, key in SETS.items():
            number = {member: i for i, members in enumerate(getattr(self, name)) for member in members}
            _write(((op.id, op.attrs) for op in ops), key, number)
        completed: dict[Id, tuple[Id, ...]] = defaultdict(tuple)
        for value, after in self.complete.items():
            completed[after] += (value,)
        _write(((op.id, op.attrs) for op in ops), "dmlc.complete", completed)
        _write(((op.id, op.attrs) for op in ops), "dmlc.remat", dict.fromkeys(self.recompute, True))


def _names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _sets(ops: list[Op], key: str) -> tuple[tuple[Id, ...], ...]:
    """Ids that carry the same number under `key`, sets by their first member."""
    members: dict[Any, list[Id]] = {}
    for op in ops:
        if key in op.attrs:
            members.setdefault(op.attrs[key], []).append(op.id)
    return tuple(tuple(ids) for ids in members.values())


def _write(holders: Any, key: str, values: Mapping[str, Any]) -> None:
    for name, attrs in holders:
        if name in values:
            attrs[key] = values[name]
        else:
            attrs.pop(key, None)


# ---------------------------------------------------------------- regions


def region_id(op: Op, index: int) -> str:
    """`12/0` for region 0 of op `12`; a function's body has the function's name."""
    return op.attrs["sym_name"] if op.name == "func.func" else f"{op.id}/{index}"


def regions_of(function: Function) -> Iterator[tuple[str, Block]]:
    """Every block that a schedule orders, outermost first: the body, and the bodies of loops and branches; not the insides of kernels."""
    for op in [function.op, *function.ops()]:
        if op.name.startswith("kernel."):
            continue
        for index, region in enumerate(op.regions):
            for block in region.blocks:
                if not _in_kernel(op):
                    yield region_id(op, index), block


def _in_kernel(op: Op) -> bool:
    parent: Op | None = op
    while parent is not None:
        if parent.name == "kernel.fused":
            return True
        parent = parent.parent
    return False


def ordered_ids(block: Block) -> list[Id]:
    """Ids of the units of a block as it stands: no waits, no terminator."""
    return [op.id for op in block if op.name not in NOT_ORDERED]
