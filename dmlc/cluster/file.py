"""`cluster.yaml`: a cluster in a file that a person writes.

backend: nccl               # whose collectives run: nccl or gloo; default gloo for cpu, else nccl
memory: 76 GB               # most that a rank may use; default: the device's memory
price: 2.50                 # dollars an hour for each device
power:
  device: 700 W             # of a device at full load; default: the catalogue's
  host: 1.5 kW              # of a host beside its devices; default 0
  overhead: 1.2             # power drawn in all over that of the hosts (cooling); default 1
hosts:                      # ranks are numbered in this order
  - repeat: 4               # so many equal hosts; default 1
    name: left              # for messages and paths
    devices: 8              # devices of one host
    device: h100            # a device of the catalogue or of `devices` below
    inside: nvlink          # the link among the host's devices; default: the device's usual one
    network: ib             # the link of a network adapter; default: the device's usual one
    switch: leaf0           # the switch it hangs on, a list for one an adapter; default: one switch for all hosts
    price: 3.00             # of these hosts' devices, where prices differ
  - {devices: 4, device: mine, switch: leaf1}
devices:                    # corrections of catalogue devices, or devices of your own
  h100: {memory: 94 GB, bandwidth: 3.9 TB/s}
  mine:
    like: a100              # what is not given is as that device has it
    peak: {f32: 20 TFLOP/s, bf16: 300 TFLOP/s}   # dense
    memory: 64 GB
    bandwidth: 1.6 TB/s
    launch: 5 us            # one more kernel
    units: 104              # multiprocessors or compute units
    cache: 40 MiB
    watts: 400 W
    kind: gpu               # gpu or cpu
links:
  nvlink: {bandwidth: 360 GB/s, latency: 2 us, kind: nvlink, fabric: nvlink-h100}
  ib:
    bandwidth: 400 Gbit/s   # of one direction; Gbit/s are bits, GB/s bytes
    latency: 8 us           # of one hop
    shared: 2               # devices that use one adapter; default 1
    kind: network           # nvlink, pcie, network or memory; default: pcie inside a host, else network
    fabric: ib-b200         # a measured table of collectives; default: none
    computing: 90 %         # speed that computation keeps while this link is busy; default 100
    moving: 95 %            # speed that a collective keeps while the device computes; default 100
switches:                   # default: a switch is never the bottleneck
  leaf0: {oversubscription: 4}      # what hangs on it over what goes up to the other switches
  leaf1: {uplink: 800 Gbit/s, latency: 1 us}
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dmlc.cluster.catalogue import DEFAULT_LINKS, DEVICES
from dmlc.cluster.cluster import Cluster, Host, Switch, machine_of
from dmlc.cluster.device import Device
from dmlc.cluster.link import BACKENDS, KINDS, Link
from dmlc.cluster.quantities import BANDWIDTH, POWER, RATE, SIZE, TIME
from dmlc.cluster.yaml_items import Item, read_yaml
from dmlc.ir.attributes import AttrDict
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.suggest import did_you_mean
from dmlc.ir.types import BYTES

TOP = ("backend", "memory", "price", "power", "hosts", "devices", "links", "switches")
HOST = ("repeat", "name", "devices", "device", "inside", "network", "switch", "price")
DEVICE = ("like", "peak", "memory", "bandwidth", "launch", "units", "cache", "watts", "kind")
LINK = ("bandwidth", "latency", "kind", "fabric", "shared", "computing", "moving", "backend")
SWITCH = ("oversubscription", "uplink", "latency")


def read_cluster(path: str | Path) -> Cluster:
    """The cluster of a file. Raises `DmlcError` with file, line and column."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as e:
        raise DmlcError(f"cannot read the cluster file: {e.strerror}", Loc(str(path))) from None
    except UnicodeDecodeError:
        raise DmlcError("not a text file (a cluster file is UTF-8 text)", Loc(str(path))) from None
    return parse_cluster(text, str(path))


def parse_cluster(text: str, path: str = "cluster.yaml") -> Cluster:
    return _Reader(read_yaml(path, text)).cluster()


