"""Prices of ops: laws on random shapes, tiles and waves, the processor's sums, and what was measured before what is modelled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dmlc.ops  # noqa: F401
from dmlc.cluster import DEVICES, Cluster, Link, device_named
from dmlc.cost import Cost, CostModel, roofline
from dmlc.cost.measured import Measurements
from dmlc.cost.signature import op_key
from dmlc.cost.work import Product, kind_of, product_of
from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, Op
from dmlc.ir.parser import parse_module
from dmlc.ir.registry import DEFINITIONS
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType
from dmlc.ops.base import definition, flops_of


def made(name: str, *shapes: tuple[int, ...], dtype: str = "f32", **attrs) -> Op:
    block = Block(tuple(TensorType(s, dtype) for s in shapes))
    return Builder(block).op(name, block.args, attrs)


def priced(op: Op, device: str = "a100", measured: Measurements | None = None) -> Cost:
    return CostModel(Cluster.named(device), measured).op(op)


def samples() -> list[Op]:
    """The ops' own test cases."""
    found = []
    for name, d in sorted(DEFINITIONS.items()):
        for sample in (getattr(d, "samples", None) or (lambda: []))():
            op = Op(name, Block(sample.operands).args, sample.results or (), dict(sample.attrs))
            results = sample.results or d.result_types(sample.operands, dict(sample.attrs))
            found.append(Op(name, op.operands, tuple(results), dict(sample.attrs)))
    return found


# ---------------------------------------------------------------- laws


@pytest.mark.parametrize("device", ["cpu", "h100"])
def test_every_op_has_a_price_and_its_own_operations(device):
    """Above zero but for views; exactly twice the multiply-adds of its definition; bytes of operands and results, or fewer where a table is indexed."""
    seen = set()
    for op in samples():
        cost = priced(op, device)
        free = definition(op).view is not None or definition(op).cost == "free"
        assert (cost.time > 0) or free, op.name
        assert cost.flops == 2 * flops_of(op) if not free else cost.flops == 0, op.name
        whole = sum(v.tensor.bytes for v in (*dict.fromkeys(op.operands), *op.results))
        assert cost.bytes <= whole, op.name
        assert cost.source == ("default" if kind_of(op) is None and not free else "model"), op.name
        seen.add(op.name)
    assert len(seen) > 120


def test_what_a_default_priced_is_listed():
    cost = CostModel(Cluster.named("h100"))
    for shape in ((8,), (8,), (16,)):
        cost.op(made("dmlc.sort", shape, dim=0, descending=False))
    cost.op(made("dmlc.relu", (8,)))
    assert cost.defaults == {"dmlc.sort": 2}


dims = st.integers(1, 5000)


@given(st.sampled_from(sorted(DEVICES)), dims, dims, dims, st.sampled_from((2, 3)))
@settings(max_examples=150, deadline=None)
def test_a_larger_product_is_never_faster(device, m, n, k, times):
    plain = priced(made("dmlc.matmul", (m, k), (k, n)), device).time
    assert all(priced(made("dmlc.matmul", *shapes), device).time >= plain for shapes in (((m * times, k), (k, n)), ((m, k * times), (k * times, n)), ((m, k), (k, n * times))))


@given(st.sampled_from(sorted(DEVICES)), st.sampled_from(("dmlc.relu", "dmlc.exp", "dmlc.neg")), st.integers(1, 10**8), st.integers(1, 10**8))
@settings(max_examples=150, deadline=None)
def test_more_bytes_never_take_less(device, name, a, b):
    small, large = (priced(made(name, (n,)), device).time for n in sorted((a, b)))
    assert 0 < small <= large


