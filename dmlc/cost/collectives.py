"""Prices of collectives on a cluster's links: measured tables, NCCL's tuning model where there is none, Gloo on processors.

A group lies on one link or on several levels (devices of a node, nodes). The price comes from, in this order: the fabric's table for this
size of group; between two sizes of group at equal bytes, the bus bandwidth in proportion; beyond them the nearest size's curve with its latency and its bytes scaled as
the model scales them; without a table the model. Below a table's first size the model's curve is scaled to meet it. A group over several nodes never costs less
than the same number of ranks on the links inside a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dmlc.cluster import Cluster, Link
from dmlc.cost import fabrics, gloo, nccl
from dmlc.cost.cost import Cost
from dmlc.cost.curve import Curve
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "recv")
HALF = 52  # percent of an all-reduce that a scatter, a gather or an exchange takes where only all-reduce was measured


def sent_bytes(kind: str, size: int, ranks: int) -> int:
    """Bytes a rank sends."""
    if kind in ("send", "recv", "broadcast"):
        return size
    return -(-size * (ranks - 1) * (2 if kind == "all_reduce" else 1) // ranks)


@dataclass(frozen=True)
class Path:
    """Where a group lies: its ranks, the nodes they are on, the links inside a node and between nodes (the same on one node), bytes a second of a rank inside
    and of the group's part of a node's adapters."""

    ranks: int
    nodes: int
    inner: Link
    outer: Link
    intra: int
    inter: int


def path(cluster: Cluster, mesh: Mesh, axes: Sequence[str]) -> Path:
    """The path of the widest spread group along `axes`, while all groups communicate."""
    ranks, outer, level = mesh.extent(axes), cluster.link(mesh, axes), link_level(cluster, mesh, axes)
    if level == 0:
        return Path(ranks, 1, outer, outer, outer.bandwidth, 0)
    if cluster.hosts:
        nodes, most = _spread([[cluster.host_of(r)[1] for r in group] for group in mesh.groups(axes)])
        inner = min((h.inside for h in cluster.hosts), key=lambda link: link.bandwidth)
    else:
        inner = cluster.links[level - 1]
        nodes, most = blocks(mesh, tuple(axes), inner.span)
    return Path(ranks, nodes, inner, outer, max(1, inner.bandwidth // inner.shared), outer.bandwidth * -(-most // outer.shared))


def link_level(cluster: Cluster, mesh: Mesh, axes: Sequence[str]) -> int:
    """The place among the cluster's links, innermost first, of the one that groups along `axes` take; with different hosts 0 inside, 1 between them."""
    groups = mesh.groups(axes)
    if cluster.hosts:
        return int(any(len({cluster.host_of(r)[1] for r in group}) > 1 for group in groups))
    levels = enumerate(cluster.links[:-1])
    return next((i for i, link in levels if all(min(g) // link.span == max(g) // link.span for g in groups)), len(cluster.links) - 1)


@lru_cache(maxsize=1 << 14)
def blocks(mesh: Mesh, axes: tuple[str, ...], span: int) -> tuple[int, int]:
    """Over how many blocks of `span` ranks the most spread group reaches, and the most of its ranks in one."""
    return _spread([[r // span for r in group] for group in mesh.groups(axes)])


def _spread(places: list[list[int]]) -> tuple[int, int]:
    return max(len(set(p)) for p in places), max(p.count(b) for p in places for b in set(p))


class Collectives:
    """Prices on one cluster, cached by where a group lies."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.generation = nccl.generation(cluster.device.name)
        self._paths: dict[tuple[Mesh, tuple[str, ...]], Path] = {}
        self._levels: dict[tuple[Mesh, tuple[str, ...]], int] = {}
        self._curves: dict[tuple[str, Path], tuple[Curve, str]] = {}
        self._known_by_mesh: dict[tuple[str, int, tuple[str, ...]], tuple[Mesh, int, Curve, str]] = {}  # holds the mesh: the id of its axes stays theirs

    def path(self, axes: Sequence[str], mesh: Mesh) -> Path:
        key = (mesh, tuple(axes))
        if key not in self._paths:
            self._paths[key] = path(self.cluster, mesh, axes)
        return self._paths[key]

    def level(self, axes: Sequence[str], mesh: Mesh) -> int:
        """`link_level`, cached."""
        key = (mesh, tuple(axes))
        if key not in self._levels:
            self._levels[key] = link_level(self.cluster, mesh, axes)
        return self._levels[key]

    def price(self, kind: str, size: int, axes: Sequence[str], mesh: Mesh) -> Cost:
        """Time of one collective, or of one message; bytes are those that a rank sends. Raises `DmlcError` for a kind it does not know."""
        key = (kind, id(mesh.axes), tuple(axes))
        if key not in self._known_by_mesh:
            if kind not in KINDS:
                raise DmlcError(f"no cost is known for a collective of kind '{kind}'; known are {', '.join(KINDS)}")
            ranks = mesh.extent(axes)
            if ranks == 1:
                return Cost()
            self._known_by_mesh[key] = (mesh, ranks, *self._curve(kind, self.path(axes, mesh)))
        _, ranks, curve, source = self._known_by_mesh[key]
        return Cost(curve.at(size), sent_bytes(kind, size, ranks), 0, source)

    def _curve(self, kind: str, where: Path) -> tuple[Curve, str]:
        if (kind, where) not in self._curves:
            self._curves[kind, where] = self._made(kind, where)
        return self._curves[kind, where]

    def _made(self, kind: str, where: Path) -> tuple[Curve, str]:
        if where.outer.backend == "gloo":
            return self._gloo(kind, where), "model"
        found = self._table(kind, where)
        curve, source = (nccl.curve(kind, self.layout(where)), "model") if found is None else (found, "table")
        if where.nodes > 1:
            inside = Path(where.ranks, 1, where.inner, where.inner, where.intra, 0)
            curve = higher(curve, self._curve(kind, inside)[0])
        return curve, source

    def layout(self, where: Path) -> nccl.Layout:
        kinds = [kind if (kind := link.kind) in nccl.HOP else "pcie" for link in (where.inner, where.outer)]
        return nccl.Layout(where.ranks, where.nodes, where.intra, where.inter, *kinds, where.inner.alpha, where.outer.alpha, self.generation)

    def _gloo(self, kind: str, where: Path) -> Curve:
        bandwidth = where.intra if where.nodes == 1 else max(1, where.inter // -(-where.ranks // where.nodes))
        times = [
            (size, gloo.time(kind, size, where.ranks, where.outer.alpha, bandwidth, self.cluster.device.bandwidth))
            for size in (0, *(1 << i for i in range(10, 37, 2)))
        ]
        return Curve(times)

    # -------------------------------------------------- measured tables

    def _table(self, kind: str, where: Path) -> Curve | None:
        """The fabric's curve for the group, scaled to the kind and the link's bandwidth; None without a table for such groups."""
        fabric = where.outer.fabric
        sizes = sorted(fabrics.KNOTS.get(fabric, ()))
        if not sizes or kind in ("send", "recv"):
            return None
        if where.nodes > 1 and (kind == "all_to_all" or fabrics.PER_NODE.get(fabric) != -(-where.ranks // where.nodes)):
            return None
        reduced = self._all_reduce(fabric, sizes, where)
        if kind == "broadcast":
            share, whole = where.ranks, 2 * (where.ranks - 1)
        else:
            share, whole = (100 if kind == "all_reduce" else HALF), 100
        return Curve((size, -(-time * share // whole)) for size, time in zip(reduced.sizes, reduced.times))

    def _all_reduce(self, fabric: str, sizes: list[int], where: Path) -> Curve:
        lower = max((n for n in sizes if n <= where.ranks), default=sizes[0])
        upper = min((n for n in sizes if n >= where.ranks), default=sizes[-1])
        model = nccl.curve("all_reduce", self.layout(where))
        curves = [self._known(fabric, n, where) for n in dict.fromkeys((lower, upper))]
        if where.ranks == lower == upper:
            curve = curves[0]
        elif len(curves) == 2:
            curve = between(curves, (lower, upper), where.ranks)
        else:
            curve = beyond(curves[0], lower, model, where.ranks)
        return rescaled(curve, fabrics.NOMINAL[fabric], where.outer.bandwidth)

    def _known(self, fabric: str, ranks: int, where: Path) -> Curve:
        """A table's curve, with the model's below its first size (and everywhere, scaled, where the table is one point)."""
        known = fabrics.table(fabric, ranks)
        assert known is not None
        nodes = -(-ranks // fabrics.PER_NODE[fabric]) if fabric in fabrics.PER_NODE else 1
        nominal = Path(ranks, nodes, where.inner, where.outer, where.intra, fabrics.NOMINAL[fabric] * -(-ranks // nodes))
        if nodes == 1:
            nominal = Path(ranks, 1, where.inner, where.outer, fabrics.NOMINAL[fabric], 0)
        model = nccl.curve("all_reduce", self.layout(nominal))
        first, time = known.sizes[0], known.times[0]
        met = model.at(first)
        points = [(s, -(-t * time // met)) for s, t in zip(model.sizes, model.times) if s < first or len(known.sizes) == 1]
        return Curve([*points, *zip(known.sizes, known.times)])


def factor(ranks: int) -> tuple[int, int]:
    """Bytes an all-reduce sends over its bytes, as a fraction."""
    return 2 * (ranks - 1), ranks


def higher(a: Curve, b: Curve) -> Curve:
    """The later of two curves."""
    sizes = sorted({*a.sizes, *b.sizes})
    return Curve((s, max(a.at(s), b.at(s))) for s in sizes)


def between(curves: Sequence[Curve], ranks: tuple[int, int], wanted: int) -> Curve:
    """Groups of a size between two known: their bus bandwidths in proportion, at each number of bytes."""
    (low, high), points = ranks, []
    for size in sorted({*curves[0].sizes, *curves[1].sizes}):
        # picoseconds a byte that a rank sends, times a number that keeps the precision
        a, b = (max(c.at(size), 1) * n * 1024 // factor(n)[0] for c, n in zip(curves, ranks))
        mean = (high - low) * a * b // ((high - wanted) * b + (wanted - low) * a)
        points.append((size, mean * factor(wanted)[0] // (wanted * 1024)))
    return Curve(points)


def beyond(known: Curve, ranks: int, model: Curve, wanted: int) -> Curve:
    """Groups larger or smaller than any known: bytes as the ring sends them, latency at least as the model has it."""
    start = known.at(0)
    latency = max(start, model.at(0)) if wanted > ranks else min(start, model.at(0))
    (sent, of), (known_sent, known_of) = factor(wanted), factor(ranks)
    return Curve((s, latency + (t - start) * sent * known_of // (of * known_sent)) for s, t in zip(known.sizes, known.times))


def rescaled(curve: Curve, nominal: int, bandwidth: int) -> Curve:
    """The curve on a link of another bandwidth: what grows with bytes takes as much longer as it is slower."""
    if nominal == bandwidth:
        return curve
    start = curve.at(0)
    return Curve((s, start + -(-(t - start) * nominal // bandwidth)) for s, t in zip(curve.sizes, curve.times))
