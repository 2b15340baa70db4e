"""Devices, hosts, adapters and switches as a networkx graph: what is on the way between two ranks, and where a group's ring is slowest.

A device hangs on its host (which joins the host's devices) and on a network adapter; adapters hang on a switch, switches on the spine.
Half of a link's latency is on each side. Paths are those of least latency (networkx finds the same ones, only far slower on a thousand
devices), so a message between two rails goes through a device of the same host that is on the right one, as NCCL's does, where that is
shorter than the way over the spine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dmlc.cluster.link import Link

if TYPE_CHECKING:
    from dmlc.cluster.cluster import Host, Switch

ONE_SWITCH = "switch"
SPINE = "spine"


def rank_node(rank: int) -> str:
    return f"rank {rank}"


class Topology:
    """`graph`: nodes with `kind` (device, host, adapter, switch, spine), edges with `bandwidth` (bytes a second and direction),
    `latency` (picoseconds) and `link` (what they are part of)."""

    def __init__(self, machines: Sequence[Host], switches: Sequence[Switch] = ()):
        import networkx

        self.graph = networkx.Graph()
        self._paths: dict[tuple[int, int], list[str]] = {}
        self._home: list[str] = []  # rank -> node of its host
        self._exit: list[tuple[str, str]] = []  # rank -> its adapter and the switch that hangs on
        self._exits: dict[str, dict[str, int]] = {}  # host -> switch -> its first rank there
        rank = 0
        for number, host in enumerate(machines):
            self._add_host(host.name or f"host{number}", host, rank)
            rank += host.count
        self.ranks = rank
        self._add_switches(machines, switches)

    # -------------------------------------------------- building

    def _edge(self, a: str, b: str, bandwidth: int, latency: int, link: Link) -> None:
        self.graph.add_edge(a, b, bandwidth=bandwidth, latency=latency, link=link)

    def _add_host(self, name: str, host: Host, first: int) -> None:
        node, shared = f"host {name}", host.network.shared
        self.graph.add_node(node, kind="host")
        for i in range(host.count):
            device, adapter = rank_node(first + i), f"adapter {name}.{i // shared}"
            switch = "switch " + (host.switches[(i // shared) % len(host.switches)] if host.switches else ONE_SWITCH)
            self.graph.add_node(device, kind="device", device=host.device)
            self._edge(device, node, host.inside.bandwidth, -(-host.inside.alpha // 2), host.inside)
            if adapter not in self.graph:
                self.graph.add_node(adapter, kind="adapter")
                self.graph.add_node(switch, kind="switch")
                self._edge(adapter, switch, host.network.bandwidth, -(-host.network.alpha // 2), host.network)
            self._edge(device, adapter, host.network.bandwidth, 0, host.network)
            self._home.append(node)
            self._exit.append((adapter, switch))
            self._exits.setdefault(node, {}).setdefault(switch, first + i)

    def _add_switches(self, machines: Sequence[Host], switches: Sequence[Switch]) -> None:
        names = [n for n, data in self.graph.nodes(data=True) if data["kind"] == "switch"]
        if len(names) < 2:
            return
        self.graph.add_node(SPINE, kind="spine")
        described = {f"switch {s.name}": s for s in switches}
        for name in names:
            below = [data for _, _, data in self.graph.edges(name, data=True)]
            known = described.get(name)
            full = sum(data["bandwidth"] for data in below)
            bandwidth, alpha = (known.bandwidth, known.alpha) if known is not None else (full, 0)
            self._edge(name, SPINE, bandwidth, alpha, replace(below[0]["link"], name=name, bandwidth=bandwidth, alpha=2 * alpha, fabric="", shared=1))

    # -------------------------------------------------- paths

    def path(self, a: int, b: int) -> list[str]:
        """Nodes from rank a to rank b: through their host where that is one, else on the way of least latency, fewest nodes among equal ones."""
        if a == b:
            return [rank_node(a)]
        if self._home[a] == self._home[b]:  # an adapter that both use is no way from one to the other
            return [rank_node(a), self._home[a], rank_node(b)]
        if (a, b) not in self._paths:
            self._paths[a, b] = min(self._ways(a, b), key=lambda nodes: (self._latency(nodes), len(nodes)))
        return self._paths[a, b]

    def _ways(self, a: int, b: int) -> list[list[str]]:
        """The ways between two hosts: out by each switch of one, in by each of the other; where a rank is on the right one, by its own adapter."""
        (adapter_a, out), (adapter_b, into) = self._exit[a], self._exit[b]
        if out == into:
            return [[rank_node(a), adapter_a, out, adapter_b, rank_node(b)]]
        found = []
        for first, via_a in {**self._exits[self._home[a]], out: a}.items():
            for last, via_b in {**self._exits[self._home[b]], into: b}.items():
                head = [rank_node(a)] if via_a == a else [rank_node(a), self._home[a], rank_node(via_a)]
                tail = [rank_node(b)] if via_b == b else [rank_node(via_b), self._home[b], rank_node(b)]
                found.append([*head, self._exit[via_a][0], *([first] if first == last else [first, SPINE, last]), self._exit[via_b][0], *tail])
        return found

    def _latency(self, nodes: Sequence[str]) -> int:
        return sum(self.graph.edges[e]["latency"] for e in zip(nodes, nodes[1:]))

    def edges(self, a: int, b: int) -> list[tuple[str, str]]:
        nodes = self.path(a, b)
        return list(zip(nodes, nodes[1:]))

    def latency(self, a: int, b: int) -> int:
        """Picoseconds on the way from rank a to rank b."""
        return self._latency(self.path(a, b))

    def bottleneck(self, group: Sequence[int]) -> Link:
        """The slowest link on the ring through the ranks of one group, in their order."""
        return self.ring([group])

    def ring(self, groups: Iterable[Sequence[int]]) -> Link:
        """What a rank gets while all groups run their rings at once: the least, over all hops, of an edge's bandwidth over the number of
        hops that cross it in one direction, and the latency of the slowest hop."""
        hops = [(a, b) for group in groups for a, b in zip(group, [*group[1:], group[0]]) if a != b]
        if not hops:
            return next(data["link"] for _, _, data in self.graph.edges(data=True))
        crossing: dict[tuple[str, str], int] = {}
        for hop in hops:
            for edge in self.edges(*hop):
                crossing[edge] = crossing.get(edge, 0) + 1
        share = {edge: self.graph.edges[edge]["bandwidth"] // n for edge, n in crossing.items()}
        slowest = min(share, key=lambda edge: share[edge])
        link = self.graph.edges[slowest]["link"]
        alpha = max(self.latency(*hop) for hop in hops)
        if share[slowest] == link.bandwidth and alpha == link.alpha and self._links_on(crossing) == {link}:
            return link
        return replace(link, span=0, alpha=alpha, bandwidth=share[slowest], fabric="")

    def _links_on(self, edges: Iterable[tuple[str, str]]) -> set[Link]:
        """The links that edges are part of, those inside hosts left out where the network is used too."""
        links = {self.graph.edges[e]["link"] for e in edges}
        network = {link for link in links if link.kind == "network"}
        return network or links
