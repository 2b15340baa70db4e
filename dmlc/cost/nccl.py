"""NCCL's own tuning model: of every algorithm and protocol the least of latency + bytes / bandwidth.

Constants and formulas are those of NCCL 2.2x `src/graph/tuning.cc` and `topo.h` (restated, not copied): base and hop latencies of ring, tree and
NVLS for the protocols LL, LL128 and Simple, the most that LL moves, what a channel moves, and the correction of trees by size.
Where NCCL's search would find channels and bandwidth in the machine, the links say them. One thing is measured: NVLS reaches 482 GB/s
on 8 H200 (bus bandwidth, 16 GiB) and 839 GB/s on 8 B200, 1.34 and 1.17 times the ring's, less than the model's 1.6 and 1.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from dmlc.cost.cost import transfer
from dmlc.cost.curve import Curve

PROTOCOLS = ("LL", "LL128", "Simple")
# Nanoseconds for LL, LL128, Simple.
BASE = {"tree": (6800, 14000, 8400), "ring": (6600, 14000, 8400), "nvls": (0, 0, 8400)}
HOP = {
    "nvlink": {"tree": (600, 1250, 4000), "ring": (600, 1900, 3400), "nvls": (0, 0, 25000)},
    "pcie": {"tree": (1000, 1900, 4000), "ring": (1000, 2500, 5700), "nvls": (0, 0, 25000)},
    "network": {"tree": (5000, 8500, 14000), "ring": (2700, 4000, 14000), "nvls": (0, 0, 18000)},
}
USUAL = {"nvlink": 2000, "pcie": 3350, "network": 8350}  # mean of a ring's LL and Simple hop: a link of this `alpha` has NCCL's latencies
NET_OVERHEAD = (1000, 1000, 3000)  # the least a hop takes once a network is involved
# By generation; per-node figures are for 1, 2, and 4 or more nodes. Bandwidths in MB/s.
CHANNELS = {"volta": 2, "ampere": 8, "hopper": 16, "blackwell": 32}
LL_MOST = {"volta": (39000, 39000, 20400), "ampere": (87700, 22500, 19000), "hopper": (141000, 45000, 35000), "blackwell": (282000, 90000, 70000)}
RING_LL128 = {"volta": 20000, "ampere": 20000, "hopper": 36700, "blackwell": 40000}
TREE_LL128 = {"volta": (20000,) * 3, "ampere": (20000,) * 3, "hopper": (36700, 36700, 29000), "blackwell": (55600, 31670, 20000)}
TREE = {"volta": (26500, 18500, 10000), "ampere": (24000, 23600, 17800), "hopper": (38700, 41400, 36000), "blackwell": (70000, 42800, 24000)}
NVLS = {"hopper": 134, "blackwell": 117}  # percent of the ring's bus bandwidth, all-reduce (measured, see above)
# Percent by log2(bytes / 64).
TREE_CORRECTION = {
    "LL": (100,) * 4 + (90, 80, 70, 70, 70, 70, 60, 50, 40, 40, 50, 60, 70, 80, 90) + (100,) * 5,
    "LL128": (100,) * 5 + (90, 80, 80, 80, 70, 60, 60, 60, 60, 60, 60, 80, 90, 90, 90, 90) + (100,) * 3,
    "Simple": (90,) * 7 + (80, 70, 60, 60, 50, 50, 50, 50, 60, 70, 80, 70, 70, 80, 90, 90, 90),
}
GENERATIONS = {"v100": "volta", "t4": "volta", "h100": "hopper", "h200": "hopper", "gh200": "hopper", "b200": "blackwell", "gb200": "blackwell"}


def generation(device: str) -> str:
    """The row of NCCL's constants for a device's name; what is not known counts as Ampere, the row in the middle."""
    return next((g for name, g in GENERATIONS.items() if device.startswith(name)), "ampere")


@dataclass(frozen=True)
class Layout:
    """How a group lies: `ranks` over `nodes`; bytes a second of a rank inside a node (`intra`) and of the group's part of a node's
    adapters (`inter`); link kinds and hop latencies (picoseconds, as `Link.alpha`) of both; the generation of the devices."""

    ranks: int
    nodes: int
    intra: int
    inter: int
    intra_kind: str
    inter_kind: str
    intra_alpha: int
    inter_alpha: int
    generation: str

    @property
    def per_node(self) -> int:
        return -(-self.ranks // self.nodes)

    @property
    def bandwidth(self) -> int:
        """Bytes a second of a ring over the group."""
        return self.intra if self.nodes == 1 else self.inter if self.per_node == 1 else min(self.intra, self.inter)

    def row(self, values: tuple[int, ...]) -> int:
        """The entry for 1, 2 or more nodes."""
        return values[min(self.nodes, 3) - 1]


@lru_cache(maxsize=4096)
def curve(kind: str, layout: Layout) -> Curve:
    """Picoseconds by bytes of a collective (`bytes` as `CostModel.collective` takes them)."""
    return Curve((size, least(kind, size, layout)) for size in (0, *(64 << i for i in range(29))))


def least(kind: str, size: int, layout: Layout) -> int:
    """Picoseconds of the best algorithm and protocol."""
    if kind in ("send", "recv"):
        return min(_message(size, layout, p) for p in range(3))
    if kind == "all_to_all":
        return min(_exchange(size, layout, p) for p in range(3))
    algorithms = [_ring(kind, size, layout, p) for p in range(3)]
    if kind == "all_reduce":
        algorithms += [_tree(size, layout, p) for p in range(3)]
        if layout.generation in NVLS and layout.per_node > 2:
            algorithms.append(_nvls(size, layout))
    return min(algorithms)


def _hop(layout: Layout, algorithm: str, protocol: int) -> tuple[int, int]:
    """Picoseconds of a hop inside a node and between nodes."""
    intra = HOP[layout.intra_kind][algorithm][protocol] * layout.intra_alpha // USUAL[layout.intra_kind]
    if layout.nodes == 1:
        return intra, 0
    return max(intra, NET_OVERHEAD[protocol] * 1000), HOP[layout.inter_kind][algorithm][protocol] * layout.inter_alpha // USUAL[layout.inter_kind]


def _ring_rate(layout: Layout, protocol: int) -> int:
    bandwidth = layout.bandwidth
    if protocol == 0:
        return min(layout.row(LL_MOST[layout.generation]) * 10**6, bandwidth // 2)
    if protocol == 1:
        return min(bandwidth * 92 // 100, CHANNELS[layout.generation] * RING_LL128[layout.generation] * 10**6)
    return bandwidth


def _ring(kind: str, size: int, layout: Layout, protocol: int) -> int:
    """Steps of all ranks in turn; an all-reduce goes round twice, a broadcast sends all bytes once."""
    n, rounds = layout.ranks, 2 if kind == "all_reduce" else 1
    intra, inter = _hop(layout, "ring", protocol)
    between = 0 if layout.nodes == 1 else rounds * (layout.nodes - 1)
    if kind == "all_reduce" and protocol == 2 and layout.nodes > 1 and size >= 64 * CHANNELS[layout.generation] * n:
        inter = inter * (14 if layout.generation != "volta" else 19) // 10
    latency = BASE["ring"][protocol] * 1000 + (rounds * (n - 1) - between) * intra + between * inter
    sent = size if kind == "broadcast" else -(-size * rounds * (n - 1) // n)
    return latency + transfer(sent, _ring_rate(layout, protocol))


def _tree(size: int, layout: Layout, protocol: int) -> int:
    """Up a tree and down again: latency by its depth, bandwidth by size."""
    g, bandwidth = layout.generation, layout.bandwidth
    intra, inter = _hop(layout, "tree", protocol)
    depth = layout.nodes.bit_length() - 1
    latency = BASE["tree"][protocol] * 1000 + 2 * ((layout.per_node - 1) * intra + depth * inter)
    rate = min(bandwidth * 92 // 100, CHANNELS[g] * layout.row(TREE[g]) * 10**6)
    if protocol == 0:
        rate = min(rate * 10 // 38, layout.row(LL_MOST[g]) * 10**6)
    elif protocol == 1:
        whole = rate * 7 // 9 if layout.nodes == 1 else rate * 120 // 128
        rate = min(whole, CHANNELS[g] * layout.row(TREE_LL128[g]) * 10**6)
    place = min(max(size // 64, 1).bit_length() - 1, 23)
    corrected = max(rate * TREE_CORRECTION[PROTOCOLS[protocol]][place] // 100, 1)
    return latency + transfer(2 * size, corrected)


def _nvls(size: int, layout: Layout) -> int:
    """The switch adds up (Hopper and later); between nodes a tree of nodes."""
    intra, inter = _hop(layout, "nvls", 2)
    latency = BASE["nvls"][2] * 1000 + intra + 2 * (layout.nodes.bit_length() - 1) * inter
    rate = layout.intra * NVLS[layout.generation] // 100
    if layout.nodes > 1:
        rate = min(rate, layout.inter)
    return latency + transfer(-(-size * 2 * (layout.ranks - 1) // layout.ranks), rate)


def _exchange(size: int, layout: Layout, protocol: int) -> int:
    """Everyone to everyone: a rank's own part stays, what leaves the node goes through the group's part of its adapters."""
    n, here = layout.ranks, layout.per_node
    intra, inter = _hop(layout, "ring", protocol)
    latency = BASE["ring"][protocol] * 1000 + (n - 1) * intra + (layout.nodes - 1) * max(inter - intra, 0)
    inside = transfer(-(-size * (n - 1) // n), _ring_rate_of(layout, protocol, layout.intra))
    if layout.nodes == 1:
        return latency + inside
    outside = transfer(-(-size * (n - here) * here // n), _ring_rate_of(layout, protocol, layout.inter))
    return latency + max(inside if here > 1 else 0, outside)


def _message(size: int, layout: Layout, protocol: int) -> int:
    intra, inter = _hop(layout, "ring", protocol)
    rate = layout.intra if layout.nodes == 1 else max(layout.inter // layout.per_node, 1)
    return BASE["ring"][protocol] * 1000 + (intra if layout.nodes == 1 else inter) + transfer(size, _ring_rate_of(layout, protocol, rate))


def _ring_rate_of(layout: Layout, protocol: int, rate: int) -> int:
    """What a protocol makes of a bandwidth."""
    return (min(rate // 2, layout.row(LL_MOST[layout.generation]) * 10**6), rate * 92 // 100, rate)[protocol]

