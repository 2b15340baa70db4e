"""The event engine: a timeline worked out by hand for each of its rules, and the same account as the orders' own engine."""

from __future__ import annotations

import random
import re

import pytest
from timed_programs import FUTURE, Fleet, T, compute, loop, program, random_lines, receive, send, stages, start, stated, sync, wait

from dmlc.cluster import Cluster, Link, device_named
from dmlc.cluster.cluster import Host
from dmlc.cost import CostModel
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.simulate.engine import simulate_module
from dmlc.simulate.step import StepReport, simulate_step

NVLINK, NETWORK = Link("nvlink", 2, 2_000_000, 360 * 10**9, kind="nvlink"), Link("network", 0, 8_000_000, 45 * 10**9)
Spans = dict[str, tuple[int, int]]


def spans(report: StepReport) -> Spans:
    return {e.op: (e.begin, e.end) for e in report.events}


def run(lines: list[str], mesh: str = '"data"=2, "model"=2', delays: dict[int, float] | None = None, **prices) -> tuple[StepReport, Spans]:
    report = simulate_step(program(lines, mesh), stated(**prices), delays)
    return report, spans(report)


# ---------------------------------------------------------------- one rank


def test_computations_run_one_after_the_other() -> None:
    report, at = run([compute("a", 5), compute("b", 0), compute("c", 7)])
    assert at == {"a": (0, 5), "b": (5, 5), "c": (5, 12)}
    assert (report.time, report.computation, report.exposed) == (12, 12, 0)


def test_a_start_costs_nothing_and_a_wait_holds_up_what_follows() -> None:
    report, at = run([compute("a", 5), start("s", 20), compute("b", 8), wait("s"), compute("c", 1)])
    assert at == {"a": (0, 5), "s": (5, 25), "b": (5, 13), "s_wait": (13, 25), "c": (25, 26)}
    assert (report.computation, report.communication, report.exposed) == (14, 20, 12)


def test_a_collective_begins_when_everything_issued_before_is_done() -> None:
    """`t` is issued after the wait for `s`, though it does not need it."""
    _, at = run([start("s", 20), wait("s"), start("t", 3, "model"), wait("t")])
    assert at["t"] == (20, 23)


def test_a_stream_is_first_in_first_out_and_streams_run_side_by_side() -> None:
    _, at = run([start("s", 20), start("t", 10), start("m", 15, "model"), wait("t"), wait("s"), wait("m"), compute("c", 1)])
    assert (at["s"], at["t"], at["m"]) == ((0, 20), (20, 30), (0, 15))
    assert (at["t_wait"], at["s_wait"], at["c"]) == ((0, 30), (30, 30), (30, 31))


def test_a_collective_without_a_start_is_waited_for_at_once() -> None:
    report, at = run([compute("a", 5), sync("s", 10), compute("b", 5)])
    assert at == {"a": (0, 5), "s": (5, 15), "b": (15, 20)}
    assert report.exposed == 10


def test_copies_around_a_collective_are_computation_and_none_of_the_ops() -> None:
    """3 before each, 2 after: the first start is called at 5, its collective begins at 8."""
    copies = "test.before = 3 : i64, test.after = 2 : i64, "
    lines = [compute("a", 5), start("s", 20), compute("b", 4), wait("s"), sync("t", 10), compute("c", 1)]
    report, at = run([line.replace("{axes", f"{{{copies}axes") for line in lines])
    assert at == {"a": (0, 5), "s": (8, 28), "b": (8, 12), "s_wait": (12, 28), "t": (33, 43), "c": (45, 46)}
    assert report.by_kind["copies around collectives"] == 10 and (report.computation, report.exposed) == (20, 26)


def test_both_sides_slow_down_while_overlapped() -> None:
    """Computation at 50 %, the collective at 80 %: in the 40 that `a` needs, 32 of the collective are done; it stalls for the other 8."""
    report, at = run([start("s", 40), compute("a", 20), wait("s")], slow={"data": (50, 80)})
    assert (at["a"], at["s"]) == ((0, 40), (0, 48))
    assert (report.computation, report.exposed) == (40, 8)


