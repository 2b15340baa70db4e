"""`cluster.yaml`: the documented example, units, what the catalogue prints, errors with their place."""

from __future__ import annotations

import pytest

from dmlc.cli.main import guarded
from dmlc.cluster import DEVICES, Cluster, Switch, device_named
from dmlc.cluster.cluster import host_size
from dmlc.cluster.device import GIGA, TERA
from dmlc.cluster.file import __doc__ as EXAMPLE
from dmlc.cluster.file import parse_cluster, read_cluster
from dmlc.cluster.quantities import BANDWIDTH, POWER, RATE, SIZE, TIME
from dmlc.cluster.writer import cluster_text
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh

US = 10**6
H100 = device_named("h100")
EXAMPLE_TEXT = EXAMPLE.split("\n\n", 1)[1] if EXAMPLE else ""


def test_the_documented_example_is_read():
    cluster = parse_cluster(EXAMPLE_TEXT)
    assert cluster.count == 36 and cluster.memory_limit == 76 * GIGA and cluster.price == 2.5 and cluster.host_watts == 1500 and cluster.overhead == 1.2
    host = cluster.hosts[0]
    assert host.device.memory == 94 * GIGA and host.device.bandwidth == 3900 * GIGA and host.device.rate("bf16") == H100.rate("bf16")
    assert host.network.bandwidth == 50 * GIGA and host.network.shared == 2 and host.network.computing == 90 and host.inside.fabric == "nvlink-h100"
    assert cluster.switches == (Switch("leaf0", 4 * 4 * 50 * GIGA // 4), Switch("leaf1", 100 * GIGA, US))
    assert cluster.device_of(35).name == "mine" and cluster.device_of(35).rate("f32") == 20 * TERA


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("count", [0, 1, 8, 12])
def test_the_printed_cluster_reads_back_as_the_catalogues(name, count):
    cluster = parse_cluster(cluster_text(name, count))
    links, wanted = cluster.links, Cluster.named(name, cluster.count)
    assert cluster.device == wanted.device and cluster.count == (count or 2 * (host_size(wanted.links) or 1))
    for mesh in (Mesh.make(all=cluster.count), Mesh.make(a=2, b=cluster.count // 2)) if cluster.count > 1 else ():
        for axes in (mesh.order[:1], mesh.order):
            found, usual = cluster.link(mesh, axes), wanted.link(mesh, axes)
            assert (found.bandwidth, found.alpha, found.kind, found.fabric, found.backend) == (
                usual.bandwidth,
                usual.alpha,
                usual.kind,
                usual.fabric,
                usual.backend,
            )
    assert links


@pytest.mark.parametrize(
    ("quantity", "text", "amount"),
    [
        (BANDWIDTH, "25 GB/s", 25 * GIGA), (BANDWIDTH, "400 Gbit/s", 50 * GIGA), (BANDWIDTH, "400Gb/s", 50 * GIGA), (BANDWIDTH, "1.5 GiB/s", 3 * 2**29), (BANDWIDTH, "100 Gbps", 12_500_000_000),
        (TIME, "5 us", 5 * US), (TIME, "0.5 µs", US // 2), (TIME, "3 ns", 3000), (SIZE, "80 GB", 80 * GIGA), (SIZE, "80 GiB", 80 * 2**30), (SIZE, "512 MB", 512 * 10**6),
        (POWER, "1.2 kW", 1200), (RATE, "312 TFLOP/s", 312 * TERA), (RATE, "1.979 PFLOPS", 1979 * TERA), (BANDWIDTH, "3.35e3 GB/s", 3350 * GIGA),
    ],
)  # fmt: skip
def test_units(quantity, text, amount):
    assert quantity.read(text) == amount


GOOD = """hosts:
  - repeat: 2
    devices: 8
    device: h100
    network: ib
links:
  ib:
    bandwidth: 400 Gbit/s
    latency: 8 us
"""


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("repeat: 2", "repaet: 2", "2:5", "there is no key 'repaet' in hosts[0]; did you mean 'repeat'?"),
        ("device: h100", "device: h10", "4:13", "there is no device 'h10'; did you mean 'h100'?"),
        ("network: ib", "network: ibb", "5:14", "there is no link 'ibb'; did you mean 'ib'?"),
        ("400 Gbit/s", "400 gbit/s", "8:16", "bandwidth: there is no unit 'gbit/s' of a bandwidth; did you mean Gbit/s?, as in 25 GB/s or 400 Gbit/s"),
        ("400 Gbit/s", "50 gb/s", "8:16", "did you mean GB/s or Gb/s?"),
        ("400 Gbit/s", "400", "8:16", "bandwidth: a bandwidth needs a unit"),
        ("400 Gbit/s", "fast", "8:16", "bandwidth: a bandwidth is a number and a unit"),
        ("400 Gbit/s", "0 Gbit/s", "8:16", "bandwidth must be more than 0"),
        ("8 us", "8 sec", "9:14", "there is no unit 'sec' of a time"),
        ("devices: 8", "devices: 0", "3:14", "devices is a whole number of at least 1, not '0'"),
        ("devices: 8", "devices: many", "3:14", "devices is a whole number of at least 1, not 'many'"),
        ("repeat: 2", "repeat: [2]", "2:13", "repeat is one value, not a list"),
        ("    latency: 8 us\n", "", "8:5", "ib needs 'latency'"),
        ("    latency: 8 us\n", "    latency: 8 us\n    latency: 9 us\n", "10:5", "'latency' is given twice"),
        ("latency: 8 us", "latency: 8 us\n    kind: ethernet", "10:11", "kind is one of nvlink, pcie, network, memory, not 'ethernet'"),
        ("latency: 8 us", "latency: 8 us\n    moving: 0 %", "10:13", "moving is a percentage from 1 to 100"),
        ("hosts:", "host:", "1:1", "there is no key 'host' in the file; did you mean 'hosts'?"),
        ("device: h100", "device: [", "6:6", "not YAML"),
        ("links:", "switches: {x: {uplink: 1 GB/s}}\nlinks:", "6:15", "no host hangs on the switch 'x'"),
        ("links:", "price: -1\nlinks:", "6:8", "price is a number of at least 0, not '-1'"),
        ("links:", "power: {overhead: 0.5}\nlinks:", "6:19", "overhead is a number of at least 1, not '0.5'"),
        ("links:", "devices: {mine: {memory: 8 GB}}\nlinks:", "6:17", "mine needs 'peak'"),
        ("links:", "devices: {mine: {like: h20}}\nlinks:", "6:24", "there is no device 'h20'; did you mean"),
        ("links:", "devices: {h100: {peak: {int8: 3 TFLOP/s}}}\nlinks:", "6:25", "there is no key 'int8' in peak"),
    ],
)  # fmt: skip
def test_errors_name_their_place(old, new, place, message, tmp_path):
    assert parse_cluster(GOOD).count == 16 and old in GOOD
    path = tmp_path / "cluster.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(DmlcError) as caught:
        read_cluster(path)
    assert message in caught.value.message
    assert str(caught.value.loc) == f"{path}:{place}"
    assert caught.value.source_line is not None and "^" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("- a\n", "the file is a mapping of keys to values, not a list"),
        ("price: 1\n", "the file needs 'hosts'"),
        ("hosts: []\n", "at least one host"),
        ("a: &b [*b]\n", "there is no key 'a'"),
    ],
)
def test_files_that_are_no_cluster(text, message):
    with pytest.raises(DmlcError, match=message):
        parse_cluster(text, "c.yaml")


def test_a_missing_file(tmp_path):
    with pytest.raises(DmlcError, match="cannot read the cluster file: No such file"):
        read_cluster(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DmlcError, match="not a text file"):
        read_cluster(tmp_path / "bytes.yaml")


@pytest.mark.parametrize("name", ["h100", "cpu", "rtx4090"])
def test_a_cluster_file_is_printed(name, capsys):
    assert guarded(["simulate", "--print-cluster", name, "--devices", "4"]) == 0
    text = capsys.readouterr().out
    assert parse_cluster(text).count == 4 and parse_cluster(text).device == Cluster.named(name).device
    assert guarded(["simulate", "--print-cluster", name + "x"]) == 2
    assert "did you mean" in capsys.readouterr().err
