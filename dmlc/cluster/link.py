"""A link between ranks."""

from __future__ import annotations

from dataclasses import dataclass

from dmlc.ir.attributes import AttrDict

KINDS = ("nvlink", "pcie", "network", "memory")
BACKENDS = ("nccl", "gloo")


@dataclass(frozen=True)
class Link:
    """What connects `span` consecutive ranks (0 = any number).

    alpha      picoseconds a step of a ring takes whatever its size
    bandwidth  bytes a second and direction that one rank gets when it is alone on the link. What `Cluster.link` gives is what each rank
               gets while all groups of its axes communicate: already divided by those that share a physical link
    fabric     key of a measured table of collectives (`dmlc.cost`), "" for none
    kind       "nvlink" (direct links between devices, xGMI too), "pcie", "network" or "memory"
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
