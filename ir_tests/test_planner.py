"""The integer programme finds what trying everything finds; layers are decided once; bounds, grains, the second-best plan and the gap are what they say."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

import dmlc.ops  # noqa: F401
from dmlc.cluster import Cluster
from dmlc.cost.model import CostModel
from dmlc.driver import Options, annotate
from dmlc.ir.attributes import Sharding
from dmlc.ir.core import BlockArgument, Function, Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.sharding import Mesh
from dmlc.ops.base import flops_of
from dmlc.ops.place import share
from dmlc.planner.batch import batch_of
from dmlc.planner.candidates import Candidate
from dmlc.planner.classes import Classes
from dmlc.planner.grains import grains_of
from dmlc.planner.pricing import is_matrix
from dmlc.planner.program import Bounds, Program, peak_points
from dmlc.planner.request import Request, mesh_for
from dmlc.planner.search import decide, programme


def function_of(text: str) -> Function:
    return parse_module(text).main


def cost_of(devices: int = 4) -> CostModel:
    return CostModel(Cluster.named("h100", devices))


def tensor(*shape: int) -> str:
    return f"tensor<{'x'.join(map(str, (*shape, 'f32')))}>"


def chain(*widths: int, rows: int = 64, between: str = "relu") -> str:
    """x -> matmul -> pointwise -> matmul -> ... with a weight a step."""
    weights = "".join(f', %w{i}: {tensor(a, b)} {{dmlc.role = "param"}}' for i, (a, b) in enumerate(itertools.pairwise(widths)))
    lines, last = [], "x"
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        lines.append(f"%m{i} = dmlc.matmul %{last}, %w{i} : ({tensor(rows, a)}, {tensor(a, b)}) -> {tensor(rows, b)}")
        last = f"m{i}"
        if i < len(widths) - 2:
            lines.append(f"%r{i} = dmlc.{between} %{last} : ({tensor(rows, b)}) -> {tensor(rows, b)}")
            last = f"r{i}"
    body = "\n".join(lines)
    return f"func.func @main(%x: {tensor(rows, widths[0])} {{dmlc.batch_dim = 0 : i64}}{weights}) -> {tensor(rows, widths[-1])} {{\n{body}\nfunc.return %{last} : {tensor(rows, widths[-1])}\n}}"


SHARED = f"""func.func @main(%x: {tensor(32, 64)} {{dmlc.batch_dim = 0 : i64}}, %w: {tensor(64, 64)} {{dmlc.role = "param"}}, %g: {tensor(64)} {{dmlc.role = "param"}}) -> ({tensor(32, 64)}, {tensor(32)}) {{
%n = dmlc.rms_norm %x, %g {{eps = 0.1 : f64}} : ({tensor(32, 64)}, {tensor(64)}) -> {tensor(32, 64)}
%m = dmlc.matmul %n, %w : ({tensor(32, 64)}, {tensor(64, 64)}) -> {tensor(32, 64)}
%a = dmlc.add %x, %m : ({tensor(32, 64)}, {tensor(32, 64)}) -> {tensor(32, 64)}
%s = dmlc.reduce_sum %a {{dims = array<i64: 1>}} : ({tensor(32, 64)}) -> {tensor(32)}
func.return %a, %s : {tensor(32, 64)}, {tensor(32)}
}}"""
TIED = f"""func.func @main(%i: tensor<6xi64> {{dmlc.batch_dim = 0 : i64}}, %t: {tensor(50, 40)} {{dmlc.role = "param"}}) -> {tensor(6, 50)} {{
%e = dmlc.embedding %t, %i : ({tensor(50, 40)}, tensor<6xi64>) -> {tensor(6, 40)}
%h = dmlc.gelu %e : ({tensor(6, 40)}) -> {tensor(6, 40)}
%y = dmlc.linear %h, %t : ({tensor(6, 40)}, {tensor(50, 40)}) -> {tensor(6, 50)}
func.return %y : {tensor(6, 50)}
}}"""
TINY = {"two products": chain(64, 256, 64), "uneven": chain(30, 43, 21, rows=7), "shared value": SHARED, "tied table": TIED, "wide": chain(256, 16384, 256, rows=512)}


# ---------------------------------------------------------------- the optimum


class BruteForce:
    """Every choice of candidates; the price of one is added up value by value, independently of the programme's variables."""

    def __init__(self, program: Program):
        self.program, self.pricing = program, program.pricing
        self.ops = list(program.options)

    def choices(self):
        return (dict(zip(self.ops, picked)) for picked in itertools.product(*(self.program.options[op] for op in self.ops)))

    def price(self, chosen: dict[Op, Candidate]) -> float:
        total = float(sum(self.pricing.op(op, c) for op, c in chosen.items()))
        for value in (*self.program.function.args, *(r for op in self.ops for r in op.results)):
            total += self.value_price(value, chosen)
            if math.isinf(total):
                break
        return total

    def value_price(self, value: Value, chosen: dict[Op, Candidate]) -> float:
        asked = [chosen[op].operands[i] for op, i in value.uses if op in chosen]
        returned = sum(op not in chosen for op, _ in value.uses)
        ends = [Sharding(s.mesh, s.dims, (), s.grains) for s in self.forms(value)] if returned else [None]
        return min(self.held(value, rests) + self.reshards(value, rests, [*asked, *([end] if end else [])]) for rests in self.rests(value, chosen) for end in dict.fromkeys(ends))

    def forms(self, value: Value) -> list[Sharding]:
        if value.op is None:
            return [self.program.inputs.get(value) or self.program.mesh.replicated(value.tensor.rank)]  # type: ignore[arg-type]
        return [c.results[value.index] for c in self.program.options[value.op]]  # type: ignore[attr-defined]

    def rests(self, value: Value, chosen: dict[Op, Candidate]) -> list[Sharding]:
        """Where the value lies: as made, as it comes in, or for a weight anywhere a consumer might ask for."""
        if value.op is not None:
            return [chosen[value.op].results[value.index]]  # type: ignore[attr-defined]
        if value in self.program.inputs:
            return [self.program.inputs[value]]  # type: ignore[index]
        wanted = [c.operands[i] for op, i in value.uses if op in chosen for c in self.program.options[op]]
        return list(dict.fromkeys([self.program.mesh.replicated(value.tensor.rank), *(s for s in wanted if not s.unreduced)]))

    def held(self, value: Value, rests: Sharding) -> float:
        if value.op is not None or value in self.program.inputs:
            return 0.0
        return 1e-3 * self.pricing.local_bytes(value.tensor, rests) * 10**12 / self.pricing.cost.cluster.device.bandwidth

    def reshards(self, value: Value, rests: Sharding, asked: list[Sharding]) -> float:
        prices = [self.pricing.reshard(rests, t, value.tensor) for t in dict.fromkeys(asked)]
        return float("inf") if None in prices else float(sum(prices))  # type: ignore[arg-type]

    def memory(self, chosen: dict[Op, Candidate], resting: dict[BlockArgument, Sharding]) -> int:
        arguments = sum(self.pricing.local_bytes(a.tensor, s) for a, s in resting.items())
        live = [sum(self.pricing.local_bytes(v.tensor, chosen[v.op].results[v.index]) for v in values) for values in peak_points(self.program.function)]
        return arguments + max(live)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("mesh", [mesh_for(1, 4), mesh_for(2, 2), mesh_for(1, 3)], ids=lambda m: "x".join(map(str, m.sizes.values())))
