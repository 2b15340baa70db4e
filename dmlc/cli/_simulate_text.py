"""The report of `dmlc simulate` in words, from its facts."""

from __future__ import annotations

from typing import Any

PICO = 10**12
SMALL_SHARE = 0.0005  # kinds of op below it have no row


def report_lines(facts: dict[str, Any], note: str = "") -> list[str]:
    """All sections, an empty line between them."""
    sections = [
        head_lines(facts, note),
        time_lines(facts),
        communication_lines(facts),
        memory_lines(facts),
        op_lines(facts),
        default_lines(facts),
        what_if_lines(facts),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines).split("\n")


def head_lines(facts: dict[str, Any], note: str) -> list[str]:
    what = {"train": "a training step", "eval": "an evaluation step"}.get(facts["mode"], "one run")
    devices = ", ".join(facts["different_devices"]) or facts["device"]
    plan = f", {facts['plan']}" if facts["plan"] else ""
    lines = [f"{facts['program']}: {what} on {facts['devices']} x {devices}{plan}"]
    rows = [("note", note)] if note else []
    rows += [("step", step_text(facts)), ("priced by", sources_text(facts["error"]))]
    rows += [("throughput", text)] if (text := throughput_text(facts)) else []
    rows += [("utilisation", utilisation_text(facts["utilisation"]))]
    rows += [("bound", bound_text(facts))]
    rows += money_rows(facts["money"])
    return lines + [f"  {name:12} {text}" for name, text in rows]


def step_text(facts: dict[str, Any]) -> str:
    error, step = facts["error"]["share"], facts["step_ps"]
    return f"{time_text(step)} +- {error:.0%} ({time_text(round(step * max(0.0, 1 - error)))} to {time_text(round(step * (1 + error)))})"


def sources_text(error: dict[str, Any]) -> str:
    parts = [f"{share:.0%} {source} (+-{error['percent_of_source'][source]} %)" for source, share in error["priced_by"].items()]
    return ", ".join(parts) or "nothing takes time"


def throughput_text(facts: dict[str, Any]) -> str:
    """Samples and tokens a second; "" where no input tells how many there are."""
    found, count = facts["throughput"], facts["microbatches"]
    units = [unit for unit in ("samples", "tokens") if f"{unit}_per_second" in found]
    parts = [f"{count_text(found[f'{unit}_per_second'])} {unit}/s ({found[f'{unit}_per_step']:,} a step)" for unit in units]
    return ", ".join(parts) + (f", in {count} microbatches" if parts and count > 1 else "")


def utilisation_text(found: dict[str, Any]) -> str:
    if "hfu" not in found:
        return "nothing takes time"
    model = (
        f"MFU {share_text(found['mfu'])} ({flops_text(found['model_flops'])} a step)"
        if "mfu" in found
        else "MFU not known (the program does not say what it has to compute)"
    )
    return f"{model}, HFU {share_text(found['hfu'])} ({flops_text(found['hardware_flops'])} computed)"


def bound_text(facts: dict[str, Any]) -> str:
    bound = facts["bound"]
    limits = {"computation": bound["computation_ps"], "communication": bound["communication_ps"], "critical path": bound["critical_path_ps"]}
    what = max(limits, key=lambda name: limits[name])
    return f"no order of it takes less than {time_text(bound['best_ps'])} ({what if limits[what] == bound['best_ps'] else 'host'}); this one is {bound['gap']:.1%} above"


def money_rows(money: dict[str, Any]) -> list[tuple[str, str]]:
    """Dollars and energy of a step and of a million of them."""
    rows = [("price", f"${money['dollars_per_step']:.3g} a step")] if "dollars_per_step" in money else [("price", "not known: the cluster file has no `price`")]
    if "kwh_per_step" not in money:
        return rows
    return [*rows, ("energy", f"{money['kwh_per_step']:.3g} kWh a step, at full load ({money['watts']:,.0f} W)")]


# ---------------------------------------------------------------- sections


def time_lines(facts: dict[str, Any]) -> list[str]:
    time, step = facts["time"], facts["step_ps"] or 1
    lines = [
        "time",
        _share_row("computing", time["computation_ps"], step),
        _share_row("exposed communication", time["exposed_communication_ps"], step),
        _share_row("waiting for the host", time["waiting_for_host_ps"], step),
        "by kind of op",
    ]
    return lines + [_share_row(kind, ps, step) for kind, ps in time["by_kind_ps"].items() if ps >= SMALL_SHARE * step and kind != "host"]


