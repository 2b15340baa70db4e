"""Clusters: the catalogue, links of equal and of different hosts, paths in the graph, the text form."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

import dmlc.ops  # noqa: F401
from dmlc.cluster import DEVICES, Cluster, Device, Host, Link, Switch, device_named
from dmlc.cluster.catalogue import DEFAULT_LINKS, device_called
from dmlc.cluster.cluster import host_size
from dmlc.cluster.device import GIGA, TERA, slowest
from dmlc.cluster.file import __doc__ as EXAMPLE
from dmlc.cluster.file import parse_cluster
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.ir.sharding import Mesh

US = 10**6
NVLINK = Link("nvlink", 0, 2 * US, 300 * GIGA, kind="nvlink")
PCIE = Link("pcie", 0, 6 * US, 20 * GIGA, kind="pcie")
ADAPTER = Link("ib", 0, 8 * US, 25 * GIGA)
H100, A100, L4 = (device_named(n) for n in ("h100", "a100", "l4"))


# ---------------------------------------------------------------- catalogue

NAMES = "v100 v100-16 a100 a100-40 a100-pcie a100-pcie-40 h100 h100-pcie h200 b200 mi300x t4 l4 l40s a10 rtx4090 cpu"


def test_the_catalogue_is_whole():
    assert set(DEVICES) == set(NAMES.split()) == set(DEFAULT_LINKS)
    for name, device in DEVICES.items():
        assert device.name == name and device.source and device.watts > 0 and device.units > 0 and device.launch > 0
        assert device.memory >= 8 * GIGA and device.bandwidth >= 10 * GIGA
        assert (device.kind == "cpu") == (name == "cpu")


@pytest.mark.parametrize("name", [n for n in DEVICES if n != "cpu"])
def test_rates_are_dense_and_in_order(name):
    """A sheet's sparse number would be twice its dense neighbour: fp8 is at most twice bf16, bf16 at most twice TF32 on devices that have it."""
    peak = DEVICES[name].peak
    assert peak["f64"] <= peak["f32"] < peak["f16"]
    assert "tf32" not in peak or peak["f32"] <= peak["tf32"] <= peak["f16"] <= 2.02 * peak["tf32"]
    assert "f8E4M3FN" not in peak or peak["f8E4M3FN"] == peak["f8E5M2"] <= 2.03 * peak["f16"]


def test_known_figures():
    assert H100.rate("bf16") == 989 * TERA and H100.rate("f32") == 67 * TERA and H100.memory == 80 * GIGA
    assert L4.rate("bf16") == 121 * TERA and L4.bandwidth == 300 * GIGA  # the sheet's 242 is sparse
    assert device_named("v100").rate("bf16") == device_named("v100").rate("f32")  # no units for it
    assert A100.rate("f8E4M3FN") == A100.rate("f16")
    assert H100.rate("i32") == H100.rate("f32")


def test_fabrics_and_backends():
    fabrics = {link.fabric for links in DEFAULT_LINKS.values() for link in links if link.fabric}
    assert fabrics == {"nvlink-a100", "nvlink-v100", "nvlink-h200", "nvlink-h100", "nvlink-b200", "xgmi-mi300x", "ib-b200"}
    assert all(link.backend == ("gloo" if name == "cpu" else "nccl") for name, links in DEFAULT_LINKS.items() for link in links)
    assert all(links[-1].span == 0 for links in DEFAULT_LINKS.values())


def test_an_unknown_device_is_named_with_the_nearest():
    with pytest.raises(DmlcError, match="there is no device 'h10'; did you mean 'h100'?"):
        device_named("h10")


@pytest.mark.parametrize(
    ("called", "memory", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", 85 * GIGA, "a100"), ("NVIDIA A100-SXM4-40GB", 42 * GIGA, "a100-40"), ("NVIDIA A100 80GB PCIe", 85 * GIGA, "a100-pcie"),
        ("NVIDIA A100-PCIE-40GB", 42 * GIGA, "a100-pcie-40"), ("NVIDIA H100 80GB HBM3", 85 * GIGA, "h100"), ("NVIDIA H100 PCIe", 85 * GIGA, "h100-pcie"),
        ("NVIDIA H200", 150 * GIGA, "h200"), ("Tesla V100-SXM2-16GB", 17 * GIGA, "v100-16"), ("Tesla T4", 0, "t4"), ("NVIDIA L4", 0, "l4"), ("NVIDIA L40S", 0, "l40s"),
        ("NVIDIA L40", 0, None), ("NVIDIA A10", 0, "a10"), ("NVIDIA A10G", 0, None), ("NVIDIA GeForce RTX 4090", 0, "rtx4090"), ("AMD Instinct MI300X", 0, "mi300x"),
    ],
)  # fmt: skip
def test_devices_by_their_drivers_names(called, memory, name):
    assert device_called(called, memory) == name


