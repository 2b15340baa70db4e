"""A cluster: equal devices and the links between their ranks, innermost first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dmlc.cluster.device import GIGA, Device, device_named
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh


@dataclass(frozen=True)
class Link:
    """What connects `span` consecutive ranks (0 = any number).

    alpha      picoseconds a step of a ring takes whatever its size
    bandwidth  bytes a second and direction, for each rank
    fabric     key of a measured table of collectives (`dmlc.cost`), "" for none
    kind       "nvlink", "pcie", "network" or "memory"
    backend    "nccl" or "gloo": whose algorithms run on it
    shared     ranks that use one physical link (8 with one network adapter for 8 devices)
    computing  percent of its speed that computation keeps while a collective runs here
    moving     percent of its speed that a collective keeps while the device computes
    """

    name: str
    span: int
    alpha: int
    bandwidth: int
    source: str = "data sheet"
    fabric: str = ""
    kind: str = "network"
    backend: str = "nccl"
    shared: int = 1
    computing: int = 100
    moving: int = 100

    def to_attr(self) -> AttrDict:
        known = AttrDict(name=self.name, span=self.span, alpha=self.alpha, bandwidth=self.bandwidth, source=self.source)
        more = {key: value for key in ("fabric", "kind", "backend", "shared", "computing", "moving") if (value := getattr(self, key)) != getattr(Link, key)}
        return AttrDict({**known, **more})


MICROSECOND = 1_000_000

# NVLink bandwidths are of one direction; the network is one 400 Gb/s (h100 and later) or 200 Gb/s (a100) adapter a GPU. Alphas: NCCL's ring
# latencies a hop (tuning.cc) and, for the cpu, Gloo over loopback.
DEFAULT_LINKS: dict[str, tuple[Link, ...]] = {
    "h100": (Link("nvlink", 8, 2 * MICROSECOND, 360 * GIGA, kind="nvlink"), Link("network", 0, 8 * MICROSECOND, 45 * GIGA)),
    "h200": (Link("nvlink", 8, 2 * MICROSECOND, 360 * GIGA, kind="nvlink"), Link("network", 0, 8 * MICROSECOND, 45 * GIGA)),
    "b200": (Link("nvlink", 8, 2 * MICROSECOND, 720 * GIGA, kind="nvlink"), Link("network", 0, 8 * MICROSECOND, 45 * GIGA)),
    "a100": (Link("nvlink", 8, 3 * MICROSECOND, 230 * GIGA, kind="nvlink"), Link("network", 0, 10 * MICROSECOND, 22 * GIGA)),
    "cpu": (Link("loopback", 0, 60 * MICROSECOND, GIGA, "estimate", kind="memory", backend="gloo"),),
}


@dataclass(frozen=True)
class Cluster:
    """`count` devices of one kind. `memory_limit` (bytes a rank, 0 = the device's memory) caps what a plan or an order may use."""

    device: Device
    count: int = 1
    links: tuple[Link, ...] = ()
    memory_limit: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise DmlcError(f"a cluster has at least one device, not {self.count}")
        if not self.links:
            object.__setattr__(self, "links", DEFAULT_LINKS.get(self.device.name, DEFAULT_LINKS["cpu"]))

    @classmethod
    def named(cls, device: str, count: int = 1, memory_limit: int = 0) -> Cluster:
        """`count` catalogue devices with their usual links."""
        return cls(device_named(device), count, memory_limit=memory_limit)

    @property
    def memory(self) -> int:
        """Bytes a rank may use."""
        return self.memory_limit or self.device.memory

    def with_memory(self, limit: int) -> Cluster:
        return replace(self, memory_limit=limit)

    def link(self, mesh: Mesh, axes: Sequence[str]) -> Link:
        """The innermost link that connects all ranks of every group along `axes`."""
        groups = mesh.groups(axes)
        for link in self.links[:-1]:
            if all(min(g) // link.span == max(g) // link.span for g in groups):
                return link
        return self.links[-1]

    # -------------------------------------------------- text

    def to_attr(self) -> AttrDict:
        """The module attribute `dmlc.cluster`: catalogue parts by name, others in full."""
        known = self.device == device_named(self.device.name) if self.device.name in DEFAULT_LINKS else False
        attr: dict[str, Any] = {"device": self.device.name if known else self.device.to_attr(), "count": self.count}
        if self.links != DEFAULT_LINKS.get(self.device.name):
            attr["links"] = tuple(link.to_attr() for link in self.links)
        if self.memory_limit:
            attr["memory_limit"] = self.memory_limit
        return AttrDict(attr)

    @classmethod
    def from_attr(cls, attr: Any) -> Cluster:
        """Reads `dmlc.cluster`: a device's name, or a dictionary `{device, count, links, memory_limit}`."""
        if isinstance(attr, str):
            return cls.named(attr)
        if not isinstance(attr, AttrDict) or "device" not in attr:
            raise DmlcError(f"dmlc.cluster is a device's name or a dictionary with 'device', not {attr!r}")
        device = attr["device"]
        made = device_named(device) if isinstance(device, str) else Device(**device)
        links = tuple(Link(**link) for link in attr.get("links", ()))
        return cls(made, attr.get("count", 1), links, attr.get("memory_limit", 0))

    @classmethod
    def of(cls, module: Module, default: str = "h100") -> Cluster:
        """The module's cluster; without the attribute, `default` devices, as many as its mesh has ranks. A memory cap that the
        request (`dmlc.request`) names is the limit."""
        attr = module.attrs.get("dmlc.cluster")
        cluster = cls.named(default) if attr is None else cls.from_attr(attr)
        limit = module.attrs.get("dmlc.request", {}).get("memory", cluster.memory_limit)
        return replace(cluster, count=max(cluster.count, Mesh.of(module).devices), memory_limit=limit)
