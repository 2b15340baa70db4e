"""recompute: the backward pass makes values of the forward pass again where keeping them does not fit.

Before: every value that the backward pass reads lives from the forward pass on.
After: of chosen segments only what crosses their borders does; the rest is cloned (`12` -> `12#re`) behind `dmlc.barrier`s right before its
use. Segments are chosen against the simulated peak under the memory a device may use: adding up what each one saves misjudges, since the
last segment, whose backward pass begins at the peak, saves nothing. Random ops keep their stream, so that a mask repeats.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dmlc.cost import CostModel
from dmlc.ir.core import Function, Module, Op
from dmlc.passes._clones import Rewriting, is_clonable
from dmlc.passes._placed import Memory, MemoryModel, Placed
from dmlc.passes._regather import regathered
from dmlc.passes._segments import Step
from dmlc.passmanager import Context, Pass
from dmlc.simulate import Choice

EXACT = 6  # sets of which every subset is simulated
TRIALS = 12  # segments simulated before one is taken
WIDEST = 8  # most segments that are recomputed as one


@dataclass(frozen=True)
class Recompute(Pass):
    """`dmlc.train.recompute` is none, auto (only what must be to fit) or all; ops marked `dmlc.remat` in the text are recomputed instead.
    The limit is `dmlc.request.memory`, else the device's."""

    name = "recompute"
    numerics = "exact"
    requires = ("global",)

    def run(self, module: Module, context: Context) -> bool:
        problem = Problem(module.main, CostModel.of(module))
        if not problem.step.backward:
            context.remark(module.main.op, "declined: the program has no backward pass")
            return False
        given = Choice.of(module, order=False)
        mode = module.attrs.get("dmlc.train", {}).get("recompute", "none")
        limit = module.attrs.get("dmlc.request", {}).get("memory", 0) or problem.cost.cluster.memory
        choice = given if given.recompute or mode == "none" else decide(problem, given, limit if mode == "auto" else 0)
        before, after = problem.memory(()), problem.memory(problem.named(choice))
        if choice.recompute:
            context.remark(module.main.op, f"{len(choice.recompute)} ops are recomputed: peak {before.peak} -> {after.peak} bytes (simulated)")
        if mode == "auto" and after.peak > limit:
            context.remark(module.main.op, f"needs {after.peak} bytes (simulated), {after.peak - limit} more than a device may use")
        return apply(module, choice, problem)


@dataclass
class Problem:
    """A step function and what recomputing parts of it costs."""

    function: Function
    cost: CostModel
    step: Step = field(init=False)
    placed: Placed = field(init=False)
    model: MemoryModel = field(init=False)

    def __post_init__(self) -> None:
        self.placed = Placed(self.function)
        self.step = Step(self.function, self.placed.size)
        self.model = MemoryModel(self.function, self.placed)
        self._regathered = regathered(self.step)

    def named(self, choice: Choice) -> list[Op]:
        return [op for op in self.step.batched if op.id in choice.recompute]

    def rewriting(self, ops: Sequence[Op]) -> Rewriting:
        return Rewriting(self.step, self.placed, ops, self._regathered)

    def memory(self, ops: Sequence[Op], limit: int = 0) -> Memory:
        """Simulated memory with `ops` recomputed."""
        return self.model.simulate(self.rewriting(ops).items(), limit)

    def time(self, ops: Sequence[Op]) -> int:
        """Picoseconds that running `ops` again takes (on one device: it only compares)."""
        return sum(self.cost.op(op).time for op in ops)

    def candidates(self, width: int) -> list[tuple[Op, ...]]:
        """Sets of ops that can be recomputed as one, in program order: runs of `width` segments without what crosses their end."""
        members: dict[int, list[Op]] = {}
        for op in self.step.batched:
            last = self.step.segment(op) // width * width + width - 1
            if is_clonable(op) and not self.step.crosses(op, last):
                members.setdefault(last, []).append(op)
        return [ops for ids in members.values() if (ops := self._needed(ids))]

    def _needed(self, ops: Sequence[Op]) -> tuple[Op, ...]:
        """Those of the ops that the backward pass asks for, directly or through others of them."""
        wanted: dict[Op, None] = {}
        for op in reversed(ops):
            users = [u for r in op.results for u in r.users]
            if any(u in wanted or (u in self.step.backward and u.name != "dmlc.gradient") for u in users):
                wanted[op] = None
        return tuple(op for op in ops if op in wanted)


# ---------------------------------------------------------------- decision


def decide(problem: Problem, choice: Choice, limit: int) -> Choice:
    """Adds ops to recompute: as little time as fits `limit` bytes; everything but the segment whose backward pass comes first without limit."""
    if not limit:
        return _chosen(choice, _all_but_last(problem))
    if problem.memory((), limit).peak <= limit:
        return choice
    found: list[tuple[int, int, Sequence[tuple[Op, ...]]]] = []
    for width in _widths(len(problem.step.cuts) + 1):
        sets = search(problem, problem.candidates(width), limit)
        found.append((max(problem.memory(_flat(sets), limit).peak, limit), _time(problem, sets), sets))
        if found[-1][0] <= limit:
            break
    return _chosen(choice, min(found, key=lambda f: f[:2])[2])


def _chosen(choice: Choice, sets: Sequence[Sequence[Op]]) -> Choice:
    return choice.with_(recompute=frozenset(op.id for op in _flat(sets)))


