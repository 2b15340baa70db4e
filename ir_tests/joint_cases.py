"""Random training graphs as joint problems, and on them what each pass would decide alone.

Up to ten computations, updates counted: a forward chain, a backward chain with the gradient of a weight beside it, up to four gradients that are
all-reduced, and updates. A computation takes a launch, its own work, and the bytes it reads and writes from outside its kernel.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations

from dmlc.simulate.joint import COMPUTE, Buffer, Node, Plan, Problem, Stream, peak_of, time_of

MICRO = 1_000_000
LAUNCH, START = 4 * MICRO, 20 * MICRO


@dataclass(frozen=True)
class Op:
    kind: str  # "product" stays alone, "pointwise" may be fused, "all_reduce"
    preds: tuple[int, ...]
    work: int  # ps beside what it reads and writes
    result: int  # ps to write or read its result


@dataclass(frozen=True)
class Case:
    ops: tuple[Op, ...]
    problem: Problem
    cap: int  # bytes, 0 = none


def random_case(seed: int) -> Case:
    """Every fourth graph has slow-down, every fourth a host's queue, every fourth a memory cap between the least its starts need and the most."""
    draw = random.Random(seed)
    ops = tuple(_random_ops(draw, draw.randint(6, 10), draw.randint(1, 4)))
    kind = seed % 4
    stream = Stream("data", 100, 100) if kind != 1 else Stream("data", draw.choice((50, 70, 85)), draw.choice((45, 60, 90)))
    problem = problem_of(ops, stream, draw.choice((2, 6, 12)) * MICRO if kind == 2 else 0)
    cap = 0
    if kind == 3:
        peaks = sorted(peak_of(problem, plan) for plan in plans_of_passes(problem).values())
        cap = draw.randint(peaks[0], peaks[-1])
    return Case(ops, problem, cap)


def _random_ops(draw: random.Random, count: int, gradients: int) -> list[Op]:
    ops: list[Op] = []

    def new(kind: str, *preds: int) -> int:
        work = draw.randint(5, 60) if kind == "product" else 0
        if kind == "all_reduce":
            work = draw.randint(2, 60)
        ops.append(Op(kind, tuple(sorted(set(preds))), work * MICRO, draw.randint(1, 20) * MICRO))
        return len(ops) - 1

    def computation(*preds: int) -> int:
        return new(draw.choice(("product", "pointwise")), *preds)

    updates = draw.randint(0, min(gradients, count - gradients - 2))
    left = count - gradients - updates
    forward = [computation()]
    while len(forward) < left // 2:
        forward.append(computation(forward[-1], *draw.sample(forward, draw.randint(0, 1))))
    here, backward = forward[-1], left - len(forward)
    for g in range(gradients):
        while backward and (draw.random() < 0.7 or backward > gradients - g):
            here, backward = computation(here, draw.choice(forward)), backward - 1
            if draw.random() < 0.5:
                break
        reduced = new("all_reduce", computation(here, draw.choice(forward)))
        if updates and (updates >= gradients - g or draw.random() < 0.7):
            new("pointwise", reduced)
            updates -= 1
    return ops


