"""What-ifs of `dmlc simulate`: the same program with faster links, other devices, no overlap."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dmlc.cluster import Cluster, Link, device_named
from dmlc.cluster.catalogue import DEFAULT_LINKS
from dmlc.cost import Cost, CostModel
from dmlc.ir.core import Module, Op
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.ir.suggest import did_you_mean
from dmlc.ops.comm import base_name
from dmlc.simulate.rows import axes_of, is_traffic

ALL = ""  # every link


@dataclass(frozen=True)
class Change:
    """`apply(module, cost)` gives the program and the prices as they would be."""

    text: str
    apply: Callable[[Module, CostModel], tuple[Module, CostModel]]


def changes_of(args: argparse.Namespace) -> list[Change]:
    """The changes asked for, each by itself, and all together where there are several. Raises `DmlcError` for values that make no sense."""
    found = [link_change("bandwidth", text) for text in args.bandwidth] + [link_change("latency", text) for text in args.latency]
    found += [compute_change(text) for text in args.compute] + [device_change(name) for name in args.device]
    found += [Change("no overlap", lambda module, cost: (without_overlap(module), cost))] if args.no_overlap else []
    return [*found, together(found)] if len(found) > 1 else found


def together(changes: list[Change]) -> Change:
    def apply(module: Module, cost: CostModel) -> tuple[Module, CostModel]:
        for change in sorted(changes, key=lambda c: not c.text.startswith("device")):  # another device first: its links are what the others change
            module, cost = change.apply(module, cost)
        return module, cost

    return Change("all of these", apply)


def factor_of(option: str, text: str) -> tuple[str, Fraction]:
    """`x2` -> (every link, 2); `network=x0.5` -> ("network", 1/2)."""
    name, _, number = text.rpartition("=")
    try:
        if not number.startswith("x"):
            raise ValueError
        factor = Fraction(number[1:])
    except (ValueError, ZeroDivisionError):
        factor = Fraction(0)
    if factor <= 0:
        example = "x2" if option == "compute" else "x2 or network=x2"
        raise DmlcError(f"--{option} takes for example {example}, not '{text}'")
    return name, factor


def link_change(option: str, text: str) -> Change:
    name, factor = factor_of(option, text)
    label = f"{option} of {name or 'every link'} x{_decimal(factor)}"
    if option == "bandwidth":
        return Change(label, lambda module, cost: (module, Scaled(cost, name, speed=factor)))
    return Change(label, lambda module, cost: (module, Scaled(cost, name, delay=factor)))


def compute_change(text: str) -> Change:
    name, factor = factor_of("compute", text)
    if name:
        raise DmlcError(f"--compute takes for example x2, not '{text}'")
    return Change(f"computation x{_decimal(factor)}", lambda module, cost: (module, Scaled(cost, ALL, compute=factor)))


def _decimal(factor: Fraction) -> str:
    return f"{float(factor):g}"


# ---------------------------------------------------------------- devices


def device_change(name: str) -> Change:
    """Other devices on the same hosts; links that are usual for the old ones become those usual for the new ones. Measured times are of the old device."""
    device = device_named(name)
    return Change(f"device {name}", lambda module, cost: (module, CostModel(with_device(cost.cluster, device.name))))


def with_device(cluster: Cluster, name: str) -> Cluster:
    device, usual = device_named(name), cluster.links == DEFAULT_LINKS.get(cluster.device.name)
    links = DEFAULT_LINKS[name] if usual else cluster.links
    hosts = tuple(replace(h, device=device) for h in cluster.hosts)
    limit = cluster.memory_limit if cluster.memory_limit < cluster.device.memory else 0
    return replace(cluster, device=device, links=links, hosts=hosts, memory_limit=limit)


# ---------------------------------------------------------------- links and speed


class Scaled(CostModel):
    """The prices of `base` with one link (by name or kind; "" = all) `speed` times as fast and `delay` times as slow to begin, and all computation
    `compute` times as fast. Prices by a formula are those of the changed link; measured and tabulated ones are scaled."""

    def __init__(self, base: CostModel, link: str, speed: Fraction = Fraction(1), delay: Fraction = Fraction(1), compute: Fraction = Fraction(1)):
        refuse_unknown(base.cluster, link)
        super().__init__(scaled_cluster(base.cluster, link, speed, delay), base.measured)
        self.base, self.name, self.speed, self.delay, self.compute = base, link, speed, delay, compute
        self._taken: dict[tuple[Mesh, tuple[str, ...]], bool] = {}

    def op(self, op: Op) -> Cost:
        if op.regions and op.name != "kernel.fused":
            return self._region_op(op)
        price = self.base.op(op)
        if is_traffic(op):
            return self._traffic(op, price)
        return replace(price, time=_ceil(price.time / self.compute))

    def host(self, op: Op) -> int:
        return self.base.host(op)

    def _traffic(self, op: Op, price: Cost) -> Cost:
        mesh, axes = Mesh.around(op), axes_of(op)
        if not price.time or not self._takes(mesh, axes):
            return price
        if price.source == "model" and not isinstance(self.base, Scaled):
            return super().op(op)
        latency = min(price.time, self.base.startup(base_name(op).removeprefix("comm."), axes, mesh))
        return replace(price, time=_ceil(latency * self.delay) + _ceil((price.time - latency) / self.speed))

    def _takes(self, mesh: Mesh, axes: tuple[str, ...]) -> bool:
        if (mesh, axes) not in self._taken:
            link = self.base.cluster.link(mesh, axes)
            self._taken[mesh, axes] = self.name in (ALL, link.name, link.kind)
        return self._taken[mesh, axes]


def _ceil(time: Fraction | int) -> int:
    return -(-Fraction(time).numerator // Fraction(time).denominator)


def scaled_cluster(cluster: Cluster, name: str, speed: Fraction, delay: Fraction) -> Cluster:
    def scaled(link: Link) -> Link:
        if name not in (ALL, link.name, link.kind):
            return link
        return replace(link, bandwidth=max(1, int(link.bandwidth * speed)), alpha=_ceil(link.alpha * delay))

    hosts = tuple(replace(h, inside=scaled(h.inside), network=scaled(h.network)) for h in cluster.hosts)
    up = name in (ALL, "network")
    switches = tuple(replace(s, bandwidth=max(1, int(s.bandwidth * speed)), alpha=_ceil(s.alpha * delay)) if up else s for s in cluster.switches)
    return replace(cluster, links=tuple(map(scaled, cluster.links)), hosts=hosts, switches=switches)


def refuse_unknown(cluster: Cluster, name: str) -> None:
    links = [*cluster.links, *(link for h in cluster.hosts for link in (h.inside, h.network))]
    known = list(dict.fromkeys(word for link in links for word in (link.name, link.kind)))
    if name != ALL and name not in known:
        raise DmlcError(f"the cluster has no link '{name}'{did_you_mean(name, known)}; it has {', '.join(known)}")


# ---------------------------------------------------------------- overlap


def without_overlap(module: Module) -> Module:
    """A copy in which each collective is waited for where it starts. Those that a loop hands on to its next iteration stay as they are."""
    copy = module.clone()
    for wait in [op for op in copy.walk() if op.name == "comm.wait"]:
        start = wait.operands[0].op
        if start is not None and start.block is wait.block and start.block is not None:
            start.block.insert_after(start, wait.remove())
    return copy


def outcome(facts: dict[str, Any]) -> dict[str, Any]:
    """What a what-if is compared by."""
    time, memory = facts["time"], facts["memory"]
    found = {"step_ps": facts["step_ps"], "exposed_ps": time["exposed_communication_ps"], "computation_ps": time["computation_ps"]}
    found |= {"peak_bytes": memory["peak_bytes"], "limit_bytes": memory["limit_bytes"]}
    return found | ({"mfu": facts["utilisation"]["mfu"]} if "mfu" in facts["utilisation"] else {})
