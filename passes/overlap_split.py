"""overlap-split: a matrix product and the collective beside it become chunks, so that the communication of one chunk runs during the
product of another.

A candidate is a collective with the product that feeds it, or the products it feeds, and what lies between; a wide candidate also
takes the row-by-row ops and products around. Repeated layers are decided once. A decision is kept when the simulated program gets
shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dmlc.cost import CostModel
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Block, Function, Module, Op
from dmlc.ops.base import signature
from dmlc.ops.comm import is_collective, is_start
from dmlc.passes import _chunking
from dmlc.passes._chunking import find_cut, is_contraction, is_convex, is_splittable
from dmlc.passmanager import Context, Pass
from dmlc.simulate import Choice, UnitGraph
from dmlc.simulate.choice import regions_of
from dmlc.simulate.ordering import price

apply = _chunking.apply
PEELED = "#peel"  # what partition adds to ids of the last iteration


@dataclass(frozen=True)
class OverlapSplit(Pass):
    """`chunks` fixes the number of pieces (0: the best of 2, 4, 8); `force` splits even if the simulation sees no gain."""

    name = "overlap-split"
    numerics = "reordered"
    requires = ("partitioned",)

    chunks: int = 0
    force: bool = False

    def run(self, module: Module, context: Context) -> bool:
        cost, choice = CostModel.of(module), Choice.of(module, order=False)
        looped: set[str] = set()
        for _, block in reversed(list(regions_of(module.main))):  # loops first: a peeled copy is cut as the loop is
            kinds = [kind for kind in candidates(block) if not any(_original(op) in looped for op in kind[0][0])]
            choice = decide(UnitGraph(block, cost), _as_in_loops(block, choice), cost, self.chunks, self.force, kinds)
            looped.update(op.id for op in block)
            for kind in kinds:
                first = kind[0][0]
                if not any(op.id in choice.chunks for op in first):
                    context.remark(next(op for op in first if is_collective(op)), _why_not(first))
        return apply(module, choice)


def _original(op: Op) -> str | None:
    """The id in the loop of an op of its peeled last iteration."""
    return op.id.removesuffix(PEELED) if op.id.endswith(PEELED) else None


def _as_in_loops(block: Block, choice: Choice) -> Choice:
    """`choice` with the peeled copies of what it cuts in loops cut alike, if they can be."""
    same = {op.id: choice.chunks[original] for op in block if (original := _original(op)) in choice.chunks and op.id not in choice.chunks}
    found = choice.with_(chunks={**choice.chunks, **same})
    return found if same and all(_chunking.is_cuttable(block, ops, count) for ops, count in _chunking.pieces(block, AttrDict(same))) else choice


def _why_not(ops: Sequence[Op]) -> str:
    if find_cut(ops, 2) is None:
        return "not split: no dim of the product is free of the collective's own and large enough"
    return "not split: chunks would take longer than what they hide"


# ---------------------------------------------------------------- candidates

Piece = tuple[Op, ...]
Kinds = list[list[tuple[Piece, Piece]]]


def candidates(block: Block) -> Kinds:
    """(narrow, wide) pieces around each collective, alike ones together, in program order."""
    kinds: dict[tuple, list[tuple[Piece, Piece]]] = {}
    number = _chunking.numbered(block)
    for op in block:
        if not is_collective(op) or is_start(op) or len(op.operands) != 1:
            continue
        narrow = _narrow(op)
        if narrow is not None:
            ordered = tuple(sorted(narrow, key=number.__getitem__))
            wide = tuple(sorted(_widened(ordered, number), key=number.__getitem__))
            kinds.setdefault((_signature(ordered), _signature(wide)), []).append((ordered, wide))
    return list(kinds.values())


def _signature(ops: Piece) -> tuple:
    """Equal for pieces of the same shape in every respect."""
    return tuple(map(signature, ops))


def _narrow(collective: Op) -> list[Op] | None:
    """The collective with the product that feeds it, else with the products it feeds; None without one."""
    chain = [collective]
    while (op := chain[-1].operands[0].op) is not None and op.block is collective.block and op.results[0].users == [chain[-1]] and is_splittable(op):
        chain.append(op)
        if is_contraction(op):
            return chain
        if is_collective(op) or len(op.operands) != 1:
            break
    users = collective.results[0].users
    if users and all(is_contraction(u) and is_splittable(u) and u.block is collective.block for u in users):
        return [collective, *users]
    return None


def _widened(ops: Piece, number: dict[Op, int]) -> list[Op]:
    """The piece with neighbours that can be cut alike: producers whose only users are inside, and all users of what leaves it.
    Growth stops at products and collectives (they are taken, nothing beyond them)."""
    members = dict.fromkeys(ops)
    for _ in range(16):
        for group in _growth(members):
            grown = sorted([*members, *group], key=number.__getitem__)
            if find_cut(grown, 2) is not None and is_convex(grown, number):
                members = dict.fromkeys(grown)
                break
        else:
            break
    return list(members)


def _growth(members: dict[Op, None]) -> Iterator[list[Op]]:
    """Sets of ops to add, one after the other: a producer, or all outside readers of a value."""
    inner = [op for op in members if not _is_end(op, members)]
    for op in inner:
        for maker in dict.fromkeys(v.op for v in op.operands if v.op is not None and v.op not in members):
            if _may_join(maker, op) and all(u in members for r in maker.results for u in r.users):
                yield [maker]
    for op in inner:
        for value in op.results:
            outside = [u for u in value.users if u not in members]
            if outside and all(_may_join(u, op) for u in outside):
                yield outside


def _may_join(op: Op, neighbour: Op) -> bool:
    return op.block is neighbour.block and is_splittable(op) and not is_collective(op)


def _is_end(op: Op, members: dict[Op, None]) -> bool:
    """Whether growth stops at `op`: a product that was added."""
    return is_contraction(op) and not any(is_collective(n) for n in _chunking._neighbours(op) if n in members)


# ---------------------------------------------------------------- decision


def decide(graph: UnitGraph, choice: Choice, cost: CostModel, chunks: int = 0, force: bool = False, kinds: Kinds | None = None) -> Choice:
    """Adds numbers of chunks for the pieces (`candidates` of the block when left out) that shorten the program when cut.

    Two ways compete: kind by kind, each cut narrowly or widely; and the whole program around the first candidate cut along the batch,
    so that one half computes while the other communicates. A way must save a hundredth of the time, the whole three.
    """
    counts = (chunks,) if chunks else (2, 4, 8)
    kinds = [k for k in (candidates(graph.block) if kinds is None else kinds) if force or _may_gain(k[0], graph, cost)]
    kinds = [k for k in kinds if not any(op.id in choice.chunks for _, wide in k for op in wide)]
    if not kinds:
        return choice
    start = price(graph.units())
    best, time = choice, start
    for kind in kinds:
        options = [option for k in counts for option in _options(kind, k, best)]
        found, shorter = _best(graph.block, options, cost)
        if found is not None and (shorter < time - start // 100 or force):
            best, time = found, shorter
    found, shorter = _best(graph.block, list(_whole(graph.block, kinds[0][0][0], counts[:2], choice)), cost)
    return found if found is not None and shorter < time - start * 3 // 100 else best


def _best(block: Block, options: Sequence[Choice], cost: CostModel) -> tuple[Choice | None, int]:
    """The option with the least simulated time, the first of equals."""
    timed = [(time, i) for i, option in enumerate(options) if (time := trial(block, option, cost)) is not None]
    return (options[min(timed)[1]], min(timed)[0]) if timed else (None, 0)


def _whole(block: Block, piece: Piece, counts: Sequence[int], choice: Choice) -> Iterator[Choice]:
    """`choice` with everything that can be cut together with the piece's product cut."""
    members = _chunking.spread(block, next(op for op in piece if is_contraction(op)))
    if sum(map(is_collective, members)) > 1:
        for count in counts:
            yield choice.with_(chunks={**choice.chunks, **{op.id: count for op in members}})


