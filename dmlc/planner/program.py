"""The integer programme that picks a place for every op (solved by HiGHS through scipy).

One binary variable an op and candidate, an argument and resting sharding, a result and final sharding. A value is resharded once
for each sharding asked of it: for each consumer, flows f[a, t] from the value's sharding a to the asked t, with row and column sums
tied to the choices on both sides, and an edge e[a, t] >= f[a, t] that carries the price once for all consumers.
With these flow equalities the relaxation is nearly always integral. Ops of one class (`dmlc.planner.classes`) share their variables,
priced as often as they occur.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dmlc.ir.attributes import Sharding
from dmlc.ir.core import BlockArgument, Function, Op, Value
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.sharding import Mesh
from dmlc.ops.base import flops_of
from dmlc.planner.candidates import Candidate
from dmlc.planner.classes import Classes, times
from dmlc.planner.pricing import Pricing, is_matrix

LARGE = 5000  # variables from which a plan within one percent of the optimum will do
SMALL = 2000  # variables from which most choices are taken over from the relaxation, if the plan is then good enough
RELAXED = 10**3  # price of exceeding a hard bound by the whole, in multiples of all prices together


@dataclass(frozen=True)
class Bounds:
    """`share`: the most of the matrices' bytes and of the contractions' multiply-adds that a rank may have (None: no bound).
    `memory`: the most bytes a rank may hold at once (0: no limit); without `kept` the values that a step makes are not counted, which a
    recomputation may free."""

    share: float | None = None
    flops_share: float | None = None
    memory: int = 0
    kept: bool = True


@dataclass
class Solution:
    """What the programme chose. `objective` and `bound` are picoseconds: the price and the proven least price."""

    places: dict[Op, Candidate]
    storage: dict[BlockArgument, Sharding]
    results: list[Sharding | None]  # None: made by the optimizer's part
    objective: float
    bound: float
    variables: int
    excess: dict[str, float] = field(default_factory=dict)  # how far each relaxed bound is exceeded
    excluded: list[int] = field(default_factory=list)

    @property
    def gap(self) -> float:
        """Relative optimality gap."""
        return max(0.0, (self.objective - self.bound) / self.objective) if self.objective > 0 else 0.0


class Program:
    """Builds and solves the programme for one function, mesh and set of candidates."""

    def __init__(
        self,
        function: Function,
        mesh: Mesh,
        pricing: Pricing,
        options: dict[Op, list[Candidate]],
        inputs: dict[BlockArgument, Sharding],
        bounds: Bounds,
        classes: Classes,
        copies: dict[BlockArgument, float] | None = None,
    ):
        self.copies = copies or {}
        self.function, self.mesh, self.pricing, self.options, self.inputs, self.bounds = function, mesh, pricing, options, inputs, bounds
        self.classes = classes
        self.costs: list[float] = []
        self.binary: list[int] = []
        self.upper: list[float] = []
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.data: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.choice: dict[Op, list[int]] = {}
        self.resting: dict[BlockArgument, dict[Sharding, int]] = {}
        self.final: list[dict[Sharding, int]] = []
        self.source: dict[Value, dict[Sharding, list[int]]] = {}
        self.asked: dict[Value, dict[Any, dict[Sharding, list[int]]]] = {}  # value -> consumer -> sharding -> variables
        self.excess: dict[str, int] = {}
        self._build()

    # -------------------------------------------------- building

    def _variable(self, cost: float, binary: bool = False, upper: float = 1.0) -> int:
        self.costs.append(cost)
        self.binary.append(int(binary))
        self.upper.append(upper)
        return len(self.costs) - 1

    def _constraint(self, terms: Iterable[tuple[int, float]], low: float, high: float) -> None:
        for column, coefficient in terms:
            self.rows.append(len(self.low))
            self.columns.append(column)
            self.data.append(coefficient)
        self.low.append(low)
        self.high.append(high)

    def _build(self) -> None:
        for op, options in self.options.items():
            self._op(op, options)
        for i, value in enumerate(self.function.results):
            self._result(i, value) if value.op is None or value.op in self.options else self.final.append({})
        for arg in self.function.args:
            self._argument(arg)
        for value, consumers in self.asked.items():
            self._flows(value, consumers)
        self._share_bounds()
        self._memory_bound()

    def _op(self, op: Op, options: list[Candidate]) -> None:
        """The first of a class brings the variables; every member says whom it asks."""
        first = self.classes.op(op)
        if first is op:
            count = self.classes.count[op]
            self.choice[op] = [self._variable(count * self.pricing.op(op, c), binary=True) for c in options]
            self._constraint([(x, 1) for x in self.choice[op]], 1, 1)
            for x, c in zip(self.choice[op], options):
                for result, sharding in zip(op.results, c.results):
                    self.source.setdefault(result, {}).setdefault(sharding, []).append(x)
        for i, operand in enumerate(op.operands):
            consumers = self.asked.setdefault(self.classes.value(operand), {})
            if (first, i) not in consumers:
                consumers[first, i] = {}
                for x, c in zip(self.choice[first], options):
                    consumers[first, i].setdefault(c.operands[i], []).append(x)

    def _result(self, index: int, value: Value) -> None:
        """A result may end in any sharding its value can have, complete."""
        value = self.classes.value(value)
        given = self.source.get(value)
        if given is None:
            given = {self.inputs.get(value) or self.mesh.replicated(value.tensor.rank): []}  # type: ignore[arg-type]
        states = dict.fromkeys(Sharding(s.mesh, s.dims, (), s.grains) for s in given)
        variables = {s: self._variable(0.0, binary=True) for s in states}
        self.final.append(variables)
        self._constraint([(z, 1) for z in variables.values()], 1, 1)
        for s, z in variables.items():
            self.asked.setdefault(value, {}).setdefault(("result", index), {})[s] = [z]

    def _argument(self, arg: BlockArgument) -> None:
        """An input rests as the data axes say; a weight in any sharding that somebody asks for, reading it priced lightly."""
        if self.classes.value(arg) is not arg:
            return
        if arg in self.inputs:
            states = {self.inputs[arg]: 0.0}
        elif "dmlc.storage" in arg.attrs:
            states = {arg.attrs["dmlc.storage"]: 0.0}
        else:
            wanted = [s for consumer in self.asked.get(arg, {}).values() for s in consumer if not s.unreduced]
            states = {s: 1e-3 * self.classes.count[arg] * self._held(arg, s) for s in dict.fromkeys([self.mesh.replicated(arg.tensor.rank), *wanted])}
        variables = {s: self._variable(cost, binary=True) for s, cost in states.items()}
        self.resting[arg] = variables
        self._constraint([(y, 1) for y in variables.values()], 1, 1)
        self.source[arg] = {s: [y] for s, y in variables.items()}

    def _held(self, arg: BlockArgument, sharding: Sharding) -> float:
        return self.pricing.local_bytes(arg.tensor, sharding) * 10**12 / self.pricing.cost.cluster.device.bandwidth

    def _flows(self, value: Value, consumers: dict[Any, dict[Sharding, list[int]]]) -> None:
        sources = self.source[value]
        count = self.classes.size(value)
        if len(sources) == 1 and all(set(c) == set(sources) for c in consumers.values()):
            return
        targets = list(dict.fromkeys(t for c in consumers.values() for t in c))
        price = {(a, t): self.pricing.reshard(a, t, value.tensor) for a in sources for t in targets}
        shared = len(consumers) > 1
        edges = {k: self._variable(count * p) for k, p in price.items() if p} if shared else {}
        for wanted in consumers.values():
            flow = {(a, t): self._variable(0.0 if shared else float(count * (price[a, t] or 0))) for a in sources for t in wanted if price[a, t] is not None}
            for t, variables in wanted.items():
                self._constraint([(flow[a, t], 1) for a in sources if (a, t) in flow] + [(x, -1) for x in variables], 0, 0)
            for a, variables in sources.items():
                self._constraint([(flow[a, t], 1) for t in wanted if (a, t) in flow] + [(x, -1) for x in variables], 0, 0)
            for k, f in flow.items():
                if k in edges:
                    self._constraint([(edges[k], 1), (f, -1)], 0, float("inf"))

    # -------------------------------------------------- bounds

    def _share_bounds(self) -> None:
        if self.bounds.share is not None:
            matrices = [a for a in self.function.args if a not in self.inputs and is_matrix(a) and "dmlc.of" not in a.attrs]
            total = sum(a.tensor.bytes * times(a) for a in matrices)
            counts = _counted(matrices, self.classes.value)
            terms = [(y, n * self.pricing.local_bytes(a.tensor, s) / total) for a, n in counts.items() for s, y in self.resting[a].items()]  # type: ignore[index]
            self._soft("parameter bytes", terms, self.bounds.share)
        if self.bounds.flops_share is not None:
            contractions = [op for op in self.options if flops_of(op)]
            total = sum(flops_of(op) * times(op) for op in contractions)
            counts = _counted(contractions, self.classes.op)
            terms = [(x, n * self.pricing.work(op, c.place) / total) for op, n in counts.items() for x, c in zip(self.choice[op], self.options[op])]
            self._soft("contraction FLOPs", terms, self.bounds.flops_share)

    def _soft(self, name: str, terms: list[tuple[int, float]], bound: float) -> None:
        """sum of terms <= bound + excess; the excess is so dear that it is used only where nothing else is feasible."""
        if not terms:
            return
        dear = RELAXED * (1.0 + sum(c for i, c in enumerate(self.costs) if i not in self.excess.values()))
        self.excess[name] = self._variable(dear, upper=1.0)
        self._constraint([*terms, (self.excess[name], -1.0)], -float("inf"), bound)

    def _memory_bound(self) -> None:
        if not self.bounds.memory:
            return
        for terms in self._memory_sums():
            self._constraint([(x, c / self.bounds.memory) for x, c in terms], -float("inf"), 1.0)

    def _memory_sums(self) -> list[list[tuple[int, float]]]:
        """Bytes a rank holds, one sum for each position where much is live."""
        held = [
            (y, self.copies.get(a, 1.0) * self.classes.count[a] * self.pricing.local_bytes(a.tensor, s))
            for a, states in self.resting.items()
            for s, y in states.items()
        ]
        sums: list[list[tuple[int, float]]] = []
        for live in peak_points(self.function) if self.bounds.kept else ():
            terms = list(held)
            for value, n in _counted(live, self.classes.value).items():
                for s, variables in self.source.get(value, {}).items():
                    terms += [(x, float(n * self.pricing.local_bytes(value.tensor, s))) for x in variables]
            sums.append(terms)
        return [terms for terms in sums or [held] if terms]

    def least_memory(self) -> int | None:
        """The fewest bytes that a rank can do with, whatever the time (asked of a programme without a memory bound). None: not found."""
        sums = self._memory_sums()
        unit = max((sum(c for _, c in terms) for terms in sums), default=1.0)
        most = self._variable(0.0, upper=float("inf"))
        for terms in sums:
            self._constraint([*((x, c / unit) for x, c in terms), (most, -1.0)], -float("inf"), 0.0)
        x = self._minimise([float(i == most) for i in range(len(self.costs))]).x
        return None if x is None else round(max((sum(c * round(x[i]) for i, c in terms) for terms in sums), default=0.0))

    # -------------------------------------------------- solving

    def solve(self, excluded: list[list[int]] | None = None) -> Solution | None:
        """The cheapest choice, or None when the memory bound cannot be met. `excluded` are earlier choices not to be made again."""
        for chosen in excluded or []:
            self._constraint([(x, 1) for x in chosen], -float("inf"), len(chosen) - 1)
        if not self.costs:
            return Solution({}, {}, [], 0.0, 0.0, 0)
        soft = set(self.excess.values())
        scale = max(max((c for i, c in enumerate(self.costs) if i not in soft), default=1.0), 1.0)
        done = self._minimise([c / scale for c in self.costs])
        if done.x is None:
            return None
        if any(done.x[i] > 1e-6 for i in soft):
            done = self._within_excess(done, scale)
        return self._solution(done.x, float(done.fun) * scale, float(done.mip_dual_bound if done.mip_dual_bound is not None else done.fun) * scale)

    def _within_excess(self, done: Any, scale: float) -> Any:
        """The least time once the excess is settled: beside its price, that of time is within the solver's tolerance."""
        for i in self.excess.values():
            self.upper[i], self.costs[i] = float(max(done.x[i], 0.0)) * (1 + 1e-6) + 1e-9, 0.0
        again = self._minimise([c / scale for c in self.costs])
        return done if again.x is None else again

    def _minimise(self, costs: list[float]) -> Any:
        """HiGHS's answer, for a limited number of nodes so that equal input gives equal output."""
        import numpy as np
        from scipy.sparse import coo_matrix

        matrix = coo_matrix((self.data, (self.rows, self.columns)), shape=(len(self.low), len(costs))).tocsr()
        integral = np.array(self.binary)
        gap = 1e-4 if len(costs) < LARGE else 1e-2
        if len(costs) >= SMALL:
            relaxed = self._milp(costs, matrix, 0 * integral, 0.0, gap)
            if relaxed.x is not None:
                settled = np.where(relaxed.x > 1 - 1e-6, integral, 0)
                done = self._milp(costs, matrix, integral, settled, min(gap, 1e-5))
                if done.x is not None and done.fun - relaxed.fun <= gap * abs(done.fun):
                    done.mip_dual_bound = relaxed.fun
                    return done
        return self._milp(costs, matrix, integral, 0.0, gap)

    def _milp(self, costs: list[float], matrix: Any, integral: Any, least: Any, gap: float) -> Any:
        """`integral`: 1 for the variables that must be whole; `least`: the variables' lower bounds."""
        import numpy as np
        from scipy.optimize import Bounds as Box
        from scipy.optimize import LinearConstraint, milp

        constraints = LinearConstraint(matrix, self.low, self.high)
        options = {"mip_rel_gap": gap, "node_limit": 2000}
        return milp(np.array(costs), constraints=constraints, bounds=Box(least, np.array(self.upper)), integrality=integral, options=options)

    def _solution(self, x: Any, objective: float, bound: float) -> Solution:
        def best(variables: dict[Any, int]) -> Any:
            return max(variables, key=lambda s: x[variables[s]])

        picked = {op: max(range(len(v)), key=lambda i: x[v[i]]) for op, v in self.choice.items()}
        excess = {name: float(x[i]) for name, i in self.excess.items() if x[i] > 1e-6}
        dear = sum(self.costs[i] * x[i] for i in self.excess.values())
        return Solution(
            {op: options[picked[self.classes.op(op)]] for op, options in self.options.items()},
            {arg: best(self.resting[self.classes.value(arg)]) for arg in self.function.args},  # type: ignore[index]
            [best(states) if states else None for states in self.final],
            objective - dear,
            min(bound - dear, objective - dear),
            len(self.costs),
            excess,
            [self.choice[op][i] for op, i in picked.items() if len(self.choice[op]) > 1],
        )


def _counted(items: Iterable[Any], first: Callable[[Any], Any]) -> Counter[Any]:
    """How many items of each class there are, by its first member."""
    found: Counter[Any] = Counter()
    for item in items:
        found[first(item)] += times(item)
    return found


def peak_points(function: Function, most: int = 8) -> list[list[Value]]:
    """Values live at the positions that hold most bytes (unsharded), arguments apart."""
    ops = function.body.ops
    position = {op: i for i, op in enumerate(ops)}
    points: list[tuple[int, int, list[Value]]] = []
    live: dict[Value, int] = {}
    for i, op in enumerate(ops):
        for r in op.results:
            live[r] = max((position[u] for u in r.users if u in position), default=i)
        points.append((-sum(r.tensor.bytes * times(r) for r in live), i, list(live)))
        live = {v: last for v, last in live.items() if last > i}
    return [values for _, _, values in sorted(points, key=lambda p: p[:2])[:most] if values]


def infeasible(limit: int, least: int, loc: Loc) -> DmlcError:
    text = f"no plan fits {limit:,} bytes a rank: the smallest found needs {least:,} bytes, {least - limit:,} too many"
    return DmlcError(text, loc, ("use more devices, a smaller batch (--dim) or a lower precision",))