def test_the_programme_finds_the_optimum(name: str, mesh: Mesh) -> None:
    program = programme(function_of(TINY[name]), mesh, cost_of(mesh.devices), Bounds())
    solution = program.solve()
    assert solution is not None
    brute = BruteForce(program)
    best = min(map(brute.price, brute.choices()))
    assert solution.objective == pytest.approx(best, rel=2e-4)
    assert brute.price(solution.places) == pytest.approx(solution.objective, rel=1e-6)
    assert solution.bound <= solution.objective * (1 + 1e-9) and solution.gap <= 1e-4


def test_the_optimum_is_not_the_first_choice() -> None:
    """Replicating everything is dearer for a wide pair of matrices."""
    program = programme(function_of(TINY["wide"]), mesh_for(1, 4), cost_of(), Bounds())
    brute = BruteForce(program)
    replicated = brute.price({op: options[0] for op, options in program.options.items()})
    solution = program.solve()
    assert solution is not None and solution.objective < 0.9 * replicated


def test_the_least_memory_is_the_least() -> None:
    program = programme(function_of(TINY["two products"]), mesh_for(1, 4), cost_of(), Bounds())
    brute = BruteForce(program)
    weights = [a for a in program.function.args if a not in program.inputs]

    def least(chosen: dict[Op, Candidate]) -> int:
        rests = [[s for s in brute.rests(w, chosen) if brute.reshards(w, s, [chosen[op].operands[i] for op, i in w.uses]) < float("inf")] for w in weights]
        return min(brute.memory(chosen, {**program.inputs, **dict(zip(weights, picked))}) for picked in itertools.product(*rests))

    possible = [c for c in brute.choices() if brute.price(c) < float("inf")]
    assert program.least_memory() == min(map(least, possible))