def _options(kind: Sequence[tuple[Piece, Piece]], count: int, choice: Choice) -> Iterator[Choice]:
    """`choice` with all pieces of a kind cut narrowly, and with all cut widely."""
    for pieces in zip(*kind):
        marked = dict(choice.chunks)
        for piece in pieces:
            marked.update({op.id: count for op in piece})
        yield choice.with_(chunks=marked)


def _may_gain(pair: tuple[Piece, Piece], graph: UnitGraph, cost: CostModel) -> bool:
    """Whether two chunks could hide more than the second collective's start-up and the second kernels' launches cost."""
    _, wide = pair
    collectives = [op for op in wide if is_collective(op)]
    products = [op for op in wide if is_contraction(op)]
    hidden = min(sum(cost.op(op).time for op in collectives), sum(cost.op(op).time for op in wide if op not in collectives)) // 2
    startup = sum(cost.startup(op.name.split(".")[1], op.attrs["axes"], graph.mesh) for op in collectives)
    return hidden > startup + len(products) * cost.cluster.device.launch


def trial(block: Block, choice: Choice, cost: CostModel) -> int | None:
    """Simulated time of the block's module when `choice` is applied to a copy; None when it cannot be."""
    from dmlc.ir.location import DmlcError

    copy = copy_of(block)
    try:
        apply(copy, choice)
    except DmlcError:
        return None
    return price(UnitGraph(copy, cost).units())


def copy_of(block: Block) -> Block:
    """The same block in a copy of its function, in a module with the same mesh."""
    function = block.terminator.function
    assert function is not None and function.parent is not None
    module = Module()
    mesh = Module(function.parent).mesh_op
    if mesh is not None:
        module.body.append(mesh.clone())
    copy = module.body.append(function.clone({}))
    blocks = zip(regions_of(Function(function)), regions_of(Function(copy)))
    return next(after for (_, before), (_, after) in blocks if before is block)
