"""tools/virtual_cluster.py: hosts reach each other at the speed asked for, a failed host ends the others, nothing stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from dmlc.tools import virtual_cluster
from dmlc.tools.virtual_cluster import ClusterError, VirtualCluster

pytestmark = pytest.mark.usefixtures("warm")

REASON = virtual_cluster.why_not()
needs_cluster = pytest.mark.skipif(REASON is not None, reason=f"no virtual cluster: {REASON}")

SERVER = """
import socket, time
with socket.create_server(("", 7000)) as server:
    connection, _ = server.accept()
    count, begin = 0, time.perf_counter()
    while block := connection.recv(1 << 20):
        count += len(block)
    print(count * 8 / (time.perf_counter() - begin) / 1e9)
"""

CLIENT = """
import socket, sys, time
for _ in range(100):
    try:
        connection = socket.create_connection((sys.argv[1], 7000))
        break
    except OSError:
        time.sleep(0.1)
connection.sendall(bytes(int(sys.argv[2])))
connection.close()
"""


def namespaces() -> set[str]:
    """Those of this process; tests in others may have their own."""
    names = [line.split()[0] for line in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout.splitlines()]
    return {name for name in names if name.startswith(f"dmlc-{os.getpid()}-")}


def speed(cluster: VirtualCluster, count: int) -> float:
    """Gbit/s that host 0 receives from host 1 while it sends `count` bytes."""
    receiving = cluster.start(0, [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    sending = cluster.start(1, [sys.executable, "-c", CLIENT, cluster.addresses[0], str(count)])
    assert cluster.wait([receiving, sending], 60) == [0, 0]
    return float(receiving.stdout.read())


@needs_cluster
def test_links_have_the_speed_asked_for():
    with VirtualCluster(2, gigabits=0.2) as cluster:
        assert 0.1 < speed(cluster, 5_000_000) < 0.24
        cluster.set_speed(1)
        assert 0.3 < speed(cluster, 25_000_000) < 1.2


@needs_cluster
def test_ranks_on_several_hosts_work_together(tmp_path):
    script = tmp_path / "sum.py"
    script.write_text(
        "import os, sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.tensor([float(dist.get_rank() + 1)])\n"
        "dist.all_reduce(x)\n"
        "print(float(x), dist.get_world_size(), os.environ['LOCAL_RANK'], len(os.sched_getaffinity(0)))\n"
        "dist.destroy_process_group()\n"
    )
    with VirtualCluster(2, cores=[{0}, {0}]) as cluster:
        hosts = cluster.torchrun([str(script)], ranks_per_host=2, stdout=subprocess.PIPE, text=True)
        assert cluster.wait(hosts, 120) == [0, 0]
        lines = [line for host in hosts for line in host.stdout.read().splitlines()]
    assert sorted(lines) == ["10.0 4 0 1", "10.0 4 0 1", "10.0 4 1 1", "10.0 4 1 1"]


@needs_cluster
def test_a_compiled_program_trains_on_two_hosts(tmp_path):
    """By its own launch.sh, on hosts that cannot resolve each other's names; the losses are those of one host."""
    request = ["--train", "--loss", "cross-entropy", "--optimizer", "sgd", "--devices", "2", "--plan", "dp=2", "--target", "cpu", "--no-kernel-report"]
    compiled = [sys.executable, "-m", "dmlc", "compile", "dmlc.models.digits:tiny_perceptron", *request, "-o", str(tmp_path / "out")]
    subprocess.run(compiled, check=True, capture_output=True)
    options = ["--data", "dmlc.models.digits:train_data", "--steps", "4", "--metrics"]
    script = str(tmp_path / "out" / "launch.sh")
    subprocess.run(["sh", script, *options, str(tmp_path / "one")], check=True, capture_output=True, env={**os.environ, "PYTHON": sys.executable})
    with VirtualCluster(2) as cluster:
        place = {"NNODES": "2", "MASTER_ADDR": cluster.addresses[0], "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
        own = [{**place, "NODE_RANK": str(i), "LOCAL_ADDR": cluster.addresses[i]} for i in range(2)]
        hosts = [cluster.start(i, ["sh", script, *options, str(tmp_path / "two")], own[i]) for i in range(2)]
        assert cluster.wait(hosts, 120) == [0, 0]
    one, two = ([json.loads(line)["loss"] for line in (tmp_path / name).read_text().splitlines()] for name in ("one", "two"))
    assert len(two) == 4 and two == pytest.approx(one, rel=1e-5) and two[-1] < two[0]


@needs_cluster
def test_nothing_stays_behind():
    before = namespaces()
    begin = time.monotonic()
    with VirtualCluster(2) as cluster:
        assert len(namespaces() - before) == 3
        running = cluster.start(0, [sys.executable, "-c", "import time; time.sleep(600)"])
        assert cluster.wait([running], 0.5) != [0]
        forgotten = cluster.start(1, [sys.executable, "-c", "import time; time.sleep(600)"])
    assert forgotten.poll() is not None and namespaces() == before and time.monotonic() - begin < 60


@needs_cluster
def test_a_refusal_is_one_sentence_and_leaves_nothing(monkeypatch):
    before = namespaces()
    monkeypatch.setattr(virtual_cluster, "INTERFACE", "a-name-too-long-for-an-interface")
    with pytest.raises(ClusterError, match="'ip .* failed: "), VirtualCluster(1):
        pass
    assert namespaces() == before


def test_without_root_the_reason_is_said(monkeypatch, capsys):
    monkeypatch.setattr(virtual_cluster.shutil, "which", lambda name: None)
    assert virtual_cluster.main(["--", "train.py"]) == 1
    assert "no ip and no tc (package iproute2)" in capsys.readouterr().err or sys.platform != "linux"
    monkeypatch.setattr(virtual_cluster.shutil, "which", lambda name: name)
    monkeypatch.setattr(virtual_cluster.os, "geteuid", lambda: 1000)
    assert virtual_cluster.why_not() == "network namespaces need root" or sys.platform != "linux"
