"""Writes what `timing.py` found: profile.json (all steps of all ranks), trace.json (one step, for Perfetto), and a line on the step's time."""

import hashlib
import json
import os
import statistics
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOST = 1_000_000  # pid of a rank's host beyond its device's
C10 = {"f64": "Double", "f32": "Float", "f16": "Half", "bf16": "BFloat16", "i64": "Long", "i32": "Int", "i16": "Short", "i8": "Char", "ui8": "Byte"}


def gathered(record):
    """All ranks' records on rank 0, None elsewhere. Every rank calls this."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return [record]
    from runtime import _cpu_group

    found = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(record, found, dst=0, group=_cpu_group())
    return found


def save(profiled, to, trace, say):
    """Write profile.json, and the trace where one is asked for. Rank 0 says what was found."""
    from timing import read_ops

    records = gathered(profiled.record())
    if records is None:
        return
    ops = read_ops()
    profile = {"version": 1, "program": digest(), "mesh": dict(profiled.mesh.axes), "alone": len(records) < profiled.mesh.size, "ops": ops, "ranks": records}
    to, trace = Path(to), Path(trace) if trace else None
    to.write_text(json.dumps(profile, separators=(",", ":")))
    if trace is not None:
        trace.write_text(json.dumps(trace_of(profile)))
    plain, timed = statistics.median(records[0]["plain_ns"]), statistics.median(records[0]["timed_ns"])
    where = f"{to}, trace in {trace}" if trace is not None else to
    say(f"profile of {len(records[0]['steps'])} steps in {where}; the clock's looks cost {max(0.0, timed / plain - 1):.1%}")


def digest():
    """Of the program the profile is of."""
    return hashlib.sha256((HERE / "model.py").read_bytes()).hexdigest()[:16]


# ---------------------------------------------------------------- trace


def median_step(record):
    """The step whose time is the median."""
    order = sorted(range(len(record["steps"])), key=lambda i: record["timed_ns"][i])
    return order[len(order) // 2]


def trace_of(profile):
    """Chrome's trace format with Kineto's fields: of each rank its median step, beginning at 0."""
    groups = group_names(profile)
    events = [e for record in profile["ranks"] for e in rank_events(profile, record, groups)]
    first = profile["ranks"][0]
    on_gpu, world = first["machine"]["device"] == "cuda", _size(profile["mesh"])
    backend = "nccl" if on_gpu else "gloo"
    members_of = {axes: members(profile["mesh"], first["rank"], axes.split(",")) for axes in groups}
    config = [{"pg_name": groups[a], "pg_desc": a, "backend_config": backend, "pg_size": len(m), "ranks": m} for a, m in members_of.items()]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": r["rank"], "name": r["machine"]["name"], "totalGlobalMem": 0, "numSms": 0} for r in profile["ranks"]],
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "distributedInfo": {"backend": backend, "rank": first["rank"], "world_size": world, "pg_count": len(config), "pg_config": config},
        "traceName": f"rank{first['rank']}" if len(profile["ranks"]) == 1 else "merged",
        "dmlc": {"kind": "measured"},
        "traceEvents": events,
    }


def group_names(profile):
    axes = [",".join(entry["axes"]) for entry in profile["ops"].values() if "axes" in entry]
    return {a: str(i) for i, a in enumerate(dict.fromkeys(axes), 1)}


def _size(mesh, axes=None):
    size = 1
    for axis in mesh if axes is None else axes:
        size *= mesh[axis]
    return size


def rank_events(profile, record, groups):
    rank, on_gpu = record["rank"], record["machine"]["device"] == "cuda"
    chosen = median_step(record)
    rows = {"compute": 7, **{f"comm {axes}": 20 + i for i, axes in enumerate(groups)}}
    found, correlation, begun, waits = [], 0, {}, []
    for op, run, begin, end, _, _ in sorted(record["steps"][chosen], key=lambda e: e[2]):
        entry = profile["ops"][op]
        if not entry["shown"]:
            continue
        tid = rows[entry["row"]]
        correlation += 1
        number = rank * 10_000_000 + correlation
        args = {"dmlc.op": op, "device": rank, "stream": tid, "correlation": number, "External id": number, "dmlc.kind": entry["category"]}
        args |= traffic_args(profile, entry, rank, groups) if "axes" in entry else {}
        found.append({"ph": "X", "cat": "kernel" if on_gpu else "cpu_op", "name": entry["name"], "pid": rank, "tid": tid, **_span(begin, end), "args": args})
        if "axes" in entry:
            begun[op, run] = (number, tid, begin)
        elif "of" in entry:
            waits.append((entry["of"], run, begin))
    for of, run, begin in waits:
        found += _arrow(begun[of, run], begin, rank)
    return [*head_events(rank, on_gpu, rows), *found, *step_events(rank, on_gpu, record["timed_ns"][chosen])]


def _arrow(start, begin, rank):
    number, tid, at = start
    common = {"cat": "comm", "name": "wait", "id": number, "pid": rank}
    return [{"ph": "s", **common, "tid": tid, "ts": at / 1000}, {"ph": "f", "bp": "e", **common, "tid": 7, "ts": max(at, begin) / 1000}]


def _span(begin, end):
    return {"ts": begin / 1000, "dur": (end - begin) / 1000}


def traffic_args(profile, entry, rank, groups):
    axes = ",".join(entry["axes"])
    return {
        "dmlc.bytes": entry["bytes"],
        "Collective name": entry["collective"],
        "dtype": C10.get(entry["dtype"], "Bool"),
        "In msg nelems": entry["in"],
        "Out msg nelems": entry["out"],
        "In split size": [],
        "Out split size": [],
        "Group size": _size(profile["mesh"], entry["axes"]),
        "Process Group Name": groups[axes],
        "Process Group Description": axes,
        "Process Group Ranks": members(profile["mesh"], rank, entry["axes"]),
        "Rank": rank,
    }


def members(mesh, rank, axes):
    """Ranks that differ from `rank` along `axes` only, in group order."""
    from runtime import Mesh

    return Mesh(mesh).members(rank, tuple(axes))


def head_events(rank, on_gpu, rows):
    device, host = rank, HOST + rank
    label = f"{'GPU' if on_gpu else 'CPU'} {rank}"
    found = [_meta(device, 0, "process_name", name=f"rank {rank} (measured)"), _meta(device, 0, "process_labels", labels=label)]
    found += [_meta(device, 0, "process_sort_index", sort_index=5_000_000 + rank), _meta(host, 0, "process_name", name="python")]
    found += [_meta(host, 0, "process_labels", labels="CPU"), _meta(host, 0, "process_sort_index", sort_index=rank)]
    for pid, name, tid in [*((device, n, t) for n, t in rows.items()), (host, "host", 1)]:
        found += [_meta(pid, tid, "thread_name", name=name), _meta(pid, tid, "thread_sort_index", sort_index=tid)]
    return found


def _meta(pid, tid, what, **args):
    return {"ph": "M", "ts": 0, "pid": pid, "tid": tid, "name": what, "args": args}


def step_events(rank, on_gpu, length):
    common = {"ph": "X", "name": "ProfilerStep#0", **_span(0, length), "args": {}}
    device = "gpu_user_annotation" if on_gpu else "user_annotation"
    return [{**common, "cat": "user_annotation", "pid": HOST + rank, "tid": 1}, {**common, "cat": device, "pid": rank, "tid": 7}]


# ---------------------------------------------------------------- the step's time, beside the prediction


def say_step(times, device, say, as_compiled=True, sizes=None):
    """One line on the step: seconds measured, and what the compiler predicted where it was for this kind of device and for the batch that ran
    (`as_compiled`). `sizes`: open sizes by name, where they are not those it was planned for. `dmlc run` says more and asks for the numbers in a file instead."""
    if not times:
        return
    measured = {"seconds": statistics.median(times), "count": len(times), "device": device.type, "as_compiled": as_compiled, "sizes": sizes, **device_facts(device)}
    asked = os.environ.get("DMLC_STEP_FILE")
    if asked:
        Path(asked).write_text(json.dumps(measured))
        return
    predicted = json.loads((HERE / "plan.json").read_text()).get("predicted") if (HERE / "plan.json").exists() else None
    text = f"measured {measured['seconds'] * 1e3:.4g} ms (median of {len(times)})"
    here = ["cpu"] if device.type == "cpu" else measured["name"].lower().split()
    if predicted and as_compiled and not sizes and predicted["target"].lower() in here:
        before = f"predicted {predicted['step_ps'] / 1e9:.4g} ms (± {100 * predicted['error']:.0f} %)"
        text = f"{before}, {text}, bound {predicted['bound_ps'] / 1e9:.4g} ms"
    say(f"step: {text}")


def device_facts(device):
    import torch

    if device.type != "cuda":
        return {"name": "cpu", "memory": 0}
    found = torch.cuda.get_device_properties(device)
    return {"name": found.name, "memory": found.total_memory}
