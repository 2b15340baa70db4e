"""What a simulated step says, as plain data: the content of `dmlc simulate --json`. Times in picoseconds, sizes in bytes, shares from 0 to 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dmlc.cluster import Cluster
from dmlc.ir.core import Module
from dmlc.ir.sharding import Mesh
from dmlc.simulate.accuracy import error_of
from dmlc.simulate.step import StepReport
from dmlc.simulate.work import work_of

PICO = 10**12
JOULES_PER_KWH = 3_600_000
COSTLIEST = 10


def facts_of(name: str, plan: str, module: Module, cluster: Cluster, report: StepReport) -> dict[str, Any]:
    """Everything but the what-ifs."""
    seconds = report.time / PICO
    return {
        "program": name,
        "plan": plan,
        "mode": module.attrs.get("dmlc.mode", "inference"),
        "devices": Mesh.of(module).devices,
        "microbatches": module.attrs.get("dmlc.request", {}).get("microbatches", 1),
        "device": cluster.device.name,
        "different_devices": [d.name for d in cluster.devices] if len(cluster.devices) > 1 else [],
        "step_ps": report.time,
        "error": error_of(report.sources),
        "throughput": throughput_of(module, seconds),
        "utilisation": utilisation_of(module, cluster, seconds),
        "time": {
            "computation_ps": report.computation,
            "exposed_communication_ps": report.exposed,
            "waiting_for_host_ps": report.starved,
            "host_ps": report.host,
            "by_kind_ps": dict(sorted(report.by_kind.items(), key=lambda kv: -kv[1])),
        },
        "communication": communication_of(report),
        "memory": memory_of(cluster, report),
        "costliest": costliest(report),
        "money": money_of(cluster, Mesh.of(module).devices, seconds),
        "defaults": dict(report.defaults),
        "bound": {
            "computation_ps": report.bounds.computation,
            "communication_ps": report.bounds.communication,
            "critical_path_ps": report.bounds.critical_path,
            "best_ps": report.bounds.best,
            "gap": report.gap,
        },
    }


# ---------------------------------------------------------------- throughput, utilisation


def throughput_of(module: Module, seconds: float) -> dict[str, Any]:
    """Samples and tokens a step and a second, over all devices; tokens where an integer input is a batch of sequences."""
    samples, tokens = batch_of(module)
    found: dict[str, Any] = {}
    for name, count in (("samples", samples), ("tokens", tokens)):
        if count and seconds:
            found |= {f"{name}_per_step": count, f"{name}_per_second": count / seconds}
    return found


def batch_of(module: Module) -> tuple[int, int]:
    """Samples and tokens of a step; 0 where no input tells."""
    samples, tokens = module.attrs.get("dmlc.request", {}).get("batch", 0), 0
    for arg in module.main.args:
        if arg.attrs.get("dmlc.role", "input") != "input" or "dmlc.batch_dim" not in arg.attrs:
            continue
        shape, dim = tuple(arg.attrs.get("dmlc.global", arg.shape)), arg.attrs["dmlc.batch_dim"]
        parts = shape[0] if "dmlc.micro" in arg.attrs else 1  # microbatches are a dim of their own
        inner = shape[1:] if "dmlc.micro" in arg.attrs else shape
        samples = samples or parts * inner[dim]
        if len(inner) == 2 and arg.dtype in ("i64", "i32") and not tokens:
            tokens = samples * inner[1 - dim]
    return samples, tokens


def utilisation_of(module: Module, cluster: Cluster, seconds: float) -> dict[str, Any]:
    """MFU: what the step has to compute, over what the devices could at their dense peaks in its time. HFU counts what is computed, with what is
    recomputed, repeated on several ranks or padding. MFU is left out of a program that does not say what it has to compute."""
    devices = Mesh.of(module).devices
    done = {dtype: flops * devices for dtype, flops in work_of(module.main.body).items()}
    found: dict[str, Any] = {"hardware_flops": sum(done.values())}
    if seconds:
        found["hfu"] = ideal_seconds(done, cluster, devices) / seconds
    if "dmlc.work" in module.attrs:
        model = dict(module.attrs["dmlc.work"])
        found["model_flops"] = sum(model.values())
        if seconds:
            found["mfu"] = ideal_seconds(model, cluster, devices) / seconds
    return found


def ideal_seconds(flops: Mapping[str, int], cluster: Cluster, devices: int) -> float:
    return sum(n / rate_of(cluster, devices, dtype) for dtype, n in flops.items())


def rate_of(cluster: Cluster, devices: int, dtype: str) -> int:
    """Operations a second of all devices together."""
    if not cluster.hosts:
        return devices * cluster.device.rate(dtype)
    return sum(cluster.device_of(rank).rate(dtype) for rank in range(devices))


# ---------------------------------------------------------------- communication, memory, ops, money


def communication_of(report: StepReport) -> dict[str, Any]:
    kinds = {kind: {"count": t.count, "bytes": t.bytes, "ps": t.time} for kind, t in report.traffic.items()}
    return {"busy_ps": report.communication, "exposed_share": report.exposed_share, "by_kind": kinds, "by_axes_ps": dict(report.streams)}


def memory_of(cluster: Cluster, report: StepReport) -> dict[str, Any]:
    at = report.peak_at
    return {
        "peak_bytes": report.peak,
        "limit_bytes": cluster.memory,
        "by_category": dict(report.memory),
        "at": {"op": at.op, "name": at.name, "begin_ps": at.time},
    }


def costliest(report: StepReport) -> list[dict[str, Any]]:
    """The ops that take most time in a step, all their runs together, at full speed and one by one."""
    rows = [(item, item.cost.times(count)) for item, count in report.run.counted() if item.cost.time and count]
    rows.sort(key=lambda row: -row[1].time)
    return [
        {
            "op": item.op.id,
            "name": item.name,
            "kind": item.kind,
            "where": str(item.op.loc) if item.op.loc.known and not item.op.loc.text else "",
            "ps": cost.time,
            "source": cost.source,
            "flops": cost.flops,
            "bytes": cost.bytes,
        }
        for item, cost in rows[:COSTLIEST]
    ]


def money_of(cluster: Cluster, devices: int, seconds: float) -> dict[str, Any]:
    """Dollars and energy of a step on the devices that it runs on; left out where the cluster does not tell prices or power."""
    used = cluster.take(devices)
    dollars, watts = used.dollars(), used.watts()
    found: dict[str, Any] = {}
    if dollars:
        found["dollars_per_step"] = dollars * seconds / 3600
    if watts:
        found |= {"kwh_per_step": watts * seconds / JOULES_PER_KWH, "watts": watts}
    return found