def test_a_memory_bound_is_kept_and_costs_time() -> None:
    text, mesh = TINY["two products"], mesh_for(1, 4)
    free = programme(function_of(text), mesh, cost_of(), Bounds()).solve()
    least = programme(function_of(text), mesh, cost_of(), Bounds()).least_memory()
    assert free is not None and least is not None
    bounded = programme(function_of(text), mesh, cost_of(), Bounds(memory=least))
    solution = bounded.solve()
    assert solution is not None and solution.objective >= free.objective
    assert BruteForce(bounded).memory(solution.places, solution.storage) <= least
    assert programme(function_of(text), mesh, cost_of(), Bounds(memory=least - 1)).solve() is None


# ---------------------------------------------------------------- bounds of an explicit plan


def module_with(text: str, devices: int, plan: str, **options) -> Module:
    module = parse_module(text)
    annotate(module, Options(devices=devices, plan=plan, target="h100", **options))
    return module


def planned(text: str, devices: int, plan: str = "auto", **options):
    module = module_with(text, devices, plan, **options)
    return decide(module, Request.of(module), CostModel.of(module))


def test_an_explicit_plan_bounds_each_ranks_share() -> None:
    best, _ = planned(chain(256, 1024, 256, 1024, 256), 8, "dp=2,tp=4")
    function = Function(next(iter(best.solution.places)).function)
    matrices = [a for a in function.args if is_matrix(a)]
    held = sum(math.prod(best.mesh.local_shape(a.shape, best.solution.storage[a])) for a in matrices)
    assert held <= 1.1 / 4 * sum(a.tensor.numel for a in matrices)
    work = sum(flops_of(op) * share(best.mesh, op, c.place) for op, c in best.solution.places.items())
    assert work <= 1.1 / 8 * sum(flops_of(op) for op in best.solution.places)
    assert not best.solution.excess


def test_a_bound_that_nothing_meets_is_relaxed() -> None:
    """Three columns over eight ranks: one of three is the least that a rank can have."""
    best, _ = planned(chain(20000, 3), 8, "tp=8", slack=0.0)
    assert not best.solution.excess  # its rows divide
    best, _ = planned(chain(3, 20001, 3), 8, "tp=8", slack=0.0)
    assert 0 < best.solution.excess["parameter bytes"] < 1e-3  # 2501 of 20001 is a little more than an eighth


def test_data_axes_take_the_batch_and_tensor_axes_do_not() -> None:
    best, _ = planned(chain(256, 1024, 256), 4, "dp=2,tp=2")
    factors = Counter()
    for op, c in best.solution.places.items():
        batch = batch_of(Function(op.function)).factors[op]
        for factor, axes in c.place.factors:
            factors[factor in batch, axes] += 1
    assert set(factors) == {(True, ("data",)), (False, ("model",))}


# ---------------------------------------------------------------- repeated layers


def layers(count: int) -> str:
    return chain(128, *([512, 128] * count))


def test_a_deep_model_is_hardly_a_larger_programme() -> None:
    variables = {}
    for count in (4, 8, 32):
        program = programme(function_of(layers(count)), mesh_for(1, 4), cost_of(), Bounds())
        variables[count] = len(program.costs)
    assert variables[32] == variables[8] <= 1.6 * variables[4]


def test_layers_in_the_middle_are_decided_alike() -> None:
    program = programme(function_of(layers(12)), mesh_for(1, 4), cost_of(), Bounds(share=0.26, flops_share=0.26))
    solution = program.solve()
    assert solution is not None
    products = [c.place for op, c in solution.places.items() if op.name == "dmlc.matmul"][4:-4]
    assert len(set(products[0::2])) == len(set(products[1::2])) == 1


def test_sharing_decisions_costs_next_to_nothing() -> None:
    function, mesh, bounds = function_of(layers(6)), mesh_for(1, 4), Bounds(share=0.26, flops_share=0.26)
    shared = programme(function, mesh, cost_of(), bounds)
    apart = Program(function, mesh, shared.pricing, shared.options, shared.inputs, bounds, Classes(function, lambda op: op.id))
    one, other = shared.solve(), apart.solve()
    assert one is not None and other is not None
    assert one.variables < other.variables
    assert other.objective * (1 - 2e-4) <= one.objective <= 1.01 * other.objective