def test_the_slowest_device():
    assert slowest([H100, H100]) is H100
    assert slowest([H100, A100]) is A100
    mixed = slowest([device_named("l40s"), A100])  # one has the rates of f32, the other the memory
    assert mixed.name == "slowest of l40s, a100" and mixed.rate("f32") == A100.rate("f32") and mixed.memory == 48 * GIGA and mixed.bandwidth == 864 * GIGA
    assert slowest([A100, device_named("v100")]).rate("bf16") == device_named("v100").rate("f32")


# ---------------------------------------------------------------- links and paths


@pytest.mark.parametrize("name", ["h100", "l4", "t4", "cpu"])
def test_equal_hosts_and_their_graph_say_the_same(name):
    """The span arithmetic of equal hosts against rings in the graph, over all axes of some meshes."""
    cluster = Cluster.named(name, 16)
    for mesh in (Mesh.make(data=2, model=8), Mesh.make(data=4, model=4), Mesh.make(data=2, middle=4, model=2), Mesh.make(data=16)):
        for n in range(1, len(mesh.order) + 1):
            for axes in itertools.combinations(mesh.order, n):
                by_span, in_graph = cluster.link(mesh, axes), cluster.topology.ring(mesh.groups(axes))
                assert (by_span.name, by_span.bandwidth, by_span.fabric) == (in_graph.name, in_graph.bandwidth, in_graph.fabric), (mesh, axes)
                assert in_graph.alpha == by_span.alpha


def test_a_shared_adapter_is_divided_among_the_groups_that_use_it():
    cluster = Cluster.named("l4", 16)
    alone, together = cluster.link(Mesh.make(all=16), ["all"]), cluster.link(Mesh.make(data=2, model=8), ["data"])
    assert alone.bandwidth == 11 * GIGA and together.bandwidth == 11 * GIGA // 8
    assert cluster.link(Mesh.make(data=2, model=8), ["model"]).kind == "pcie"


def uneven(*hosts: Host, switches: Sequence[Switch] = (), **more) -> Cluster:
    return Cluster.of_hosts(hosts, switches, **more)


def test_hosts_of_different_sizes_and_devices():
    cluster = uneven(Host(H100, 2, NVLINK, ADAPTER), Host(L4, 3, PCIE, replace(ADAPTER, bandwidth=10 * GIGA), name="old"))
    assert cluster.count == 5 and [cluster.device_of(r).name for r in range(5)] == ["h100", "h100", "l4", "l4", "l4"]
    assert cluster.device is L4 and cluster.devices == (H100, L4) and cluster.memory == L4.memory
    assert cluster.host_of(4)[1] == 1 and [h.count for h in cluster.machines] == [2, 3]
    with pytest.raises(DmlcError, match="rank 5 is beyond the cluster's 5 devices"):
        cluster.device_of(5)
    assert cluster.topology.path(0, 1) == ["rank 0", "host host0", "rank 1"]
    assert cluster.topology.path(1, 2) == ["rank 1", "adapter host0.1", "switch switch", "adapter old.0", "rank 2"]
    assert cluster.topology.bottleneck([0, 1]) == NVLINK
    assert cluster.topology.bottleneck([2, 3, 4]) == PCIE
    assert cluster.topology.bottleneck(range(5)).bandwidth == 10 * GIGA


def test_one_slow_link_slows_the_groups_that_cross_it():
    slow = Host(H100, 4, NVLINK, replace(ADAPTER, bandwidth=GIGA), name="slow")
    cluster = uneven(Host(H100, 4, NVLINK, ADAPTER, repeat=3), slow)
    mesh = Mesh.make(data=4, model=4)
    assert cluster.link(mesh, ["model"]) == NVLINK
    assert cluster.link(mesh, ["data"]).bandwidth == GIGA
    assert cluster.topology.bottleneck([0, 4, 8]).bandwidth == 25 * GIGA
    assert cluster.topology.bottleneck([0, 4, 12]).bandwidth == GIGA