def problem_of(ops: tuple[Op, ...], stream: Stream, host: int) -> Problem:
    readers = [tuple(j for j, op in enumerate(ops) if i in op.preds) for i in range(len(ops))]

    def time(members: tuple[int, ...]) -> int:
        inside = set(members)
        work = sum(ops[i].work for i in members)
        if ops[members[0]].kind == "all_reduce":
            return START + work
        reads = {p for i in members for p in ops[i].preds} - inside
        writes = [i for i in members if not readers[i] or set(readers[i]) - inside]
        return LAUNCH + work + sum(ops[p].result for p in reads) + sum(ops[i].result for i in writes)

    def connected(members: tuple[int, ...]) -> bool:
        inside, found = set(members), {members[0]}
        pending = [members[0]]
        while pending:
            here = pending.pop()
            more = {j for j in (*ops[here].preds, *readers[here]) if j in inside} - found
            found |= more
            pending += more
        return found == inside

    def fusable(members: tuple[int, ...]) -> bool:
        return all(ops[i].kind == "pointwise" for i in members) and connected(members)

    nodes = [
        Node(time((i,)), op.preds, 0 if op.kind == "all_reduce" else COMPUTE, "all_reduce" if op.kind == "all_reduce" else None, host)
        for i, op in enumerate(ops)
    ]
    buffers = [Buffer(op.result // 1000, i, readers[i], not readers[i]) for i, op in enumerate(ops)]
    return Problem(nodes, [stream], buffers, time, fusable)


# ---------------------------------------------------------------- what passes decide one by one


def _plan(problem: Problem, sets: list[tuple[int, ...]], order: list[int] | None) -> Plan | None:
    try:
        return Plan.of(problem, sets, order=order)
    except ValueError:
        return None


def _fused(problem: Problem, sets: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Producers with consumers, greedily, as long as the quotient stays free of cycles."""
    for i, node in enumerate(problem.nodes):
        for p in node.preds:
            a, b = (next((s for s in sets if n in s), (n,)) for n in (p, i))
            union = tuple(sorted({*a, *b}))
            merged = [s for s in sets if s not in (a, b)] + [union]
            if a != b and problem.nodes[i].stream == COMPUTE == problem.nodes[p].stream and problem.joinable(union) and _plan(problem, merged, None):
                sets = merged
    return sets


def _bucketed(problem: Problem, sets: list[tuple[int, ...]], most: int = 2) -> list[tuple[int, ...]]:
    """Collectives as they come, up to `most` in a bucket."""
    current: tuple[int, ...] = ()
    for c in (i for i, n in enumerate(problem.nodes) if n.key is not None):
        grown = (*current, c)
        rest = [s for s in sets if s != current]
        if current and len(current) < most and problem.joinable(grown) and _plan(problem, [*rest, grown], None):
            sets, current = [*rest, grown], grown
        else:
            current = (c,)
    return sets


def _by_path(problem: Problem, sets: list[tuple[int, ...]]) -> list[int]:
    """Nodes by the longest chain that begins with their unit."""
    plan = Plan.of(problem, sets)
    tail = [0] * len(problem.nodes)
    for unit in reversed(plan.sequence):
        after = [tail[j] for j, n in enumerate(problem.nodes) if set(n.preds) & set(unit.nodes) and j not in unit.nodes]
        for n in unit.nodes:
            tail[n] = problem.price(unit.nodes)[0] + max(after, default=0)
    return sorted(range(len(tail)), key=lambda n: (-tail[n], n))


def plans_of_passes(problem: Problem) -> dict[str, Plan]:
    """Nothing, each of fuse, bucket, order alone, and every sequence of two and three of them with the order last."""
    found = {"none": Plan.of(problem)}
    steps = {"fuse": _fused, "buckets": _bucketed}
    for names in [(), ("fuse",), ("buckets",), ("fuse", "buckets"), ("buckets", "fuse")]:
        sets: list[tuple[int, ...]] = []
        for name in names:
            sets = steps[name](problem, sets)
        found["+".join(names) or "none"] = Plan.of(problem, sets)
        found["+".join((*names, "order"))] = Plan.of(problem, sets, order=_by_path(problem, sets))
    return found


def best_of_passes(case: Case) -> int:
    """The least makespan among the passes' plans that fit."""
    plans = plans_of_passes(case.problem).values()
    return min(time_of(case.problem, p) for p in plans if not case.cap or peak_of(case.problem, p) <= case.cap)


def pairs(problem: Problem) -> int:
    """How many pairs of nodes may be joined: how much there is to choose."""
    return sum(problem.joinable(pair) for pair in combinations(range(len(problem.nodes)), 2))


def larger(seed: int, layers: int = 6) -> Problem:
    """Layers of a product and two pointwise ops forward, as many backward with an all-reduce and an update each."""
    nodes: list[Node] = []

    def new(time: int, *preds: int, stream: int = -1, kind: str = "") -> int:
        nodes.append(Node(time * MICRO, tuple(sorted(preds)), stream, "ar" if stream >= 0 else None, 2 * MICRO, 0, kind))
        return len(nodes) - 1

    saved = [new(5, kind="input")]
    for _ in range(layers):
        product = new(40 + 7 * (seed % 3), saved[-1], kind="forward")
        saved.append(new(6, new(7, product, kind="bias"), kind="gelu"))
    here = new(9, saved[-1], kind="loss")
    for activation in reversed(saved[:-1]):
        delta = new(8, here, kind="gelu grad")
        weight = new(35, delta, activation, kind="weight grad")
        reduced = new(45 + 5 * (seed % 4), weight, stream=0, kind="reduce")
        new(4, new(5, reduced, kind="scale"), kind="update")
        here = new(38, delta, kind="input grad")
    readers = [tuple(j for j, n in enumerate(nodes) if i in n.preds) for i in range(len(nodes))]
    small = [n.stream < 0 and n.time < 10 * MICRO for n in nodes]

    def time(members: tuple[int, ...]) -> int:
        total = sum(nodes[m].time for m in members)
        return total - (15 if nodes[members[0]].stream >= 0 else 4) * MICRO * (len(members) - 1)

    def fusable(members: tuple[int, ...]) -> bool:
        return all(small[m] for m in members) and len(members) <= 4

    buffers = [Buffer(100 + 10 * (i % 3), i, readers[i]) for i in range(len(nodes))]
    return Problem(nodes, [Stream("data", 80, 90)], buffers, time, fusable)