def test_computation_goes_at_full_speed_once_the_collective_is_done() -> None:
    """The collective takes 10 / 0.5 = 20, in which 12 of `a` are done."""
    _, at = run([start("s", 10), compute("a", 20), wait("s"), compute("b", 5)], slow={"data": (60, 50)})
    assert (at["s"], at["a"], at["b"]) == ((0, 20), (0, 28), (28, 33))


def test_the_slowest_of_several_streams_counts_and_remainders_are_rounded_down() -> None:
    """`a` at 30 %: 7 take ceil(700 / 30) = 24. Until then floor(24 * 0.7) = 16 of `s` are done and floor(24 * 0.9) = 21 of `m`."""
    _, at = run([start("s", 20), start("m", 30, "model"), compute("a", 7), wait("s"), wait("m")], slow={"data": (30, 70), "model": (40, 90)})
    assert (at["a"], at["s"], at["m"]) == ((0, 24), (0, 28), (0, 33))


def test_collectives_share_a_link() -> None:
    """Both at half speed until the shorter is done at 20; the other has 20 left."""
    together = {"data": 7, "model": 7}
    _, at = run([start("s", 10), start("m", 30, "model"), wait("s"), wait("m")], links=together)
    assert (at["s"], at["m"]) == ((0, 20), (0, 40))
    report, at = run(
        [start("s", 10), start("m", 30, "model"), compute("a", 16), wait("s"), wait("m")], links=together, slow={"data": (50, 80), "model": (100, 80)}
    )
    assert at["s"] == (0, 25)  # 0.8 / 2 of its speed
    assert at["a"] == (0, 29)  # 12 of it by then, the rest at full speed beside `m`
    assert at["m"] == (0, 46)  # 10 by then, 3 more by the end of `a`, 17 alone
    assert report.bounds.communication == 40


def test_the_host_issues_one_unit_after_the_other() -> None:
    report, at = run(
        [compute("a", 1, host=10), compute("b", 1, host=10), start("s", 5, host=10), compute("c", 50, host=10), wait("s"), compute("d", 1, host=10)]
    )
    assert at == {"a": (10, 11), "b": (20, 21), "s": (30, 35), "c": (40, 90), "s_wait": (90, 90), "d": (90, 91)}
    assert (report.host, report.starved, report.exposed, report.time) == (50, 38, 0, 91)


def test_waits_do_not_hold_up_the_host() -> None:
    """While computation waits for `s` until 110 the host has issued all there is."""
    _, at = run([start("s", 100, host=10), wait("s"), *(compute(f"c{i}", 5, host=10) for i in range(3))])
    assert [at[f"c{i}"] for i in range(3)] == [(110, 115), (115, 120), (120, 125)]


def test_collectives_go_on_at_full_speed_while_computation_waits_for_the_host() -> None:
    """10 of `s` are done by the time that the host has issued `a`; both then share."""
    _, at = run([start("s", 20, host=10), compute("a", 10, host=10), wait("s")], slow={"data": (50, 50)})
    assert (at["s"], at["a"]) == ((10, 40), (20, 40))


# ---------------------------------------------------------------- several ranks


def test_equal_ranks_are_one_class() -> None:
    report, _ = run([compute("a", 5), sync("s", 5)], '"data"=8, "model"=8', cluster=Fleet((device_named("h100"),) * 64))
    assert report.ranks == tuple(range(64)) and report.classes == ()