class _Reader:
    def __init__(self, root: Item):
        self.root = root
        self.top = root.fields(TOP, ("hosts",))
        self.backend = self.top["backend"].choice(BACKENDS) if "backend" in self.top else ""
        self.power = self.top["power"].fields(("device", "host", "overhead")) if "power" in self.top else {}
        self.devices = self._devices()
        self.links = {name: self._link(name, item) for name, item in self._named("links").items()}

    def _named(self, key: str) -> dict[str, Item]:
        return {name: value for name, (_, value) in self.top[key].entries().items()} if key in self.top else {}

    def cluster(self) -> Cluster:
        items = self.top["hosts"].items()
        hosts = [self._host(item) for item in items]
        if not hosts:
            self.top["hosts"].fail("a cluster has at least one host")
        more: dict[str, Any] = {}
        if "memory" in self.top:
            more["memory_limit"] = self.top["memory"].amount(SIZE)
        if "price" in self.top:
            more["price"] = self.top["price"].number()
        if "host" in self.power:
            more["host_watts"] = self.power["host"].amount(POWER, 0)
        if "overhead" in self.power:
            more["overhead"] = self.power["overhead"].number(1.0)
        return Cluster.of_hosts(hosts, self._switches(hosts), **more)

    # -------------------------------------------------- devices

    def _devices(self) -> dict[str, Device]:
        known, self.usual = dict(DEVICES), dict(DEFAULT_LINKS)
        for name, item in self._named("devices").items():
            known[name] = self._device(name, item, known)
        if "device" in self.power:
            known = {name: replace(d, watts=self.power["device"].amount(POWER)) for name, d in known.items()}
        return known

    def _device(self, name: str, item: Item, known: dict[str, Device]) -> Device:
        fields = item.fields(DEVICE)
        like = fields["like"].text() if "like" in fields else name
        if like not in known:
            if "like" in fields:
                fields["like"].fail(f"there is no device '{like}'{did_you_mean(like, known)}")
            item.fields(DEVICE, ("peak", "memory", "bandwidth"))
        base = known.get(like) or Device(name, AttrDict(), 0, 0, 5 * 10**6, "")
        read = {
            **{key: fields[key].amount(SIZE) for key in ("memory", "cache") if key in fields},
            **{key: fields[key].amount(q) for key, q in (("bandwidth", BANDWIDTH), ("launch", TIME), ("watts", POWER)) if key in fields},
            **({"units": fields["units"].integer(1)} if "units" in fields else {}),
            **({"kind": fields["kind"].choice(("gpu", "cpu"))} if "kind" in fields else {}),
            **({"peak": self._peak(fields["peak"], base.peak)} if "peak" in fields else {}),
        }
        self.usual[name] = self.usual.get(like) or self.usual["cpu" if read.get("kind") == "cpu" else "a100-pcie"]
        changed = replace(base, name=name, **read)
        return base if changed == base else replace(changed, source="cluster file" if base.source in ("", "cluster file") else f"cluster file; {base.source}")

    def _peak(self, item: Item, base: AttrDict) -> AttrDict:
        floats = [d for d in BYTES if d[0] == "f" or d.startswith("bf")] + ["tf32"]
        rates = {**base, **{dtype: value.amount(RATE) for dtype, value in item.fields(floats).items()}}
        if "f32" not in rates:
            item.fail("peak needs a rate for f32: other types run at it where they have none of their own")
        return AttrDict(rates)

    # -------------------------------------------------- links

    def _link(self, name: str, item: Item) -> Link:
        fields = item.fields(LINK, ("bandwidth", "latency"))
        kind = fields["kind"].choice(KINDS) if "kind" in fields else ""
        return Link(
            name,
            0,
            fields["latency"].amount(TIME, 0),
            fields["bandwidth"].amount(BANDWIDTH),
            "cluster file",
            fields["fabric"].text() if "fabric" in fields else "",
            kind,
            fields["backend"].choice(BACKENDS) if "backend" in fields else self.backend,
            fields["shared"].integer(1) if "shared" in fields else 1,
            *(fields[key].percent() if key in fields else 100 for key in ("computing", "moving")),
        )

    def _link_of(self, fields: dict[str, Item], key: str, usual: Link, kind: str, device: Device) -> Link:
        """The link that a host names, or the device's usual one."""
        if key not in fields:
            return replace(usual, span=0, backend=self.backend or usual.backend)
        name = fields[key].text()
        if name not in self.links:
            fields[key].fail(f"there is no link '{name}'{did_you_mean(name, self.links)}", (f"`links` describes: {', '.join(self.links) or 'none'}",))
        link = self.links[name]
        return replace(link, kind=link.kind or kind, backend=link.backend or ("gloo" if device.kind == "cpu" else "nccl"))

    # -------------------------------------------------- hosts

    def _host(self, item: Item) -> Host:
        fields = item.fields(HOST, ("device",))
        name = fields["device"].text()
        if name not in self.devices:
            fields["device"].fail(f"there is no device '{name}'{did_you_mean(name, self.devices)}", (f"known: {', '.join(self.devices)}",))
        device = self.devices[name]
        usual = machine_of(device, self.usual[name], 1)
        inside = self._link_of(fields, "inside", usual.inside, "memory" if device.kind == "cpu" else "pcie", device)
        network = self._link_of(fields, "network", usual.network, "network", device)
        return Host(
            device,
            fields["devices"].integer(1) if "devices" in fields else 1,
            inside,
            network,
            fields["repeat"].integer(1) if "repeat" in fields else 1,
            fields["name"].text() if "name" in fields else "",
            tuple(s.text() for s in fields["switch"].items()) if "switch" in fields else (),
            fields["price"].number() if "price" in fields else 0.0,
        )

    # -------------------------------------------------- switches

    def _switches(self, hosts: list[Host]) -> list[Switch]:
        below = _carried(hosts)
        found = []
        for name, item in self._named("switches").items():
            if name not in below:
                item.fail(f"no host hangs on the switch '{name}'{did_you_mean(name, below)}")
            fields = item.fields(SWITCH)
            if ("oversubscription" in fields) == ("uplink" in fields):
                item.fail(f"the switch '{name}' has either 'oversubscription' or 'uplink'")
            up = fields["uplink"].amount(BANDWIDTH) if "uplink" in fields else max(1, int(below[name] / fields["oversubscription"].number(1.0)))
            found.append(Switch(name, up, fields["latency"].amount(TIME, 0) if "latency" in fields else 0))
        return found


def _carried(hosts: list[Host]) -> dict[str, int]:
    """Switch -> bytes a second of all adapters that hang on it."""
    found: dict[str, int] = {}
    for host in hosts:
        adapters = -(-host.count // host.network.shared)
        for k in range(adapters if host.switches else 0):
            name = host.switches[k % len(host.switches)]
            found[name] = found.get(name, 0) + host.network.bandwidth * host.repeat
    return found
