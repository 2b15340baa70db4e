"""Per-rank programs whose ops say themselves what they take: `test.time` and `test.host` in picoseconds. For tests of the event engine."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import dmlc.ops  # noqa: F401
from dmlc.cluster import Cluster, Device
from dmlc.cost import Cost, CostModel
from dmlc.ir.core import Module, Op
from dmlc.ir.parser import parse_module
from dmlc.ir.verifier import verify

T = "tensor<4xf32>"
FUTURE = f"!comm.future<{T}>"


@dataclass
class Stated:
    """Prices as the ops state them; `slow`, `links` and `calls` by mesh axis, `devices` by rank (each slower than the next by its factor)."""

    slow: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    links: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    cluster: Any = field(default_factory=lambda: Cluster.named("h100", 8))

    def op(self, op: Op) -> Cost:
        return Cost(op.attrs.get("test.time", 0), op.attrs.get("test.bytes", 0), source="table")

    def host(self, op: Op) -> int:
        return op.attrs.get("test.host", 0)

    def copies(self, op: Op) -> tuple[int, int]:
        call = self.call(op.attrs["axes"], None) if "axes" in op.attrs else 0
        return op.attrs.get("test.before", 0) + call, op.attrs.get("test.after", 0)

    def starting(self, ops: Sequence[Op]) -> int:
        return self.copies(ops[0])[0]

    def call(self, axes: Sequence[str], mesh: Any) -> int:
        return self.calls.get(axes[0], 0)

    def slow_down(self, axes: Sequence[str], mesh: Any) -> tuple[int, int]:
        return self.slow.get(axes[0], (100, 100))

    def link_index(self, axes: Sequence[str], mesh: Any) -> int:
        return self.links.get(axes[0], 100 + mesh.order.index(axes[0]))


def stated(**given: Any) -> CostModel:
    return cast(CostModel, Stated(**given))


@dataclass(frozen=True)
class Fleet:
    """Just enough of a cluster: which device a rank has."""

    kinds: tuple[Device, ...]
    memory_limit: int = 0

    @property
    def device(self) -> Device:
        return self.kinds[0]

    def device_of(self, rank: int) -> Device:
        return self.kinds[rank]


def program(lines: str | Sequence[str], mesh: str = '"data"=2, "model"=2') -> Module:
    """A module of `main(%x) -> %x` with the given lines; `compute`, `start`, `wait` and `sync` below write them."""
    body = lines if isinstance(lines, str) else "\n".join(lines)
    text = f"""builtin.module attributes {{dmlc.spmd}} {{
  dmlc.mesh {{sym_name = "mesh", axes = #dmlc.axes<[{mesh}]>}} : () -> ()
  func.func @main(%x: {T} {{dmlc.role = "input"}}) -> ({T}) {{
{body}
    func.return %x : {T}
  }}
}}
"""
    module = parse_module(text, "program")
    verify(module)
    return module


def compute(name: str, time: int, host: int = 0, of: str = "x") -> str:
    return f'%{name} = dmlc.tanh %{of} {{dmlc.id = "{name}", test.time = {time} : i64, test.host = {host} : i64}} : ({T}) -> {T}'


def _reduction(time: int, host: int, axis: str, name: str, before: int = 0) -> str:
    times = f"test.time = {time} : i64, test.host = {host} : i64" + (f", test.before = {before} : i64" if before else "")
    return f'{{axes = ["{axis}"], combiner = "sum", dmlc.id = "{name}", {times}, test.bytes = 16 : i64}}'


def start(name: str, time: int, axis: str = "data", host: int = 0, of: str = "x", before: int = 0) -> str:
    return f"%{name} = comm.all_reduce_start %{of} {_reduction(time, host, axis, name, before)} : ({T}) -> {FUTURE}"


def wait(name: str) -> str:
    return f'%{name}_done = comm.wait %{name} {{dmlc.id = "{name}_wait"}} : ({FUTURE}) -> {T}'


def sync(name: str, time: int, axis: str = "data", host: int = 0, of: str = "x") -> str:
    return f"%{name} = comm.all_reduce %{of} {_reduction(time, host, axis, name)} : ({T}) -> {T}"


def send(name: str, time: int, to: int, axis: str = "pipe", tag: int = 0) -> str:
    return f'comm.send %x {{axis = "{axis}", to = {to} : i64, tag = {tag} : i64, dmlc.id = "{name}", test.time = {time} : i64}} : ({T}) -> ()'


def receive(name: str, time: int, source: int, axis: str = "pipe", tag: int = 0) -> str:
    return f'%{name} = comm.recv {{axis = "{axis}", source = {source} : i64, tag = {tag} : i64, dmlc.id = "{name}", test.time = {time} : i64}} : () -> {T}'


def loop(name: str, count: int, lines: Sequence[str], gives: str = "x") -> str:
    inside = "\n".join(lines)
    return f"%{name} = dmlc.microbatch {{count = {count} : i64}} {{\n^bb0(%{name}_i: tensor<i64>):\n{inside}\ndmlc.yield %{gives} : ({T}) -> ()\n}} : () -> {T}"


def stages(name: str, regions: Sequence[Sequence[str]], axis: str = "pipe") -> str:
    inside = ", ".join("{\n" + "\n".join(lines) + f"\ndmlc.yield %x : ({T}) -> ()\n}}" for lines in regions)
    return f'%{name} = pipe.schedule {{axis = "{axis}"}} {inside} : () -> {T}'


def random_lines(rng: random.Random, length: int, prefix: str = "u", largest: int = 40, host: int = 0, packing: int = 0) -> list[str]:
    """Computation, collectives on two streams, waits at random places: each start is waited for. Some starts take up to `packing` of their rank."""
    lines: list[str] = []
    flying: list[str] = []
    values = ["x"]
    for i in range(length):
        name, axis = f"{prefix}{i}", rng.choice(["data", "model"])
        issue = rng.randrange(host + 1)
        kind = rng.choice(["compute", "compute", "compute", "start", "start", "sync", "wait"])
        if kind == "compute":
            lines.append(compute(name, rng.randrange(largest), issue, rng.choice(values)))
            values.append(name)
        elif kind == "start":
            lines.append(start(name, rng.randrange(2 * largest), axis, issue, rng.choice(values), rng.randrange(packing + 1) if packing else 0))
            flying.append(name)
        elif kind == "sync":
            lines.append(sync(name, rng.randrange(largest), axis, issue, rng.choice(values)))
            values.append(name)
        elif flying:
            done = flying.pop(rng.randrange(len(flying)))
            lines.append(wait(done))
            values.append(f"{done}_done")
    rng.shuffle(flying)
    return lines + [wait(name) for name in flying]