# ---------------------------------------------------------------- grains, the second-best plan, the gap


def test_weights_that_lie_somewhere_already_stay_there() -> None:
    """Also among layers that look alike otherwise."""
    module = parse_module(chain(*[64] * 13))
    mesh = Mesh.make(model=2)
    weights = module.main.args[1:]
    for i, arg in enumerate(weights):
        arg.attrs["dmlc.storage"] = mesh.sharding([("model",) if i % 3 == 0 else (), ()])
    solution = programme(module.main, mesh, cost_of(2), Bounds()).solve()
    assert solution is not None
    assert [solution.storage[a] for a in weights] == [a.attrs["dmlc.storage"] for a in weights]


def heads(count: int, size: int) -> str:
    width, split, turned = tensor(2, 16, count * size), tensor(2, 16, count, size), tensor(2, count, 16, size)
    return f"""func.func @main(%x: {width} {{dmlc.batch_dim = 0 : i64}}, %w: {tensor(count * size, count * size)} {{dmlc.role = "param"}}) -> {turned} {{
%q = dmlc.linear %x, %w : ({width}, {tensor(count * size, count * size)}) -> {width}
%r = dmlc.reshape %q : ({width}) -> {split}
%t = dmlc.transpose %r {{perm = array<i64: 0, 2, 1, 3>}} : ({split}) -> {turned}
%a = dmlc.attention %t, %t, %t {{scale = 0.125 : f64}} : ({turned}, {turned}, {turned}) -> {turned}
func.return %a : {turned}
}}"""


@pytest.mark.parametrize(("count", "ranks", "wanted"), [(12, 8, {"j": (64,)}), (12, 4, {}), (3, 2, {"j": (64,)})])
def test_grains_are_proposed_where_heads_do_not_divide(count: int, ranks: int, wanted: dict[str, tuple[int, ...]]) -> None:
    function = function_of(heads(count, 64))
    mesh = mesh_for(1, ranks)
    first = next(iter(function.body))
    found = grains_of(function, mesh, ("model",)).get(first, {})
    assert {f: g for f, g in found.items() if f == "j"} == wanted


def test_twelve_heads_on_eight_ranks_stay_whole() -> None:
    """With slack for two heads a rank, the projection is split at heads from the start."""
    best, _ = planned(heads(12, 64), 8, "tp=8", slack=0.5)
    first = next(iter(best.solution.places))
    assert best.solution.places[first].place.grain_of("j") == 64
    assert all(not c.place.grains or dict(c.place.grains).get("j") == 64 for c in best.solution.places.values())


def test_the_second_plan_of_an_explicit_request_places_something_else() -> None:
    best, second = planned(chain(64, 256, 64), 4, "tp=4")
    assert second is not None and second.solution.objective >= best.solution.objective
    assert any(best.solution.places[op].place != c.place for op, c in second.solution.places.items())


def test_the_automatic_plan_is_the_cheapest_division() -> None:
    text = chain(128, 256, 128, rows=4096)
    best, second = planned(text, 4)
    assert second is not None and best.degrees != second.degrees
    prices = {}
    for plan in ("dp=4", "dp=2,tp=2", "tp=4"):
        d, t = (dict(p.split("=") for p in plan.split(",")).get(k, "1") for k in ("dp", "tp"))
        solution = programme(function_of(text), mesh_for(int(d), int(t)), cost_of(), Bounds(memory=10**11)).solve()
        assert solution is not None
        prices[int(d), int(t)] = solution.objective
    assert best.degrees == min(prices, key=prices.__getitem__) and best.solution.objective == pytest.approx(min(prices.values()))
    assert second.solution.objective == pytest.approx(sorted(prices.values())[1])


def test_the_gap_is_the_distance_to_the_proven_bound() -> None:
    best, _ = planned(layers(3), 4, "tp=4")
    assert best.solution.bound <= best.solution.objective
    assert best.solution.gap == pytest.approx(1 - best.solution.bound / best.solution.objective, abs=1e-9)


@pytest.mark.parametrize(("plan", "message"), [("dp=3", "what fits: dp=1,tp=8, dp=2,tp=4"), ("tp=8,tp=1", "twice"), ("pp=8", "not available yet"), ("fast", "not part of a plan"), ("", "empty")])
def test_what_is_no_plan(plan: str, message: str) -> None:
    with pytest.raises(DmlcError, match=message):
        module_with(chain(8, 8), 8, plan)