def test_a_collective_begins_when_the_last_rank_arrives() -> None:
    """Rank 1 computes at half speed: rank 0 waits for it, and the collective takes its own time from then on."""
    report, at = run([compute("a", 10), start("s", 5), compute("b", 4), wait("s"), compute("c", 1)], '"data"=2', {1: 2})
    first, second = map(spans, report.classes)
    assert report.ranks == (1,) and at == second
    assert second == {"a": (0, 20), "s": (20, 25), "b": (20, 28), "s_wait": (28, 28), "c": (28, 30)}
    assert first == {"a": (0, 10), "s": (20, 25), "b": (10, 14), "s_wait": (14, 25), "c": (25, 26)}
    assert [r.exposed for r in report.classes] == [15, 0] and report.time == 30


def test_a_late_rank_holds_up_its_group_only() -> None:
    """Mesh 2 x 2: rank 3 is late. Its group along `model` (2, 3) meets late; 0 and 1 are on time until they meet 2 and 3 along `data`."""
    lines = [compute("a", 10), sync("m", 1, "model"), compute("b", 1), sync("d", 1, "data"), compute("c", 1)]
    report, _ = run(lines, delays={3: 3})
    assert [r.ranks for r in report.classes] == [(0,), (1,), (2,), (3,)]
    assert [spans(r)["m"] for r in report.classes] == [(10, 11), (10, 11), (30, 31), (30, 31)]
    assert [spans(r)["d"] for r in report.classes] == [(32, 33), (34, 35), (32, 33), (34, 35)]


def test_the_slower_class_slows_a_shared_collective_down() -> None:
    """Rank 0 stalls and would let it move at full speed; rank 1 computes until 40 and lets it move at half speed: 10 are left then."""
    report, _ = run([start("s", 25), compute("a", 10), wait("s")], '"data"=2', {1: 4 / 2}, slow={"data": (50, 50)})
    first, second = map(spans, report.classes)
    assert (first["a"], second["a"]) == ((0, 20), (0, 40))
    assert first["s"] == second["s"] == (0, 45)


def test_devices_of_an_uneven_cluster_are_classes() -> None:
    """Two hosts of different cards: the collective begins when the slower ones come to it."""
    hosts = [Host(device_named(name), 2, NVLINK, NETWORK) for name in ("h100", "a100")]
    x = "tensor<8192x8192xbf16>"
    lines = [f"%w = dmlc.full {{value = 1.0 : f64}} : () -> {x}", f"%a = dmlc.matmul %w, %w : ({x}, {x}) -> {x}"]
    lines.append(f'%s = comm.all_reduce %a {{axes = ["data"], combiner = "sum"}} : ({x}) -> {x}')
    module = program(lines, '"data"=4')
    report = simulate_step(module, CostModel(Cluster.of_hosts(hosts)))
    assert [(r.device, r.ranks) for r in report.classes] == [("h100", (0, 1)), ("a100", (2, 3))]
    fast, slow = ({e.name: e for e in r.events} for r in report.classes)
    assert fast["dmlc.matmul"].end < slow["dmlc.matmul"].end <= slow["comm.all_reduce"].begin == fast["comm.all_reduce"].begin
    assert report.device == "a100" and report.exposed < report.classes[0].exposed


def test_stages_of_a_pipeline_send_and_receive() -> None:
    """Two microbatches through two stages: a message moves when both ends are there, and both wait for it."""
    first = [compute("a0", 10), send("m0", 2, 1, tag=0), compute("a1", 10), send("m1", 2, 1, tag=1)]
    second = [receive("r0", 2, 0, tag=0), compute("b0", 15), receive("r1", 2, 0, tag=1), compute("b1", 15)]
    report, _ = run([stages("y", [first, second])], '"data"=2, "pipe"=2')
    sender, receiver = map(spans, report.classes)
    assert [r.ranks for r in report.classes] == [(0, 2), (1, 3)]
    assert sender == {"a0": (0, 10), "m0": (10, 12), "a1": (12, 22), "m1": (27, 29)}
    assert receiver == {"r0": (10, 12), "b0": (12, 27), "r1": (27, 29), "b1": (29, 44)}
    assert report.ranks == (1, 3) and report.time == 44 and report.exposed == 14
    assert report.traffic["recv"].count == 2 and report.streams["pipe"] == 4


