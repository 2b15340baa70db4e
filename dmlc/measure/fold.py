"""From profiles of a program's runs (`profile.json`) to measured times of its ops."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dmlc.cluster import Cluster
from dmlc.cost.measured import Measurements
from dmlc.cost.signature import op_key
from dmlc.ir.core import Module, Op
from dmlc.ir.sharding import Mesh
from dmlc.ops.comm import base_name

ALONE = 20  # a collective is taken as it is where computation fills at most 1 / ALONE of it
PS = 1000  # a nanosecond


def measurements_of(profile: Mapping[str, Any], module: Module) -> Measurements:
    """Medians over steps and ranks by key (of an op that others' lines do too, those of its own lines where it has some): of ops that no collective ran beside, of the local copies around collectives, and of collectives that
    nothing was computed beside (by kind, ranks, link and bytes; the shortest of the ranks', which had to wait for no other)."""
    by_id = {op.id: op for op in module.main.ops() if op.id}
    times: dict[str, list[int]] = defaultdict(list)
    collectives: dict[tuple, list[int]] = defaultdict(list)
    for record in profile["ranks"]:
        for step in record["steps"]:
            for key, ns in _own_times(step, profile["ops"], by_id, "pack" if profile["alone"] else "call"):
                times[key].append(ns)
    if not profile["alone"]:
        for steps in zip(*(record["steps"] for record in profile["ranks"])):
            for key, ns in _collectives(steps, profile["ops"], by_id):
                collectives[key].append(ns)
    ops = {key: _median([ns for ns in found if ns] or found) for key, found in sorted(times.items())}
    return Measurements(ops, _curves(collectives, module), machine=profile["ranks"][0]["machine"])


def _median(nanoseconds: list[int]) -> int:
    return max(1, round(statistics.median(nanoseconds) * PS))


def _own_times(step: list, entries: Mapping[str, Any], by_id: Mapping[str, Op], starting: str) -> Iterator[tuple[str, int]]:
    """(key, nanoseconds) of a step's computations that ran alone, and of what collectives took of the rank itself; `starting`: what the
    time of a start is called."""
    moving = [(e[2], e[3]) for e in step if "axes" in entries[e[0]]]
    for id_, _, begin, end, packing, unpacking in step:
        op, entry = by_id.get(id_), entries[id_]
        if op is None:
            continue
        if "axes" in entry:
            yield f"{starting} {op_key(op)}", packing
            if not entry["start"]:
                yield f"unpack {op_key(op)}", unpacking
        elif op.name == "comm.wait":
            start = op.operands[0].op
            if start is not None:
                yield f"unpack {op_key(start)}", unpacking
        elif not op.regions and not any(b < end and begin < e for b, e in moving):
            yield op_key(op), end - begin


def _collectives(steps: Iterable[list], entries: Mapping[str, Any], by_id: Mapping[str, Op]) -> Iterator[tuple[tuple, int]]:
    """((id of the op), nanoseconds) of one step's collectives that on no rank queued behind another or ran beside computation; the shortest of
    the ranks' times."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    ranks = 0
    for step in steps:
        ranks += 1
        computing = [(e[2], e[3]) for e in step if "axes" not in entries[e[0]] and entries[e[0]]["kind"] != "comm.wait"]
        free: dict[str, int] = {}
        for id_, run, begin, end, _, _ in step:
            if "axes" not in entries[id_]:
                continue
            queued = begin == free.get(entries[id_]["row"])
            free[entries[id_]["row"]] = end
            if id_ in by_id and end > begin and not queued:
                beside = sum(max(0, min(end, e) - max(begin, b)) for b, e in computing)
                if beside * ALONE <= end - begin:
                    found[id_, run].append(end - begin)
    yield from (((id_,), min(ns)) for (id_, _), ns in found.items() if len(ns) == ranks)


def _curves(found: Mapping[tuple, list[int]], module: Module) -> dict[tuple[str, int, str], list[tuple[int, int]]]:
    from dmlc.codegen.lines import traffic_entry

    by_id = {op.id: op for op in module.main.ops() if op.id}
    mesh, cluster = Mesh.of(module), Cluster.of(module)
    points: dict[tuple[str, int, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for (id_,), nanoseconds in sorted(found.items()):
        entry = traffic_entry(by_id[id_])
        kind = "send" if base_name(by_id[id_]) == "comm.recv" else entry["collective"]
        points[kind, mesh.extent(entry["axes"]), cluster.link(mesh, entry["axes"]).name][entry["bytes"]] += nanoseconds
    return {key: [(size, _median(ns)) for size, ns in sorted(by_size.items())] for key, by_size in points.items()}