@given(st.sampled_from(sorted(DEVICES)), st.integers(1, 10**8), dims, dims, st.integers(101, 1000))
@settings(max_examples=100, deadline=None)
def test_a_better_device_is_never_slower(device, n, m, k, percent):
    plain = device_named(device)
    wide = replace(plain, bandwidth=plain.bandwidth * percent // 100)
    strong = replace(plain, peak=AttrDict({d: r * percent // 100 for d, r in plain.peak.items()}))
    for op in (made("dmlc.relu", (n,)), made("dmlc.matmul", (m, k), (k, m))):
        before = CostModel(Cluster(plain)).op(op).time
        assert all(CostModel(Cluster(better)).op(op).time <= before for better in (wide, strong))


# ---------------------------------------------------------------- gpus


def test_products_reach_what_good_shapes_reach_and_small_ones_do_not():
    """A100: cuBLAS reaches some 250 of 312 TFLOP/s on 4096^3 in bf16 (271 on its best shape), a few percent on 128^3."""
    rates = {n: 2 * n**3 / priced(made("dmlc.matmul", (n, n), (n, n), dtype="bf16")).time for n in (128, 1024, 4096)}
    assert 225 < rates[4096] < 272 and 60 < rates[1024] < 225 and rates[128] < 5


def test_a_last_wave_is_as_long_as_a_full_one():
    """108 units: 108 tiles of the largest kind take one wave, 109 two; one column more than whole tiles costs a wave where the waves are full."""
    rate = roofline.best_rate(device_named("a100"), "bf16")
    times = [roofline._tiled(Product(count, 256, 128, 8192), rate, 108, roofline.TILES[0], 1) for count in (107, 108, 109, 216)]
    assert times[0] == times[1] and times[2] == times[3] > 1.9 * times[1]
    assert roofline.product(Product(1, 256, 128, 8192), rate, 108) < times[0]  # smaller tiles and parts of the inner dim fill the units


def test_an_unknown_number_of_units_rounds_nothing():
    rate = 10**14
    assert roofline.product(Product(1, 100, 100, 100), rate, 0) == 2 * 10**6 * 10**12 // rate


def test_convolutions_are_products_with_their_own_operations():
    x, w = (8, 64, 56, 56), (128, 64, 3, 3)
    for op in (made("dmlc.conv", x, w, padding=(1, 1, 1, 1)), made("dmlc.conv", x, (128, 16, 3, 3), padding=(1, 1, 1, 1), groups=4)):
        assert product_of(op).macs == flops_of(op)
    y = made("dmlc.conv", x, w, padding=(1, 1, 1, 1)).result.type
    block = Block((TensorType(x, "f32"), y))
    grad = Builder(block).op("dmlc.conv_weight_grad", block.args, {"padding": (1, 1, 1, 1)}, [TensorType(w, "f32")])
    assert product_of(grad) == Product(1, 128, 64 * 9, 8 * 56 * 56)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 6))
def test_a_contraction_is_a_product(m, n, k, batch):
    found = {
        product_of(made("dmlc.matmul", (batch, m, k), (batch, k, n))),
        product_of(made("dmlc.contract", (batch, k, m), (batch, n, k), equation="bki,bjk->bij")),
    }
    assert found == {Product(batch, m, n, k)}
    assert product_of(made("dmlc.linear", (batch, m, k), (n, k))) == Product(1, batch * m, n, k)


FUSED = """
func.func @main(%x: tensor<1024x1024xf32>, %y: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
  %r = "kernel.fused"(%x, %y) ({
  ^bb0(%a: tensor<1024x1024xf32>, %b: tensor<1024x1024xf32>):
    %s = dmlc.add %a, %b : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %e = dmlc.exp %s : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    "kernel.yield"(%e) : (tensor<1024x1024xf32>) -> ()
  }) : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
  func.return %r : tensor<1024x1024xf32>
}
"""


def test_a_kernel_is_one_pass_on_a_gpu_and_the_sum_of_its_ops_on_a_processor():
    fused = parse_module(FUSED).main.body.first
    assert fused is not None
    inside = [o for o in fused.region.block if o.name != "kernel.yield"]
    for device in ("h100", "cpu"):
        alone = sum((priced(o, device) for o in inside), Cost())
        together = priced(fused, device)
        assert together.time == alone.time if device == "cpu" else together.time < alone.time
        assert together == priced(fused, device)


def test_the_host_issues_ops_to_gpus_only():
    op, view = made("dmlc.relu", (8,)), made("dmlc.transpose", (8, 4), perm=(1, 0))
    gpu, cpu = (CostModel(Cluster.named(d)) for d in ("h100", "cpu"))
    assert gpu.host(op) > gpu.host(view) > 0 == cpu.host(op)


def test_each_call_on_a_processor_costs_its_dispatch():
    assert 2_000_000 < priced(made("dmlc.add", (1,), (1,)), "cpu").time < 5_000_000
    assert priced(made("dmlc.transpose", (8, 4), perm=(1, 0)), "cpu").time > 0 == priced(made("dmlc.transpose", (8, 4), perm=(1, 0)), "h100").time


def test_a_short_product_on_a_processor_is_slow_and_a_large_one_is_not():
    peak = device_named("cpu").rate("f32")
    rate = {m: 2 * m * 1024 * 1024 / (priced(made("dmlc.matmul", (m, 1024), (1024, 1024)), "cpu").time / 1e12) for m in (1, 8, 1024)}
    assert rate[1] < 0.45 * peak and 0.3 * peak < rate[8] < 0.7 * peak < 0.85 * peak < rate[1024] < peak


# ---------------------------------------------------------------- measured


def test_what_was_measured_wins():
    op, other = made("dmlc.matmul", (64, 64), (64, 64)), made("dmlc.matmul", (64, 64), (64, 65))
    known = Measurements(ops={op_key(op): 123}, samples={("matmul", "f32"): (((1, 64, 65, 64), 456_000_000),)})
    for device in ("cpu", "h100"):
        assert priced(op, device, known) == Cost(123, 3 * 4 * 64 * 64, 2 * 64**3, "measured")
        assert priced(other, device, known).source == "measured"
        assert priced(other, "cpu", known).time == pytest.approx(456_000_000, rel=0.02)
    assert priced(made("dmlc.exp", (4,)), "cpu", known).source == "model"


def test_samples_correct_the_model_between_them():
    """A machine twice as slow as the model on small tensors and five times on large ones."""
    op = {n: made("dmlc.add", (n,), (n,)) for n in (1 << 10, 1 << 14, 1 << 18)}
    plain = {n: priced(o, "cpu").time for n, o in op.items()}
    known = Measurements(samples={("pointwise", "f32"): (((12 << 10,), 2 * plain[1 << 10]), ((12 << 18,), 5 * plain[1 << 18]))})
    found = {n: priced(o, "cpu", known).time / plain[n] for n, o in op.items()}
    assert found[1 << 10] == pytest.approx(2, rel=0.01) and found[1 << 18] == pytest.approx(5, rel=0.01) and found[1 << 14] == pytest.approx(3.5, rel=0.05)


def test_measured_collectives_win_and_stand_in_for_kinds_that_were_not():
    mesh, link = Mesh.make(data=2), Link("net", 0, 50_000_000, 125 * 10**6, backend="gloo")
    cluster = Cluster(device_named("cpu"), 2, (link,))
    known = Measurements(collectives={("all_reduce", 2, "net"): ((0, 10**8), (1 << 20, 10**10))}, overlaps={"net": (71, 83)})
    model, cost = CostModel(cluster), CostModel(cluster, known)
    assert cost.collective("all_reduce", 1 << 20, ("data",), mesh) == Cost(10**10, 1 << 20, 0, "measured")
    assert cost.startup("all_reduce", ("data",), mesh) == 10**8
    gather, reduced = (model.collective(kind, 1 << 20, ("data",), mesh).time for kind in ("all_gather", "all_reduce"))
    assert cost.collective("all_gather", 1 << 20, ("data",), mesh).time == 10**10 * gather // reduced
    assert cost.slow_down(("data",), mesh) == (71, 83)
    shared = CostModel(cluster, Measurements(cores={"net": 20}))
    assert shared.slow_down(("data",), mesh) == (60, 100)
    assert shared.collective("all_reduce", 1 << 20, ("data",), mesh).source == "model"


def test_a_start_on_a_processor_costs_its_call_and_what_it_packs():
    """One tensor that nothing else reads is reduced in place; several are copied into one buffer, and so is one that is read later."""
    lines = "\n".join(f'%{n} = dmlc.exp %x : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>' for n in "abc")
    reduced = "\n".join(
        f'%{n}{n} = comm.all_reduce %{n} {{axes = ["data"], combiner = "sum"}} : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>' for n in "abc"
    )
    module = parse_module(
        f"""builtin.module attributes {{dmlc.spmd}} {{
  dmlc.mesh {{sym_name = "mesh", axes = #dmlc.axes<["data"=2]>}} : () -> ()
  func.func @main(%x: tensor<1024x1024xf32> {{dmlc.role = "input"}}) -> (tensor<1024x1024xf32>) {{
{lines}
{reduced}
    %d = dmlc.add %c, %cc : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    func.return %d : tensor<1024x1024xf32>
  }}
}}
"""
    )
    a, b, c = (op for op in module.main.body if op.name == "comm.all_reduce")
    cost, mesh = CostModel(Cluster.named("cpu", 2)), Mesh.make(data=2)
    call = cost.call(("data",), mesh)
    assert cost.starting([a]) == cost.copies(a)[0] == call > 0
    assert cost.starting([c]) > call, "read later: copied"
    assert cost.starting([a, b]) - call > 1.9 * (cost.starting([c]) - call)
    known = CostModel(cost.cluster, Measurements(samples={("concat", "f32"): (((16 << 20,), 7 * 10**9),)}))
    assert known.starting([a, b]) == call + 7 * 10**9, "as measured"
    device = CostModel(Cluster.named("h100", 2))
    assert device.starting([a, b]) == 0, "a device's memory is much faster than its links"