def _flat(sets: Sequence[Sequence[Op]]) -> list[Op]:
    return [op for ops in sets for op in ops]


def _time(problem: Problem, sets: Sequence[Sequence[Op]]) -> int:
    return problem.time(_flat(sets))


def _widths(segments: int) -> Iterator[int]:
    width = 1
    while width <= min(WIDEST, max(segments // 2, 1)):
        yield width
        width *= 2


def _all_but_last(problem: Problem) -> list[tuple[Op, ...]]:
    sets = problem.candidates(1)
    last = len(problem.step.cuts)
    return [ops for ops in sets if len(sets) == 1 or problem.step.segment(ops[0]) != last]


def search(problem: Problem, sets: Sequence[tuple[Op, ...]], limit: int) -> list[tuple[Op, ...]]:
    """Sets to recompute: of a few the subset of least time that fits, of many what `greedy` finds."""
    if len(sets) <= EXACT:
        subsets = [s for n in range(len(sets) + 1) for s in itertools.combinations(sets, n)]
        for subset in sorted(subsets, key=lambda s: _time(problem, s)):
            if problem.memory(_flat(subset), limit).peak <= limit:
                return list(subset)
    return greedy(problem, sets, limit)


def greedy(problem: Problem, sets: Sequence[tuple[Op, ...]], limit: int) -> list[tuple[Op, ...]]:
    """Sets to recompute so that the simulated peak is within `limit`, or as near as found: always the one that takes most bytes above the
    limit away a picosecond, then those that turn out not to be needed are dropped."""
    chosen: list[tuple[Op, ...]] = []
    state = problem.memory((), limit)
    while state.peak > limit:
        tried = [(problem.memory(_flat([*chosen, ops]), limit), ops) for ops in _promising(problem, sets, chosen, state)]
        better = [(m, ops) for m, ops in tried if (m.excess, m.peak) < (state.excess, state.peak)]
        if not better:
            break
        state, taken = max(better, key=lambda t: (min(state.excess - t[0].excess, state.excess) / max(problem.time(t[1]), 1), -sets.index(t[1])))
        chosen.append(taken)
    return _pruned(problem, _exchanged(problem, sets, _pruned(problem, chosen, limit), limit), limit)


def _exchanged(problem: Problem, sets: Sequence[tuple[Op, ...]], chosen: Sequence[tuple[Op, ...]], limit: int) -> list[tuple[Op, ...]]:
    """Each set, dearest first, given for the cheapest one that does as well; of sets that look alike only the first is tried."""
    kept = list(chosen)
    peak = max(problem.memory(_flat(kept), limit).peak, limit)
    for ops in sorted(chosen, key=lambda ops: -problem.time(ops)):
        unlike: dict[tuple[int, int], tuple[Op, ...]] = {}
        for other in sets:
            if other not in kept and problem.time(other) < problem.time(ops):
                unlike.setdefault((problem.time(other), len(other)), other)
        rest = [o for o in kept if o is not ops]
        for other in [unlike[k] for k in sorted(unlike)][:TRIALS]:
            if problem.memory(_flat([*rest, other]), limit).peak <= peak:
                kept = [*rest, other]
                break
    return kept


def _promising(problem: Problem, sets: Sequence[tuple[Op, ...]], chosen: Sequence[tuple[Op, ...]], state: Memory) -> list[tuple[Op, ...]]:
    """Open sets that own most of what lives at the peak, a picosecond of their time; of sets that look alike only the first."""
    home = {op: ops for ops in sets for op in ops}
    alive: dict[tuple[Op, ...], int] = {}
    for ref in state.alive:
        ops = None if isinstance(ref, tuple) or ref.op is None else home.get(ref.op)
        if ops is not None and ops not in chosen:
            alive[ops] = alive.get(ops, 0) + problem.placed.size(ref)  # type: ignore[arg-type]
    unlike: dict[tuple[int, int, int], tuple[Op, ...]] = {}
    for ops in sorted(alive, key=sets.index):
        unlike.setdefault((alive[ops], problem.time(ops), len(ops)), ops)
    return sorted(unlike.values(), key=lambda ops: -alive[ops] / max(problem.time(ops), 1))[:TRIALS]


def _pruned(problem: Problem, chosen: Sequence[tuple[Op, ...]], limit: int) -> list[tuple[Op, ...]]:
    """Without the sets, dearest first, whose recomputation makes no difference to the limit, or to the peak where it stays above."""
    kept, needed = list(chosen), set()
    peak = max(problem.memory(_flat(kept), limit).peak, limit)
    for ops in sorted(chosen, key=lambda ops: -problem.time(ops)):
        looks = (problem.time(ops), len(ops))
        if looks in needed:
            continue
        rest = [o for o in kept if o is not ops]
        if problem.memory(_flat(rest), limit).peak <= peak:
            kept = rest
        else:
            needed.add(looks)
    return kept


# ---------------------------------------------------------------- application


def apply(module: Module, choice: Choice, problem: Problem | None = None) -> bool:
    """Mark what is recomputed (`dmlc.remat`), clone it for the backward pass, and put barriers before parameters that are gathered twice."""
    problem = problem or Problem(module.main, CostModel.of(module))
    ops = problem.named(choice)
    marked = [op for op in ops if not op.attrs.get("dmlc.remat")]
    for op in marked:
        op.attrs["dmlc.remat"] = True
    return problem.rewriting(ops).apply() > 0 or bool(marked)