def test_oversubscribed_switches():
    hosts = [Host(H100, 2, NVLINK, ADAPTER, repeat=2, switches=(s,)) for s in ("a", "b")]
    cluster = uneven(*hosts, switches=(Switch("a", 25 * GIGA, US), Switch("b", 25 * GIGA, US)))
    assert cluster.topology.path(0, 4) == ["rank 0", "adapter host0.0", "switch a", "spine", "switch b", "adapter host2.0", "rank 4"]
    across = cluster.link(Mesh.make(half=2, rest=4), ["half"])  # four rings cross the spine at once
    assert across.bandwidth == 25 * GIGA // 4 and across.alpha == 10 * US
    below = cluster.link(Mesh.make(half=2, host=2, device=2), ["host"])
    assert below == ADAPTER
    whole = cluster.link(Mesh.make(all=8), ["all"])  # one ring crosses it once each way
    assert whole.bandwidth == 25 * GIGA


def test_rails_go_through_the_neighbour_where_that_is_nearer():
    hosts = Host(H100, 2, NVLINK, ADAPTER, repeat=2, switches=("rail0", "rail1"))
    cluster = uneven(hosts, Host(L4, 1, PCIE, ADAPTER, switches=("rail0",)), switches=(Switch("rail0", GIGA, 50 * US), Switch("rail1", GIGA, 50 * US)))
    assert cluster.topology.path(0, 2) == ["rank 0", "adapter host0.0", "switch rail0", "adapter host1.0", "rank 2"]
    assert "spine" not in cluster.topology.path(0, 3)  # through rank 1 or rank 2
    assert cluster.topology.latency(0, 3) == 10 * US


@pytest.mark.parametrize("seed", range(20))
def test_paths_are_the_shortest_that_networkx_finds(seed):
    """Among those that pass through no third host."""
    import networkx

    rng = random.Random(seed)
    rails = [f"rail{i}" for i in range(rng.randint(1, 4))]
    hosts = []
    for _ in range(rng.randint(2, 5)):
        links = replace(rng.choice([NVLINK, PCIE]), alpha=rng.choice([1, 20]) * US), replace(ADAPTER, alpha=rng.choice([4, 8]) * US)
        hosts.append(Host(H100, rng.randint(1, 5), *links, switches=tuple(rng.sample(rails, rng.randint(1, len(rails))))))
    cluster = uneven(*hosts, Host(L4, 1, PCIE, ADAPTER, switches=(rails[0],)), switches=[Switch(r, GIGA, rng.choice([0, 1, 40]) * US) for r in rails])
    found, graph = cluster.topology, cluster.topology.graph
    between = [n for n, data in graph.nodes(data=True) if data["kind"] in ("switch", "spine")]
    own = {
        i: [f"host host{i}", *(n for n in graph["host host" + str(i)]), *(n for n in graph if n.startswith(f"adapter host{i}."))] for i in range(len(hosts) + 1)
    }
    for a, b in itertools.permutations(range(found.ranks), 2):
        hosts_of = [cluster.host_of(r)[1] for r in (a, b)]
        if len(set(hosts_of)) == 2:
            part = graph.subgraph([*between, *own[hosts_of[0]], *own[hosts_of[1]]])
            assert found.latency(a, b) == networkx.dijkstra_path_length(part, f"rank {a}", f"rank {b}", "latency"), (a, b)
            assert networkx.is_path(part, found.path(a, b))


@pytest.mark.parametrize("seed", range(20))
def test_laws_of_uneven_clusters(seed):
    """More bandwidth on any adapter never slows a group; a larger set of groups never speeds one up; a path's ends are its ranks."""
    rng = random.Random(seed)
    hosts = [
        Host(rng.choice([H100, L4]), rng.randint(1, 4), rng.choice([NVLINK, PCIE]), replace(ADAPTER, bandwidth=rng.randint(1, 50) * GIGA)) for _ in range(4)
    ]
    cluster = uneven(*hosts)
    ranks = rng.sample(range(cluster.count), min(cluster.count, 4))
    before = cluster.topology.bottleneck(ranks)
    changed = rng.randrange(4)
    faster = uneven(*(replace(h, network=replace(h.network, bandwidth=2 * h.network.bandwidth)) if i == changed else h for i, h in enumerate(hosts)))
    assert faster.topology.bottleneck(ranks).bandwidth >= before.bandwidth
    others = [rng.sample(range(cluster.count), 2) for _ in range(3)]
    assert cluster.topology.ring([ranks, *others]).bandwidth <= before.bandwidth
    a, b = ranks[:2]
    nodes = cluster.topology.path(a, b)
    assert nodes[0] == f"rank {a}" and nodes[-1] == f"rank {b}" and len(set(nodes)) == len(nodes)


