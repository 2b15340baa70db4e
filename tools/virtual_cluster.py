"""A cluster on one Linux machine: each host is a network namespace with a link of a chosen speed, all links meet in one switch.

    sudo python tools/virtual_cluster.py --hosts 2 --rate 1 -- train.py --steps 5      # torchrun on every host, 1 Gbit/s links

Needs root and iproute2 (`ip`, `tc`); `why_not()` says what is missing. Hosts share the machine's files and memory, and its cores unless each
is given its own. Nothing outside the new namespaces changes, and they go when the cluster is closed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INTERFACE = "eth0"
NETWORK = "10.77.0"
PORT = 29500
_numbers = itertools.count()


class ClusterError(Exception):
    """One sentence: what the machine did not allow, or which host failed."""


def why_not() -> str | None:
    """Why this machine cannot have a virtual cluster, in a few words; None where it can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} (package iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with VirtualCluster(1, gigabits=1):
            return None
    except ClusterError as e:
        return str(e)


class VirtualCluster:
    """Hosts with links of `gigabits` per second each way (unlimited without). Use it in a `with` statement.

    `cores[i]` is the set of cores that host i's processes may use; all without.
    """

    def __init__(self, hosts: int, gigabits: float | None = None, cores: Sequence[set[int]] | None = None):
        prefix = f"dmlc-{os.getpid()}-{next(_numbers)}"
        self.switch, self.hosts = f"{prefix}-switch", [f"{prefix}-{i}" for i in range(hosts)]
        self.addresses = [f"{NETWORK}.{i + 1}" for i in range(hosts)]
        self.gigabits, self.cores = gigabits, cores
        self.processes: list[subprocess.Popen] = []

    def __enter__(self) -> VirtualCluster:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self) -> None:
        for name in (self.switch, *self.hosts):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for i, (host, address) in enumerate(zip(self.hosts, self.addresses)):
            run("ip", "-n", self.switch, "link", "add", f"port{i}", "type", "veth", "peer", "name", INTERFACE, "netns", host)
            run("ip", "-n", self.switch, "link", "set", f"port{i}", "master", "bridge", "up")
            run("ip", "-n", host, "address", "add", f"{address}/24", "dev", INTERFACE)
            run("ip", "-n", host, "link", "set", INTERFACE, "up")
        self.set_speed(self.gigabits)

    def set_speed(self, gigabits: float | None) -> None:
        """Give all links another speed. What a host sends and what it receives are limited apart."""
        ends = [(host, INTERFACE) for host in self.hosts] + [(self.switch, f"port{i}") for i in range(len(self.hosts))]
        for namespace, device in ends:
            if self.gigabits is not None:
                run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root", may_fail=True)
            if gigabits is not None:
                # The bucket holds 2 ms of traffic: less starves fast links between two ticks of the kernel's clock.
                burst = max(128 * 1024, round(gigabits * 1e9 / 8 * 0.002))
                limit = ("rate", f"{round(gigabits * 1000)}mbit", "burst", str(burst), "latency", "20ms")
                run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *limit)
        self.gigabits = gigabits

    def start(self, host: int, command: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen:
        """Start a command on a host, in a process group of its own; further options are `subprocess.Popen`'s."""
        cores = self.cores[host] if self.cores is not None else None
        settings = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": INTERFACE, "TP_SOCKET_IFNAME": INTERFACE, **(environment or {})}

        def pin() -> None:
            if cores is not None:
                os.sched_setaffinity(0, cores)

        started = subprocess.Popen(["ip", "netns", "exec", self.hosts[host], *command], env=settings, start_new_session=True, preexec_fn=pin, **options)
        self.processes.append(started)
        return started

    def torchrun(self, script: Sequence[str], ranks_per_host: int = 1, environment: Mapping[str, str] | None = None, **options: Any) -> list[subprocess.Popen]:
        """Start `script` with its arguments under torchrun on every host, host 0 being the master."""
        started = []
        for i in range(len(self.hosts)):
            place = ["--nnodes", str(len(self.hosts)), "--node-rank", str(i), "--master-addr", self.addresses[0], "--master-port", str(PORT)]
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks_per_host), *place, *script]
            started.append(self.start(i, command, {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **(environment or {})}, **options))
        return started

    def wait(self, processes: Sequence[subprocess.Popen], seconds: float) -> list[int]:
        """The exit codes, in order. When one host fails or time is up, the others get 30 s to end by themselves and are then ended."""
        deadline, failed = time.monotonic() + seconds, False
        while any(p.poll() is None for p in processes):
            if not failed and any(p.poll() for p in processes):
                failed, deadline = True, min(deadline, time.monotonic() + 30)
            if time.monotonic() > deadline:
                for process in processes:
                    end(process)
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
        return [p.returncode for p in processes]

    def close(self) -> None:
        """End what still runs on the hosts and remove them."""
        for process in self.processes:
            end(process)
        for name in (self.switch, *self.hosts):
            run("ip", "netns", "del", name, may_fail=True)


def end(process: subprocess.Popen) -> None:
    """End a process with all of its group, politely at first."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)


def run(*command: str, may_fail: bool = False) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 and not may_fail:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ClusterError(f"'{' '.join(command)}' failed: {said[-1] if said else done.returncode}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2, metavar="N")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="ranks a host")
    parser.add_argument("--rate", type=float, metavar="GBIT", help="speed of each link in Gbit/s; default: unlimited")
    parser.add_argument("--seconds", type=float, default=3600, metavar="S", help="end everything after this long")
    parser.add_argument("script", nargs="+", help="the script and its arguments, after --")
    options = parser.parse_args(arguments)
    reason = why_not()
    if reason is not None:
        print(f"no virtual cluster here: {reason}", file=sys.stderr)
        return 1
    script = [str(Path(options.script[0]).resolve()), *options.script[1:]]
    with VirtualCluster(options.hosts, options.rate) as cluster:
        codes = cluster.wait(cluster.torchrun(script, options.ranks), options.seconds)
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