def test_stages_that_wait_for_each_other_are_a_deadlock() -> None:
    crossed = [[send("m0", 2, 1), receive("r0", 2, 1, tag=1)], [send("m1", 2, 0, tag=1), receive("r1", 2, 0)]]
    with pytest.raises(DmlcError, match="deadlock") as error:
        run([stages("y", crossed)], '"pipe"=2')
    assert any("'comm.send' [m0]" in note for note in error.value.notes)
    half = [[send("m0", 2, 1)], [compute("b", 1)]]
    with pytest.raises(DmlcError, match="deadlock"):
        run([stages("y", half)], '"pipe"=2')


def test_stages_that_issue_different_collectives_are_refused() -> None:
    """Along an axis that both stages lie on."""
    report, _ = run([stages("y", [[sync("s", 1, "pipe")], [sync("t", 1, "pipe")]])], '"pipe"=2')
    assert report.time == 1
    gather = '%g = comm.all_gather %x {axes = ["pipe"], dims = [0], sizes = [8], grains = [1]} : (tensor<4xf32>) -> tensor<8xf32>'
    with pytest.raises(DmlcError, match="at the same place: all_reduce and all_gather"):
        run([stages("y", [[sync("s", 1, "pipe")], [gather]])], '"pipe"=2')


def test_unknown_ranks_and_delays_are_refused() -> None:
    with pytest.raises(DmlcError, match="no rank 9"):
        run([compute("a", 1)], delays={9: 2})
    with pytest.raises(DmlcError, match="positive"):
        run([compute("a", 1)], delays={0: 0})


# ---------------------------------------------------------------- loops


def test_a_loop_repeats_its_body() -> None:
    report, _ = run([loop("l", 5, [compute("a", 10), sync("s", 2), compute("b", 3)])])
    assert report.time == 75 and (report.computation, report.exposed) == (65, 10)
    assert [(e.begin, e.end) for e in report.events if e.op == "s"] == [(15 * i + 10, 15 * i + 12) for i in range(5)]
    assert len(report.run.lane.events) < 15  # most iterations are only counted


def unrolled(lines: list[str], count: int) -> list[str]:
    """`count` copies; the names and ids that they define get the iteration's number."""
    names = "|".join(re.escape(line.split(" = ")[0].strip("% ")) for line in lines)
    mine = re.compile(rf'(%(?:{names})\b|dmlc\.id = "(?:{names}|\w+_wait))')
    return [mine.sub(rf"\g<1>_{i}", line) for i in range(count) for line in lines]


PRICES = [{}, {"slow": {"data": (70, 45), "model": (90, 85)}}, {"slow": {"data": (60, 50), "model": (60, 50)}, "links": {"data": 0, "model": 0}}]


@pytest.mark.parametrize("prices", PRICES, ids=["plain", "slow", "shared"])
@pytest.mark.parametrize("host", [0, 30])
def test_random_loops_take_what_their_iterations_take(prices: dict, host: int) -> None:
    """Also with a collective in flight when the loop begins, and with the host ahead or behind."""
    skipped = 0
    for seed in range(60):
        rng = random.Random(seed)
        body = random_lines(rng, rng.randrange(1, 8), host=host) or [compute("u", 1)]
        count = rng.choice([1, 2, 7, 40])
        before = [start("early", rng.randrange(300), host=host)] if seed % 2 else []
        after = [wait("early")] if seed % 2 else []
        looped, _ = run([*before, loop("l", count, body), *after], **prices)
        plain, _ = run([*before, *unrolled(body, count), *after], **prices)
        same = ("time", "computation", "communication", "exposed", "traffic", "streams", "host", "starved", "by_kind")
        assert [getattr(looped, k) for k in same] == [getattr(plain, k) for k in same], seed
        assert [(e.begin, e.end, e.stream) for e in looped.events] == [(e.begin, e.end, e.stream) for e in plain.events], seed
        skipped += bool(looped.run.repeats)
    assert skipped > 10


