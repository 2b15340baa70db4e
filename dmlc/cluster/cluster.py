"""A cluster: devices and the links between their ranks.

The usual one has equal hosts: `device`, `count` and `links`, innermost first, say all. One with different hosts, or with switches that
carry less than what hangs on them, lists its `hosts`; ranks are numbered host by host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dmlc.cluster.catalogue import DEFAULT_LINKS, DEVICES, device_named
from dmlc.cluster.device import Device, slowest
from dmlc.cluster.link import Link
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh

if TYPE_CHECKING:
    from dmlc.cluster.topology import Topology


@dataclass(frozen=True)
class Host:
    """`repeat` equal machines of `count` devices each.

    inside    joins the devices of one machine
    network   one network adapter; its `shared` devices use it
    switches  names of the switches that its adapters hang on, in turn; () = the one switch that all hosts share
    price     dollars an hour for each device (0: the cluster's)
    """

    device: Device
    count: int
    inside: Link
    network: Link
    repeat: int = 1
    name: str = ""
    switches: tuple[str, ...] = ()
    price: float = 0.0

    def to_attr(self) -> AttrDict:
        attr: dict[str, Any] = {"device": _device_attr(self.device), "count": self.count, "inside": self.inside.to_attr(), "network": self.network.to_attr()}
        return AttrDict({**attr, **{key: value for key in ("repeat", "name", "switches", "price") if (value := getattr(self, key)) != getattr(Host, key)}})

    @classmethod
    def from_attr(cls, attr: AttrDict) -> Host:
        read = {"device": _device_of(attr["device"]), "inside": Link(**attr["inside"]), "network": Link(**attr["network"])}
        return cls(**{**attr, **read})


@dataclass(frozen=True)
class Switch:
    """A switch that hosts hang on, and its way up to the others: bytes a second and direction in all, picoseconds."""

    name: str
    bandwidth: int
    alpha: int = 0

    def to_attr(self) -> AttrDict:
        return AttrDict(name=self.name, bandwidth=self.bandwidth, alpha=self.alpha)


@dataclass(frozen=True)
class Cluster:
    """`count` devices. `memory_limit` (bytes a rank, 0 = the device's memory) caps what a plan or an order may use.

    device      the kind of device; with different ones the slowest (`dmlc.cluster.device.slowest`), since all ranks wait for it
    links       innermost first, of equal hosts
    hosts       of a cluster that is not made of equal hosts
    switches    those that hosts name
    price       dollars an hour for each device (0: not known)
    host_watts  power of a host beside its devices, at full load
    overhead    power drawn in all over power drawn by hosts (a data centre's power usage effectiveness)
    """

    device: Device
    count: int = 1
    links: tuple[Link, ...] = ()
    memory_limit: int = 0
    hosts: tuple[Host, ...] = ()
    switches: tuple[Switch, ...] = ()
    price: float = 0.0
    host_watts: int = 0
    overhead: float = 1.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise DmlcError(f"a cluster has at least one device, not {self.count}")
        if not self.links:
            object.__setattr__(self, "links", DEFAULT_LINKS.get(self.device.name, DEFAULT_LINKS["cpu"]))

    @classmethod
    def named(cls, device: str, count: int = 1, memory_limit: int = 0) -> Cluster:
        """`count` catalogue devices with their usual links."""
        return cls(device_named(device), count, memory_limit=memory_limit)

    @classmethod
    def of_hosts(cls, hosts: Sequence[Host], switches: Sequence[Switch] = (), **more: Any) -> Cluster:
        """The cluster that these hosts make: of equal ones without named switches, one that only has links."""
        count = sum(h.count * h.repeat for h in hosts)
        first = hosts[0]
        if all(replace(h, repeat=1, name="") == replace(first, repeat=1, name="") for h in hosts) and not first.switches:
            price = first.price or more.pop("price", 0.0)
            return cls(first.device, count, links_of(first, len(hosts) * first.repeat), **{**more, "price": price})
        widest = max(hosts, key=lambda h: (-h.network.bandwidth, h.network.alpha))
        return cls(slowest(h.device for h in hosts), count, (replace(widest.network, span=0),), hosts=tuple(hosts), switches=tuple(switches), **more)

    # -------------------------------------------------- devices

    @property
    def memory(self) -> int:
        """Bytes a rank may use. A limit may be set above what the catalogue says of one device, not above the least of several."""
        return min(self.memory_limit, self.device.memory) if self.memory_limit and self.hosts else self.memory_limit or self.device.memory

    def with_memory(self, limit: int) -> Cluster:
        return replace(self, memory_limit=limit)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The different kinds of device, in the order of their ranks."""
        return tuple(dict.fromkeys(h.device for h in self.hosts)) or (self.device,)

    def device_of(self, rank: int) -> Device:
        """The device of a rank."""
        return self.host_of(rank)[0].device if self.hosts else self.device

    def host_of(self, rank: int) -> tuple[Host, int]:
        """The host of a rank, and the machine's number in the cluster."""
        if not self.hosts:
            size = host_size(self.links) or self.count
            return machine_of(self.device, self.links, size), rank // size
        first = machine = 0
        for host in self.hosts:
            if rank < first + host.count * host.repeat:
                return host, machine + (rank - first) // host.count
            first, machine = first + host.count * host.repeat, machine + host.repeat
        raise DmlcError(f"rank {rank} is beyond the cluster's {self.count} devices")

    @property
    def machines(self) -> list[Host]:
        """The hosts one by one, in the order of their ranks; the last one as full as the count says."""
        if self.hosts:
            return [replace(h, repeat=1, name=f"{h.name}{i}" if h.name and h.repeat > 1 else h.name) for h in self.hosts for i in range(h.repeat)]
        size = min(host_size(self.links) or self.count, self.count)
        host = machine_of(self.device, self.links, size)
        full, rest = divmod(self.count, size)
        return [host] * full + ([replace(host, count=rest)] if rest else [])

    def take(self, count: int) -> Cluster:
        """The cluster of the first `count` devices. Raises `DmlcError` when there are not so many."""
        if count > self.count:
            raise DmlcError(f"the cluster has {self.count} devices, not {count}")
        if not self.hosts or count == self.count:
            return replace(self, count=count)
        kept: list[Host] = []
        for host in self.hosts:
            full, rest = divmod(min(count, host.count * host.repeat), host.count)
            kept += [replace(host, repeat=full)] * (full > 0) + [replace(host, repeat=1, count=rest)] * (rest > 0)
            count -= full * host.count + rest
        used = {name for h in kept for name in h.switches}
        return replace(
            self,
            device=slowest(h.device for h in kept),
            count=sum(h.count * h.repeat for h in kept),
            hosts=tuple(kept),
            switches=tuple(s for s in self.switches if s.name in used),
        )

    # -------------------------------------------------- links

    def link(self, mesh: Mesh, axes: Sequence[str]) -> Link:
        """What connects the ranks of every group along `axes` while all groups communicate: of equal hosts the innermost link that reaches
        all ranks of each group, else the slowest on the paths of the groups' rings."""
        groups = mesh.groups(axes)
        if self.hosts:
            return self.topology.ring(groups)
        for link in self.links[:-1]:
            if all(min(g) // link.span == max(g) // link.span for g in groups):
                return divided(link, groups)
        return divided(self.links[-1], groups)

    @property
    def topology(self) -> Topology:
        """Devices, hosts, adapters and switches as a graph."""
        return _topology(self)

    # -------------------------------------------------- money and power

    def dollars(self) -> float:
        """What the cluster costs an hour; 0 where no price is known."""
        return sum((h.price or self.price) * h.count for h in self.machines)

    def watts(self) -> float:
        """Power at full load; 0 where that of a device is not known."""
        machines = self.machines
        if any(not h.device.watts for h in machines):
            return 0.0
        return self.overhead * sum(h.device.watts * h.count + self.host_watts for h in machines)

    # -------------------------------------------------- text

    def to_attr(self) -> AttrDict:
        """The module attribute `dmlc.cluster`: catalogue parts by name, others in full."""
        attr: dict[str, Any] = {"device": _device_attr(self.device), "count": self.count}
        if self.links != DEFAULT_LINKS.get(self.device.name):
            attr["links"] = tuple(link.to_attr() for link in self.links)
        for key in ("hosts", "switches"):
            if getattr(self, key):
                attr[key] = tuple(part.to_attr() for part in getattr(self, key))
        for key in ("memory_limit", "price", "host_watts", "overhead"):
            if getattr(self, key) != getattr(Cluster, key):
                attr[key] = getattr(self, key)
        return AttrDict(attr)

    @classmethod
    def from_attr(cls, attr: Any) -> Cluster:
        """Reads `dmlc.cluster`: a device's name, or a dictionary `{device, count, links, …}` with the fields of this class."""
        if isinstance(attr, str):
            return cls.named(attr)
        if not isinstance(attr, AttrDict) or "device" not in attr:
            raise DmlcError(f"dmlc.cluster is a device's name or a dictionary with 'device', not {attr!r}")
        read: dict[str, Any] = {**attr, "device": _device_of(attr["device"]), "links": tuple(Link(**link) for link in attr.get("links", ()))}
        read["hosts"] = tuple(map(Host.from_attr, attr.get("hosts", ())))
        read["switches"] = tuple(Switch(**s) for s in attr.get("switches", ()))
        return cls(**read)

    @classmethod
    def of(cls, module: Module, default: str = "h100") -> Cluster:
        """The module's cluster; without the attribute, `default` devices, as many as its mesh has ranks. A memory cap that the
        request (`dmlc.request`) names is the limit."""
        attr = module.attrs.get("dmlc.cluster")
        cluster = cls.named(default) if attr is None else cls.from_attr(attr)
        limit, ranks = module.attrs.get("dmlc.request", {}).get("memory", cluster.memory_limit), Mesh.of(module).devices
        if cluster.hosts and ranks > cluster.count:
            raise DmlcError(f"the mesh has {ranks} ranks, and the cluster (dmlc.cluster) {cluster.count} devices")
        return replace(cluster, count=max(cluster.count, ranks), memory_limit=limit)


@lru_cache(maxsize=8)
def _topology(cluster: Cluster) -> Topology:
    from dmlc.cluster.topology import Topology

    return Topology(cluster.machines, cluster.switches)


def _device_attr(device: Device) -> Any:
    return device.name if device == DEVICES.get(device.name) else device.to_attr()


def _device_of(attr: Any) -> Device:
    return device_named(attr) if isinstance(attr, str) else Device(**attr)


# ---------------------------------------------------------------- equal hosts


def links_of(host: Host, machines: int) -> tuple[Link, ...]:
    """The links of a cluster of equal hosts; those that join nothing are left out."""
    if machines == 1:
        return (replace(host.inside, span=0),)
    inside = (replace(host.inside, span=host.count),) if host.count > 1 else ()
    return (*inside, replace(host.network, span=0))


def host_size(links: Sequence[Link]) -> int:
    """Devices of one host: as many as links that are no network join; 0 = all there are."""
    inside = [link.span for link in links if link.kind != "network"]
    return (0 if 0 in inside else max(inside)) if inside else 1


def machine_of(device: Device, links: Sequence[Link], size: int) -> Host:
    inside = [link for link in links if link.kind != "network"]
    network = next((link for link in links if link.kind == "network"), links[-1])
    return Host(device, size, inside[-1] if inside else network, network)


def divided(link: Link, groups: Sequence[Sequence[int]]) -> Link:
    """What each rank gets of a link that `shared` ranks use, while all groups communicate: a group's ring leaves a set of such ranks once."""
    if link.shared == 1:
        return link
    together: dict[int, int] = {}
    for group in groups:
        sets = {rank // link.shared for rank in group}
        if len(sets) > 1:
            for number in sets:
                together[number] = together.get(number, 0) + 1
    return replace(link, bandwidth=link.bandwidth // max(together.values(), default=1))