def test_the_first_devices_of_a_cluster():
    cluster = uneven(
        Host(H100, 4, NVLINK, ADAPTER, repeat=2, switches=("a",)), Host(L4, 2, PCIE, ADAPTER, switches=("b",)), switches=(Switch("a", GIGA), Switch("b", GIGA))
    )
    assert [h.count for h in cluster.take(6).machines] == [4, 2]
    assert cluster.take(6).device is H100 and [s.name for s in cluster.take(6).switches] == ["a"]
    assert cluster.take(10) == cluster and cluster.take(9).device is L4
    with pytest.raises(DmlcError, match="the cluster has 10 devices, not 11"):
        cluster.take(11)
    assert Cluster.named("h100", 16).take(4).count == 4


def test_equal_hosts_are_a_plain_cluster():
    cluster = uneven(Host(H100, 8, NVLINK, ADAPTER, repeat=2, name="x"), Host(H100, 8, NVLINK, ADAPTER, name="y"))
    assert not cluster.hosts and cluster.count == 24 and [link.span for link in cluster.links] == [8, 0]
    assert [len(uneven(Host(H100, n, NVLINK, ADAPTER, repeat=r)).links) for n, r in ((8, 1), (1, 4), (4, 2))] == [1, 1, 2]
    assert host_size(uneven(Host(H100, 8, NVLINK, ADAPTER)).links) == 0


def test_money_and_power():
    cluster = uneven(Host(H100, 8, NVLINK, ADAPTER, price=3.0), Host(A100, 4, NVLINK, ADAPTER), price=2.0, host_watts=1000, overhead=1.5)
    assert cluster.dollars() == 3.0 * 8 + 2.0 * 4
    assert cluster.watts() == 1.5 * (8 * 700 + 4 * 400 + 2 * 1000)
    unknown = Device("mine", AttrDict(f32=TERA), 8 * GIGA, 10 * GIGA, 5 * US, "a test")
    assert Cluster(unknown, 2).watts() == 0 and Cluster(unknown, 2).dollars() == 0


# ---------------------------------------------------------------- the text form

EXAMPLE_TEXT = EXAMPLE.split("\n\n", 1)[1] if EXAMPLE else ""


def clusters() -> list[Cluster]:
    mine = replace(A100, name="mine", memory=64 * GIGA)
    return [
        Cluster.named("a100", 8),
        Cluster(mine, 8, (Link("x", 4, US, GIGA, kind="nvlink", fabric="nvlink-a100"), Link("y", 0, US, GIGA, shared=4, computing=80, moving=70))),
        Cluster.named("l4", 3, memory_limit=10 * GIGA),
        replace(Cluster.named("cpu", 2), price=0.1, host_watts=200, overhead=1.3),
        uneven(Host(H100, 2, NVLINK, ADAPTER, repeat=2, switches=("a",), price=1.5), Host(mine, 1, PCIE, ADAPTER, name="b"), switches=(Switch("a", GIGA, 3),)),
        parse_cluster(EXAMPLE_TEXT),
    ]


@pytest.mark.parametrize("cluster", clusters(), ids=lambda c: f"{c.device.name}-{c.count}")
def test_a_cluster_reads_back_from_the_modules_text(cluster):
    module = parse_module("builtin.module {\n}\n", "empty")
    module.attrs["dmlc.cluster"] = cluster.to_attr()
    again = parse_module(print_module(module), "again")
    assert Cluster.from_attr(again.attrs["dmlc.cluster"]) == cluster
    assert Cluster.of(again) == cluster


def test_a_mesh_larger_than_the_uneven_cluster_is_refused():
    module = parse_module('builtin.module {\n  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=4]>} : () -> ()\n}\n', "x")
    assert Cluster.of(module).count == 4
    module.attrs["dmlc.cluster"] = uneven(Host(H100, 2, NVLINK, ADAPTER), Host(L4, 1, PCIE, ADAPTER)).to_attr()
    with pytest.raises(DmlcError, match="the mesh has 4 ranks, and the cluster .* 3 devices"):
        Cluster.of(Module(module.op))