def test_loops_of_classes_that_meet_in_them() -> None:
    """A straggler: both classes repeat themselves together, and their iterations are counted together."""
    body = [compute("a", 10), start("s", 30), compute("b", 7), wait("s"), start("m", 4, "model"), compute("c", 3), wait("m")]
    prices = {"slow": {"data": (70, 45), "model": (90, 85)}}
    looped = simulate_step(program([loop("l", 50, body)]), stated(**prices), {3: 1.5})
    plain = simulate_step(program(unrolled(body, 50)), stated(**prices), {3: 1.5})
    assert len(looped.classes) == 4 and all(len(r.run.lane.events) < 80 for r in looped.classes)
    for a, b in zip(looped.classes, plain.classes, strict=True):
        assert (a.time, a.computation, a.exposed, a.streams) == (b.time, b.computation, b.exposed, b.streams)
        assert [(e.begin, e.end) for e in a.events] == [(e.begin, e.end) for e in b.events]


def test_a_loop_inside_a_loop() -> None:
    inner = loop("k", 4, [compute("a", 10), start("s", 30), compute("b", 5), wait("s")])
    report, _ = run([loop("l", 6, [inner, sync("t", 7)])], slow={"data": (50, 50)})
    once, _ = run([inner, sync("t", 7)], slow={"data": (50, 50)})
    assert report.time == 6 * once.time and report.exposed == 6 * once.exposed


def test_a_loop_that_does_not_run_takes_no_time() -> None:
    lines = ["%none = dmlc.full {value = 0 : i64} : () -> tensor<i64>", loop("l", 0, [compute("a", 10)]).replace("dmlc.microbatch", "dmlc.microbatch %none")]
    text = [lines[0], lines[1].replace(": () ->", ": (tensor<i64>) ->")]
    assert run(text)[0].time == 0


def test_a_branch_is_the_one_that_takes_longest() -> None:
    yes = "%c = dmlc.full {value = true} : () -> tensor<i1>"
    short, long_ = [compute("a", 3), sync("s", 20)], [compute("b", 11), compute("c2", 11)]
    body = ", ".join("{\n" + "\n".join(lines) + "\ndmlc.yield %x : (tensor<4xf32>) -> ()\n}" for lines in (long_, short))
    _, at = run([yes, f"%y = dmlc.cond %c {body} : (tensor<i1>) -> tensor<4xf32>"])
    assert "s" in at and "b" not in at


def while_(count: str = "") -> list[str]:
    """A loop with 3 in its condition and 10 in its body, and a collective of 2 in that."""
    zero = "%go = dmlc.full {value = true} : () -> tensor<i1>"
    condition, body = "\n".join([compute("t", 3, of="k")]), "\n".join([compute("a", 10, of="k2"), sync("s", 2)])
    heads = [f"^bb{n}(%g{n}: tensor<i1>, %k{n or ''}: {T}):" for n in (0, 2)]
    regions = f"{{\n{heads[0]}\n{condition}\ndmlc.yield %g0 : (tensor<i1>) -> ()\n}}, {{\n{heads[1]}\n{body}\ndmlc.yield %g2, %a : (tensor<i1>, {T}) -> ()\n}}"
    return [zero, f"%w, %v = dmlc.while %go, %x {count}{regions} : (tensor<i1>, {T}) -> (tensor<i1>, {T})"]


def test_a_loop_that_its_data_ends_takes_as_long_as_it_is_taken_to_run() -> None:
    """Its condition too; without a number in its text it is one of the defaults that the report lists."""
    report, _ = run(while_("{count = 4 : i64} "))
    assert report.time == 4 * 15 and (report.computation, report.exposed) == (52, 8) and not report.defaults
    report, _ = run(while_())
    assert report.time == 8 * 15 and dict(report.defaults) == {"dmlc.while, 8 iterations": 1}
    assert report.bounds.best <= report.time


