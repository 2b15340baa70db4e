"""`mask-elim`: drops a mask where the padding is proven to hold the identity already, or where it does not matter what it holds.

It does not matter for an operand of a sum of products (a weight gradient) whose other operand is zero there, if this one is finite:
one of the two masks is enough, and none where zeros reach the product by themselves. In a backward pass they could: it is linear in the
gradient it starts from. So where masks remain on gradients, the values these come from are masked instead, if that is less (the loss's
few numbers instead of every layer's). See `_pads` for what is known; arguments, slices and inputs relied on are marked `dmlc.pad`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dmlc.cost.model import type_bytes
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, BlockArgument, Function, Module, Op, Value
from dmlc.ir.sharding import Mesh
from dmlc.ops.base import index_of, linear_of, rule_of
from dmlc.passes._pads import Facts, Pad, Padding, Source, along, extent_of, identity_value, operand_pad
from dmlc.passmanager.base import Pass
from dmlc.passmanager.context import Context

Place = tuple[Value, int]
Uses = dict[Op, tuple[list[Op], frozenset[Source]]]


@dataclass(frozen=True)
class MaskElim(Pass):
    name = "mask-elim"
    numerics = "exact"
    requires = ("partitioned",)
    ensures = ("partitioned",)

    def run(self, module: Module, context: Context) -> bool:
        if "dmlc.spmd" not in module.attrs:
            return False
        main, mesh = module.main, Mesh.of(module)
        moved = mask_origins(main, mesh)
        dropped = drop(main, mesh)
        return moved or dropped


def drop(function: Function, mesh: Mesh) -> bool:
    """Drop every mask, or use of one, that is not needed."""
    known = Padding(function, mesh).run()
    changed = False
    for op in _masks(function):
        pad = known.get((op.operands[0], op.attrs["dim"]))
        if pad is not None and holds_identity(op, pad):
            _rely_on(pad.sources)
            op.replace([op.operands[0]])
            changed = True
    for mask, (users, sources) in unneeded_uses(function, known).items():
        _rely_on(sources)
        mask.results[0].replace_uses(mask.operands[0], users.__contains__)
        if not mask.results[0].users:
            mask.erase()
        changed = True
    return changed


def _masks(function: Function) -> list[Op]:
    return [op for op in function.ops() if op.name == "dmlc.mask_pad"]


def _rely_on(sources: Iterable[Source]) -> None:
    """Say in the text whose padding is not free: zeros (0), or finite numbers in a batch input."""
    for source in sources:
        source.attrs["dmlc.pad"] = "finite" if isinstance(source, BlockArgument) and "dmlc.micro" in source.attrs else 0


def holds_identity(mask: Op, pad: Pad) -> bool:
    """Whether the padding that a mask fills holds its identity already."""
    same_place = pad.extent is None or pad.extent == extent_of(mask.operands[1])
    return same_place and pad.value is not None and pad.value == identity_value(mask.attrs["identity"], mask.operands[0].dtype)


def unneeded_uses(function: Function, known: Facts) -> Uses:
    """Mask -> users that need it not, with what that relies on; large masks first, so that the smaller of two that serve one product stays.

    `known` is brought up to date while masks are chosen; the program is not.
    """
    found: Uses = {}
    replaced: dict[tuple[Op, int], Value] = {}
    for mask in sorted(_masks(function), key=lambda op: -type_bytes(op.results[0].type)):
        pad = known.get((mask.operands[0], mask.attrs["dim"]))
        if pad is None or not pad.is_finite or identity_value(mask.attrs["identity"], mask.operands[0].dtype) != 0.0:
            continue
        if pad.extent is not None and pad.extent != extent_of(mask.operands[1]):
            continue
        for user in dict.fromkeys(mask.results[0].users):
            relied = _covered(user, mask, pad, known, replaced)
            if relied is not None:
                users, sources = found.get(mask, ([], frozenset()))
                found[mask] = ([*users, user], sources | relied)
                replaced.update({(user, i): mask.operands[0] for i, v in enumerate(user.operands) if v is mask.results[0]})
    return found


def _covered(user: Op, mask: Op, pad: Pad, known: Facts, replaced: dict[tuple[Op, int], Value]) -> frozenset[Source] | None:
    """What it relies on that `user`, which sums over the masked dim, adds zeros there without the mask; None when it might not."""
    at = [i for i, v in enumerate(user.operands) if v is mask.results[0]]
    if user.dialect != "dmlc" or user.regions or len(at) != 1 or at[0] in index_of(user):
        return None
    rule = rule_of(user)
    factors = rule.operands[at[0]][mask.attrs["dim"]]
    if len(factors) != 1 or factors[0] not in rule.reduced or rule.combiner(factors[0]) != "sum":
        return None
    extent = extent_of(mask.operands[1])
    for members in linear_of(user):
        if at[0] in members:
            continue
        pads = [_pad_now(user, i, factors[0], known, replaced) for i in sorted(members)]
        if pads and all(p is not None and p.is_zero and p.extent in (None, extent) for p in pads):
            return frozenset(s for p in [pad, *pads] if p is not None for s in p.sources)
    return None


def _pad_now(op: Op, i: int, factor: str, known: Facts, replaced: dict[tuple[Op, int], Value]) -> Pad | None:
    """`operand_pad` of an operand whose mask may be gone already."""
    if (op, i) not in replaced:
        return operand_pad(op, i, factor, known)
    (dim,) = (d for d, factors in enumerate(rule_of(op).operands[i]) if factors == (factor,))
    return known.get((replaced[op, i], dim))


# ---------------------------------------------------------------- masks where gradients begin


def mask_origins(function: Function, mesh: Mesh) -> bool:
    """Mask the values that masked gradients come from, where that is less than what masks are dropped for it."""
    known = Padding(function, mesh).run()
    origins = _origins(function, known)
    if not origins:
        return False
    assumed = {place: Pad(0.0, extent_of(valid), frozenset([place]), 1) for place, valid in origins.items()}
    facts = Padding(function, mesh, assumed).run()
    used, saved = _gain(function, known, facts)
    wanted = {place: valid for place, valid in origins.items() if place in used}
    if sum(type_bytes(value.type) for value, _ in wanted) >= saved:
        return False
    ids = IdPool(function)
    for (value, dim), valid in wanted.items():
        _mask(value, dim, valid, ids)
    return bool(wanted)


def _gain(function: Function, known: Facts, facts: Facts) -> tuple[set[Source], int]:
    """What the masks that `facts` make superfluous, and `known` does not, rely on, and their bytes."""
    used: set[Source] = set()
    before = set(unneeded_uses(function, known))
    saved = 0
    later = unneeded_uses(function, facts)
    for op in _masks(function):
        here = (op.operands[0], op.attrs["dim"])
        if here in known and holds_identity(op, known[here]):
            continue
        if here in facts and holds_identity(op, facts[here]):
            used |= facts[here].sources
        elif op in later and op not in before:
            used |= later[op][1]
        else:
            continue
        saved += type_bytes(op.results[0].type)
    return used, saved


def _origins(function: Function, known: Facts) -> dict[Place, Value]:
    """Where the gradients that still need a mask begin: (value, dim) -> the number of valid elements."""
    found: dict[Place, Value] = {}
    searches: dict[tuple[Block | None, tuple], _Beginnings] = {}
    for op in _masks(function):
        here, extent = (op.operands[0], op.attrs["dim"]), extent_of(op.operands[1])
        if (op.block, extent) not in searches:
            searches[op.block, extent] = _Beginnings(op.block, extent, known)
        search = searches[op.block, extent]
        needed = here not in known or not holds_identity(op, known[here])
        if needed and identity_value(op.attrs["identity"], op.operands[0].dtype) == 0.0 and search.is_gradient(op.operands[0]):
            found.update((place, op.operands[1]) for place in search.of(here))
    return found


def _read_in_regions(block: Block | None) -> set[Op]:
    """Ops of a block whose results, or what is made of them, a loop or branch reads."""
    found: set[Op] = set()
    for op in reversed(block.ops if block is not None else ()):
        if any(u.regions or u.block is not block or u in found for r in op.results for u in r.users):
            found.add(op)
    return found


class _Beginnings:
    """The cheapest values to mask so that a gradient is zero past `extent`: itself, or gradients it is linear in, as far back as they are
    no larger. What is masked for one gradient costs nothing for the next. Values that loops read too are left alone: there another
    number of elements is valid."""

    def __init__(self, block: Block | None, extent: tuple, known: Facts):
        self.block, self.extent, self.known = block, extent, known
        self.shared = _read_in_regions(block)
        self.best: dict[Place, frozenset[Place]] = {}
        self.chosen: set[Place] = set()

    def is_gradient(self, value: Value) -> bool:
        return value.op is not None and "dmlc.of" in value.op.attrs and value.op.block is self.block and value.op not in self.shared

    def of(self, place: Place) -> frozenset[Place]:
        """Operands are solved first, without recursion: a backward pass is deep."""
        todo = [place]
        while todo:
            here = todo[-1]
            ways = [] if here in self.best else list(self._ways(*here))
            missing = [p for way in ways for p in way if p not in self.best]
            todo += missing
            if not missing:
                todo.pop()
                if here not in self.best:
                    sets = [frozenset(p for place in way for p in self.best[place]) for way in ways]
                    self.best[here] = min([*sets, frozenset([here])], key=self._bytes)
        self.chosen |= self.best[place]
        return self.best[place]

    def _bytes(self, places: frozenset[Place]) -> int:
        return sum(type_bytes(value.type) for value, _ in places - self.chosen)

    def _ways(self, value: Value, dim: int) -> Iterator[tuple[Place, ...]]:
        """Sets of gradients of which `value` is zero when they are."""
        op = value.op
        assert op is not None
        if op.regions or op.dialect != "dmlc" or op.name == "dmlc.mask_pad":
            return
        rule = rule_of(op)
        factors = rule.results[op.results.index(value)][dim]  # type: ignore[arg-type]
        for members in linear_of(op) if len(factors) == 1 and factors[0] not in rule.whole else ():
            places = tuple(dict.fromkeys((op.operands[i], d) for i in sorted(members) for d, f in enumerate(rule.operands[i]) if f == factors))
            if places and all(self.is_gradient(v) for v, _ in places):
                zeros = {place: Pad(0.0, self.extent, sign=1) for place in places}
                made = along(op, factors[0], ChainMap(zeros, self.known))
                if made is not None and made.is_zero:
                    yield places


def _mask(value: Value, dim: int, valid: Value, ids: IdPool) -> None:
    """All uses of `value` read it masked."""
    op = value.op
    assert op is not None
    _move_up(valid, op)
    users = set(value.users)
    with Builder.after(op, ids).for_op(op) as b:
        masked = b.emit("dmlc.mask_pad", value, valid, tag="mask", dim=dim, identity="sum")
    value.replace_uses(masked, users.__contains__)


def _move_up(valid: Value, before: Op) -> None:
    """Bring what `valid` is computed from before an op of its block."""
    made = valid.op
    block = before.block
    assert block is not None
    if made is None or made.block is not block:
        return
    position = {op: n for n, op in enumerate(block)}
    if position[made] < position[before]:
        return
    for operand in made.operands:
        _move_up(operand, before)
    block.insert_before(before, made.remove())
