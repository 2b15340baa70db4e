"""The simulated step: laws, loops against their unrolled form, what its memory is made of, and what peeling is for."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from training_programs import perceptron_step

import dmlc.ops  # noqa: F401
from dmlc import driver
from dmlc.cluster import Cluster, Link
from dmlc.cost import CostModel
from dmlc.ir.core import Block, Module, Op, Value
from dmlc.passmanager import Context, PassManager, parse_pipeline
from dmlc.pipelines import PIPELINES
from dmlc.simulate.engine import simulate_module
from dmlc.simulate.liveness import block_liveness
from dmlc.simulate.step import StepReport, simulate_step
from dmlc.training import Training


def report(module: Module) -> StepReport:
    return simulate_step(module, CostModel.of(module))


def scheduled(module: Module) -> Module:
    PassManager(parse_pipeline("cse,dce,schedule")).run(module, Context())
    return module


def unrolled(block: Block) -> None:
    """Every loop of the block written out: a copy of the body an iteration, and the sums of what they yield."""
    for op in block:
        if op.name == "dmlc.microbatch":
            totals: list = []
            for _ in range(op.attrs["count"]):
                given = _copy_before(op)
                totals = [_sum_before(op, t, g) for t, g in zip(totals, given)] or given
            op.replace(totals)
        elif op.name == "dmlc.copy":  # stands for a mask: no work here
            op.replace([op.operands[0]])


def _sum_before(loop: Op, total: Value, given: Value) -> Value:
    assert loop.block is not None
    return loop.block.insert_before(loop, Op("dmlc.add", [total, given], [total.type])).results[0]


def _copy_before(loop: Op) -> list:
    assert loop.block is not None and loop.parent is not None
    mapping = {loop.region.block.args[0]: loop.parent.region.block.ops[0].results[0]}
    for inner in loop.region.block.ops[:-1]:
        loop.block.insert_before(loop, inner.clone(mapping))
    return [mapping[v] for v in loop.region.block.terminator.operands]


@pytest.mark.parametrize("peel", [False, True])
@pytest.mark.parametrize("width", [16, 512])
def test_bounds(peel: bool, width: int) -> None:
    found = report(scheduled(perceptron_step(width=width, peel=peel)))
    assert found.time >= max(found.computation, *found.streams.values()) > 0
    assert found.exposed == found.time - found.computation - found.starved >= 0
    assert found.communication == sum(found.streams.values()) == sum(t.time for t in found.traffic.values())
    assert 0 <= found.exposed_share <= 1


def test_a_program_without_loops_takes_what_the_engine_says() -> None:
    module = scheduled(perceptron_step(count=2))
    loop = next(op for op in module.main.ops() if op.name == "dmlc.microbatch")
    assert loop.attrs["count"] == 1
    unrolled(module.main.body)
    found, engine = report(module), simulate_module(module, CostModel.of(module))
    assert (found.time, found.computation, found.peak) == (engine.makespan, engine.busy["compute"], engine.peak)


@pytest.mark.parametrize("before", [False, True], ids=["idle", "busy"])
def test_a_loop_takes_as_long_as_its_iterations(before: bool) -> None:
    """Also where a collective is in flight when the loop begins and the body communicates."""
    modules = [perceptron_step(count=6, width=256, peel=False) for _ in range(2)]
    for module in modules:
        for op in module.main.ops():
            if op.name == "dmlc.copy":
                op.replace([op.operands[0]])
        _communicate_in_loop(module, before)
    unrolled(modules[1].main.body)
    looped, written_out = map(report, modules)
    assert (looped.time, looped.computation, looped.streams, looped.traffic) == (
        written_out.time,
        written_out.computation,
        written_out.streams,
        written_out.traffic,
    )


def _communicate_in_loop(module: Module, before: bool) -> None:
    """Move the reduction of the first gradient into the loop; with `before`, start a large one in front of it."""
    main = module.main
    loop = next(op for op in main.ops() if op.name == "dmlc.microbatch")
    reduction = next(op for op in main.ops() if op.name == "comm.all_reduce")
    last = loop.region.block.terminator
    inner = Op("comm.all_reduce", [last.operands[0]], [reduction.results[0].type], dict(reduction.attrs))
    loop.region.block.insert_before(last, inner)
    last.set_operand(0, inner.results[0])
    if before:
        from dmlc.ir.types import FutureType

        weight = next(a for a in main.args if a.name == "w0")
        start = Op("comm.all_reduce_start", [weight] * 40, [FutureType((weight.type,) * 40)], dict(reduction.attrs))
        main.body.insert_before(loop, start)
        main.body.insert_before(main.body.terminator, Op("comm.wait", start.results, [weight.type] * 40))


def test_more_bytes_are_never_faster() -> None:
    for peel in (False, True):
        times = [report(scheduled(perceptron_step(width=width, peel=peel))).time for width in (16, 32, 64, 128, 256)]
        assert times == sorted(times)
        written = [report(perceptron_step(width=width, peel=peel)).time for width in (16, 512, 2048)]
        assert written == sorted(written) and written[-1] > written[0]  # the host bounds the small ones


def test_more_iterations_take_more_time_and_the_same_traffic() -> None:
    few, many = (report(perceptron_step(count=count, peel=False)) for count in (2, 64))
    assert many.time > few.time and many.traffic == few.traffic
    assert (many.computation - few.computation) % 62 == 0


def test_the_last_iteration_peeled_hides_the_gradients_reduction() -> None:
    """8 layers of 1024 on a network: in one loop every reduction waits for the last microbatch; peeled they run beside its backward pass."""
    kept, peeled = (report(scheduled(perceptron_step(8, 1024, 8192, 4, peel, ranks=16))) for peel in (False, True))
    assert kept.traffic["all_reduce"].bytes == peeled.traffic["all_reduce"].bytes
    assert peeled.time < kept.time
    assert kept.exposed_share > 0.6 and peeled.exposed_share < 0.25


# ---------------------------------------------------------------- memory


def test_the_peak_is_the_liveness_functions_and_adds_up() -> None:
    for peel in (False, True):
        module = scheduled(perceptron_step(peel=peel))
        found = report(module)
        assert found.peak == sum(found.memory.values()) == block_liveness(module.main.body).peak


def test_memory_by_category() -> None:
    """4 weights of 64 x 64 in f32; momentum as large; at the backward pass of the peeled iteration all accumulators are there."""
    size = 4 * 64 * 64 * 4
    found = report(perceptron_step(4, 64, rows=512))
    assert found.memory["parameters"] == size
    assert found.memory["states"] == size
    assert size <= found.memory["gradients"] <= 2 * size
    assert found.memory["activations"] >= 4 * 512 * 64 * 4  # every layer's output is kept for its backward pass
    assert found.memory["other"] >= 4 * 512 * 64 * 4  # the input of all microbatches


def test_memory_of_a_loop_counts_its_body_once() -> None:
    few, many = (report(perceptron_step(4, 64, 512, count, peel=False)).memory for count in (4, 8))
    assert many["activations"] == few["activations"] > 0
    assert many["other"] - few["other"] == 4 * 512 * 64 * 4


def test_the_report_is_the_same_each_time() -> None:
    assert report(scheduled(perceptron_step())) == report(scheduled(perceptron_step()))


# ---------------------------------------------------------------- the real pipeline

BATCH, WIDTH, DEPTH = 65536, 512, 6


def wide():
    """A deep perceptron, for `driver.load`."""
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 5)), (torch.zeros(BATCH, WIDTH),), {}


@functools.cache
def compiled(peel: bool) -> Module:
    """Four ranks on a network, four microbatches, up to the schedule."""
    training = Training(loss="cross-entropy", optimizer="sgd")
    source = driver.load(f"{__file__}:wide", driver.Options(train=training))
    module = source.module.clone()
    driver.annotate(module, driver.Options(train=training, plan="dp=4", devices=4, microbatches=4))
    slow = replace(Cluster.named("h100", 4), links=(Link("network", 0, 8_000_000, 25 * 10**9),))
    module.attrs["dmlc.cluster"] = slow.to_attr()
    text = PIPELINES["training"].split(",plan-memory")[0]
    PassManager(parse_pipeline(text if peel else text.replace(",partition,", ",partition{peel=false},"), PIPELINES)).run(module, Context(source.weights))
    return module


def test_a_compiled_step_hides_its_gradients_reduction() -> None:
    kept, peeled = (report(compiled(peel)) for peel in (False, True))
    assert {op.attrs.get("dmlc.phase") for op in compiled(True).main.ops()} >= {"update"}
    assert kept.traffic["all_reduce"].bytes == peeled.traffic["all_reduce"].bytes
    assert peeled.time < kept.time
    assert kept.exposed_share > 0.7
    assert peeled.exposed_share < 0.2


def test_memory_of_a_compiled_step() -> None:
    """Parameters, and their gradients as accumulators; SGD without momentum has no state but its counters."""
    held = report(compiled(True)).memory
    parameters = 4 * (DEPTH * (WIDTH * WIDTH + WIDTH) + 5 * WIDTH + 5)
    assert held["parameters"] == parameters
    assert parameters <= held["gradients"] <= 2 * parameters
    assert held["states"] <= 64
    assert held["activations"] > DEPTH * 4 * WIDTH * BATCH // 16


def test_an_updated_argument_gives_its_memory_back() -> None:
    """With hardly any activation the peak is in the update: all parameters and their momentum once, and the new pair of one parameter."""
    layers, size = 8, 64 * 64 * 4
    module = scheduled(perceptron_step(layers, 64, rows=2, count=2, device="h100"))
    found = report(module)
    assert found.memory["parameters"] + found.memory["states"] <= 2 * layers * size + 3 * size
    last = block_liveness(module.main.body)
    ends = {r.storage.value: r.end for r in last.ranges}
    assert any(ends[a] < len(last.ops) - 1 for a in module.main.args if a.name.startswith("w"))