def test_rows_that_a_loop_stacks_are_copied() -> None:
    """On a processor: as if each iteration made a copy of its row."""
    cost = CostModel(Cluster.named("cpu", 4))
    stacked = f"%r = dmlc.scan {{count = 3 : i64}} {{\n^bb0(%i: tensor<i64>):\n{compute('a', 10)}\ndmlc.yield %a : ({T}) -> ()\n}} : () -> tensor<3x4xf32>"
    written = [line for i in range(3) for line in (compute(f"a{i}", 10), f"%c{i} = dmlc.copy %a{i} : ({T}) -> {T}")]
    assert simulate_step(program([stacked]), cost).time == simulate_step(program(written), cost).time > 0


# ---------------------------------------------------------------- the orders' engine


@pytest.mark.parametrize("part", range(4))
def test_the_account_is_that_of_the_engine_for_orders(part: int) -> None:
    """Programs of one class without loops: the same begin and end of every unit, the same sums, and no less than the bounds."""
    for seed in range(part * 100, part * 100 + 100):
        rng = random.Random(seed)
        module = program(random_lines(rng, rng.randrange(1, 30), host=rng.choice([0, 0, 5, 40]), packing=rng.choice([0, 30])))
        percent = [(rng.randrange(30, 101), rng.randrange(30, 101)) for _ in range(2)]
        cost = stated(
            slow=dict(zip(("data", "model"), percent)) if rng.random() < 0.8 else {},
            links={"data": 0, "model": 0} if rng.random() < 0.5 else {},
            calls={"data": 7, "model": 3} if rng.random() < 0.5 else {},
        )
        _agree(module, cost, seed)


def _agree(module: Module, cost: CostModel, seed: int) -> None:
    found, engine = simulate_step(module, cost), simulate_module(module, cost)
    assert (found.time, found.computation, found.exposed, found.starved, found.peak) == (
        engine.makespan,
        engine.busy["compute"],
        engine.exposed,
        engine.starved,
        engine.peak,
    ), seed
    units = {e.unit: (e.begin, e.end) for e in reversed(engine.timeline)}  # of a collective and its own wait, the first
    assert {e.op: (e.begin, e.end) for e in found.events if not e.wait} == {u: t for u, t in units.items() if not u.endswith("_wait")}, seed
    assert found.time >= found.bounds.best and found.bounds == engine.bounds, seed


def test_sums_of_a_loop_are_not_made_in_its_first_iteration() -> None:
    """On a processor an addition costs something: two of them in three iterations, as the emitted program does."""
    module = program([loop("l", 3, [compute("a", 10, of="x")], gives="a")])
    cost = CostModel(Cluster.named("cpu", 4))
    written = program([compute(f"a{i}", 10) for i in range(3)] + [f"%t{i} = dmlc.add %a{i - 1}, %a{i} : ({T}, {T}) -> {T}" for i in (1, 2)])
    assert simulate_step(module, cost).time == simulate_step(written, cost).time
    assert simulate_step(module, cost).bounds.best <= simulate_step(module, cost).time


def test_a_future_that_a_loop_carries() -> None:
    """Each iteration waits for the collective of the one before, and starts the next one's; the last is waited for after the loop."""
    body = [f'%d = comm.wait %c {{dmlc.id = "in"}} : ({FUTURE}) -> {T}', compute("a", 10), start("s", 25, of="a")]
    scan = (
        f"%r = dmlc.scan %f {{count = 4 : i64}} {{\n^bb0(%i: tensor<i64>, %c: {FUTURE}):\n"
        + "\n".join(body)
        + f"\ndmlc.yield %s : ({FUTURE}) -> ()\n}} : ({FUTURE}) -> {FUTURE}"
    )
    report, _ = run([start("f", 25), scan, wait("r")])
    assert [(e.begin, e.end) for e in report.events if e.op in ("f", "s")] == [(0, 25), (35, 60), (70, 95), (105, 130), (140, 165)]
    assert report.time == 165 and report.exposed == 125 and report.computation == 40
