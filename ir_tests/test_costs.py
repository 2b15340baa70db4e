"""Clusters, costs and choices: text round trips, and the laws that prices must keep."""

from __future__ import annotations

import pytest

import dmlc.ops  # noqa: F401
from dmlc.cluster import DEVICES, Cluster, Link, device_named
from dmlc.cost import Cost, CostModel
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.ir.sharding import Mesh
from dmlc.simulate import Choice

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@pytest.mark.parametrize("cluster", [
    Cluster.named("h100", 8),
    Cluster.named("a100", 16, memory_limit=10**9),
    Cluster(device_named("cpu"), 4, (Link("fast", 2, 1, 10**9), Link("slow", 0, 5, 10**8, "test"))),
    Cluster(device_named("h100").__class__("mine", AttrDict(f32=10**12), 10**9, 10**11, 7, "test"), 3),
])  # fmt: skip
def test_a_cluster_survives_its_text(cluster):
    assert Cluster.from_attr(cluster.to_attr()) == cluster
    module = Module()
    module.attrs["dmlc.cluster"] = cluster.to_attr()
    assert Cluster.of(parse_module(print_module(module))) == cluster


def test_a_wrong_device_gets_a_suggestion():
    with pytest.raises(DmlcError, match="did you mean 'h100'"):
        Cluster.from_attr("h10")


def test_the_mesh_decides_the_link():
    cluster = Cluster.named("h100", 16)
    mesh = Mesh.make(data=2, model=8)
    assert cluster.link(mesh, ("model",)).name == "nvlink"
    assert cluster.link(mesh, ("data",)).name == "network"
    assert cluster.link(mesh, ("data", "model")).name == "network"


@pytest.mark.parametrize("device", sorted(DEVICES))
@pytest.mark.parametrize("kind", KINDS)
def test_laws_of_collectives(device, kind):
    """Monotone in bytes, one rank costs nothing, more nodes cost no less, a scatter is half an all-reduce."""
    cost = CostModel(Cluster.named(device, 16))
    mesh = Mesh.make(data=2, model=8)
    times = [cost.collective(kind, n, ("model",), mesh).time for n in (0, 1, 10**3, 10**6, 10**9)]
    assert times == sorted(times) and times[0] == cost.startup(kind, ("model",), mesh) > 0
    assert cost.collective(kind, 10**6, ("model",), Mesh.make(model=1)) == Cost()
    assert cost.collective(kind, 10**6, ("data", "model"), mesh).time > times[3]
    whole, half = (cost.collective(k, 10**9, ("model",), mesh).bytes for k in ("all_reduce", "reduce_scatter"))
    assert whole == 2 * half == 2 * 7 * 10**9 // 8


def test_an_unknown_collective_has_no_price():
    with pytest.raises(DmlcError, match="no cost is known"):
        CostModel(Cluster.named("cpu")).collective("gossip", 1, (), Mesh.make())


def op_cost(text: str, device: str = "h100") -> Cost:
    module = parse_module(f"func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x256xf32>, %i: tensor<8xi64>) {{\n{text}\n  func.return\n}}")
    return CostModel(Cluster.named(device)).op(module.main.body.first)  # type: ignore[arg-type]


def test_prices_of_ops():
    product = op_cost("%y = dmlc.matmul %x, %w : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>")
    assert product.flops == 2 * 64 * 128 * 256 and product.bytes == 4 * (64 * 128 + 128 * 256 + 64 * 256)
    view = op_cost("%y = dmlc.reshape %x : (tensor<64x128xf32>) -> tensor<8192xf32>")
    assert view == Cost()
    rows = op_cost("%y = dmlc.embedding %x, %i : (tensor<64x128xf32>, tensor<8xi64>) -> tensor<8x128xf32>")
    assert rows.bytes == 4 * 8 * 128 * 2 + 8 * 8  # only the rows asked for are read
    assert op_cost("%y = dmlc.exp %x : (tensor<64x128xf32>) -> tensor<64x128xf32>", "cpu").time > op_cost("%y = dmlc.exp %x : (tensor<64x128xf32>) -> tensor<64x128xf32>").time


def test_sums_are_as_sure_as_their_worst_part():
    assert (Cost(1, 2, 3, "measured") + Cost(1, 2, 3, "default")) == Cost(2, 4, 6, "default")


ANNOTATED = """
func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32> {dmlc.role = "param", dmlc.regather = "once"}) -> tensor<4xf32> {
  %0 = dmlc.mul %x, %w {dmlc.place = {e0 = ["data"]}, dmlc.group = 0 : i64, dmlc.stage = 1 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = dmlc.exp %0 {dmlc.group = 0 : i64, dmlc.precision = "high", dmlc.remat = true, dmlc.complete = ["0"]} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = dmlc.neg %1 {dmlc.chunks = 2 : i64, dmlc.prefetch = "0"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %2 : tensor<4xf32>
}
"""


def test_a_choice_survives_its_text():
    module = parse_module(ANNOTATED)
    choice = Choice.of(module)
    assert choice.complete == AttrDict({"0": "1"}) and choice.groups == (("0", "1"),) and choice.recompute == frozenset({"1"})
    assert choice.regather == AttrDict(w="once") and choice.order == AttrDict(main=("0", "1", "2")) and choice.chunks == AttrDict({"2": 2})
    assert hash(choice) == hash(Choice.of(parse_module(ANNOTATED)))
    bare = parse_module(ANNOTATED)
    Choice().annotate(bare)
    assert "dmlc.group" not in print_module(bare) and Choice.of(bare, order=False) == Choice()
    choice.annotate(bare)
    assert Choice.of(bare) == choice