def _share_row(name: str, ps: int, step: int) -> str:
    return f"  {name:24} {time_text(ps):>12} {ps / step:7.1%}"


def communication_lines(facts: dict[str, Any]) -> list[str]:
    found = facts["communication"]
    if not found["by_kind"]:
        return []
    lines = [f"communication: {time_text(found['busy_ps'])} in all, {found['exposed_share']:.0%} of it exposed"]
    return lines + [f"  {kind:24} {time_text(t['ps']):>12} {t['count']:7} x, {bytes_text(t['bytes'])} sent by a rank" for kind, t in found["by_kind"].items()]


def memory_lines(facts: dict[str, Any]) -> list[str]:
    memory = facts["memory"]
    share = f" ({memory['peak_bytes'] / memory['limit_bytes']:.1%} of {bytes_text(memory['limit_bytes'])})"
    at = memory["at"]
    when = f", at {time_text(at['begin_ps'])}" if at["begin_ps"] is not None else ""
    where = f", when '{at['name']}' [{at['op']}] runs{when}" if at["op"] else ""
    over = ["  this does not fit"] if memory["peak_bytes"] > memory["limit_bytes"] else []
    lines = [f"memory: {bytes_text(memory['peak_bytes'])} at the peak{share}{where}", *over]
    return lines + [f"  {name:24} {bytes_text(size):>12}" for name, size in memory["by_category"].items() if size]


def op_lines(facts: dict[str, Any]) -> list[str]:
    rows, step = facts["costliest"], facts["step_ps"] or 1
    lines = ["costliest ops (all their runs, each side at full speed)"] if rows else []
    for row in rows:
        where = f"  {row['where']}" if row["where"] else ""
        lines.append(f"  {time_text(row['ps']):>12} {row['ps'] / step:7.1%}  {row['kind']:14} {row['name']} [{row['op']}], {row['source']}{where}")
    return lines


def default_lines(facts: dict[str, Any]) -> list[str]:
    if not facts["defaults"]:
        return []
    return ["priced by a default, for want of anything better", *(f"  {name:24} {count} x" for name, count in facts["defaults"].items())]


def what_if_lines(facts: dict[str, Any]) -> list[str]:
    """Before -> after of each change."""
    rows = facts.get("what_if", [])
    lines = ["what if (the same program)"] if rows else []
    for row in rows:
        before, after = row["before"], row["after"]
        change = after["step_ps"] / before["step_ps"] - 1 if before["step_ps"] else 0.0
        lines.append(f"  {row['change']}: step {time_text(before['step_ps'])} -> {time_text(after['step_ps'])} ({change:+.1%})")
        details = [
            f"exposed {time_text(before['exposed_ps'])} -> {time_text(after['exposed_ps'])}",
            f"computing {time_text(before['computation_ps'])} -> {time_text(after['computation_ps'])}",
        ]
        if "mfu" in before and "mfu" in after:
            details.append(f"MFU {share_text(before['mfu'])} -> {share_text(after['mfu'])}")
        if after["peak_bytes"] > after["limit_bytes"]:
            details.append(f"does not fit: {bytes_text(after['peak_bytes'])} of {bytes_text(after['limit_bytes'])}")
        lines.append("    " + ", ".join(details))
    return lines


# ---------------------------------------------------------------- amounts


def time_text(ps: int) -> str:
    for unit, size in (("s", PICO), ("ms", 10**9), ("us", 10**6)):
        if ps >= size:
            return f"{ps / size:.4g} {unit}"
    return f"{ps / 1000:.4g} ns" if ps else "0"


def bytes_text(n: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 1000)):
        if n >= size:
            return f"{n / size:.4g} {unit}"
    return f"{n} B"


def flops_text(n: int) -> str:
    for unit, size in (("PFLOP", 10**15), ("TFLOP", PICO), ("GFLOP", 10**9), ("MFLOP", 10**6)):
        if n >= size:
            return f"{n / size:.4g} {unit}"
    return f"{n:,} FLOP"


def share_text(share: float) -> str:
    """Percent with three digits."""
    return f"{100 * share:.3g} %"


def count_text(n: float) -> str:
    return f"{n:,.0f}" if n >= 100 else f"{n:.3g}"
