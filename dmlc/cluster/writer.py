"""A `cluster.yaml` for devices of the catalogue, to begin with."""

from __future__ import annotations

from dmlc.cluster.catalogue import DEFAULT_LINKS, device_named
from dmlc.cluster.cluster import host_size
from dmlc.cluster.device import Device
from dmlc.cluster.link import Link
from dmlc.cluster.quantities import shown, shown_time


def cluster_text(name: str, count: int = 0) -> str:
    """The file for `count` devices (0: two hosts of usual size) of a catalogue kind. It reads back as `Cluster.named(name, count)`."""
    device, links = device_named(name), DEFAULT_LINKS[name]
    size = host_size(links) or count or 1
    hosts, rest = divmod(count or 2 * size, size)
    lines = [
        f"# {count or 2 * size} devices of kind {name} as the catalogue has them; change what is different on yours. Rates are dense.",
        "# GB is 10^9 bytes, GiB 2^30; Gbit/s are bits, GB/s bytes; bandwidths are of one direction.",
        f"backend: {links[-1].backend}",
        f"# memory: {shown(device.memory * 95 // 100, 'B')}        # most that a rank may use",
        "# price: 2.50            # dollars an hour for each device",
        "power:",
        f"  device: {shown(device.watts, 'W')}",
        "  host: 0 W              # of a host beside its devices",
        "  overhead: 1.0          # power drawn in all over that of the hosts",
        "hosts:",
        *(_host(name, links, size, hosts) if hosts else ()),
        *(_host(name, links, rest, 1) if rest else ()),
        *_device(device),
        "links:",
        *(line for link in links for line in _link(link)),
    ]
    return "\n".join(lines) + "\n"


def _host(name: str, links: tuple[Link, ...], size: int, repeat: int) -> list[str]:
    inside = next((link.name for link in links if link.kind != "network"), links[-1].name)
    lines = [f"  - repeat: {repeat}", f"    devices: {size}", f"    device: {name}", f"    inside: {inside}"]
    return [*lines, f"    network: {links[-1].name}"]


def _device(device: Device) -> list[str]:
    peak = ", ".join(f"{dtype}: {shown(rate, 'FLOP/s')}" for dtype, rate in device.peak.items())
    known = [f"    units: {device.units}"] * bool(device.units) + [f"    cache: {device.cache >> 20} MiB"] * bool(device.cache)
    return [
        f"devices:                 # {device.source}",
        f"  {device.name}:",
        f"    peak: {{{peak}}}",
        f"    memory: {shown(device.memory, 'B')}",
        f"    bandwidth: {shown(device.bandwidth, 'B/s')}",
        f"    launch: {shown_time(device.launch)}",
        *known,
    ]


def _link(link: Link) -> list[str]:
    known = [f"    fabric: {link.fabric}"] * bool(link.fabric) + [f"    shared: {link.shared}       # devices that use one adapter"] * (link.shared > 1)
    return [f"  {link.name}:", f"    bandwidth: {shown(link.bandwidth, 'B/s')}", f"    latency: {shown_time(link.alpha)}", f"    kind: {link.kind}", *known]
