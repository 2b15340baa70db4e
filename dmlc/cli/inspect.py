"""show a compiled folder's plan and why, pass by pass

Reads `plan.json`, and of a folder compiled with --dump-ir also the numbered texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dmlc.cli.arguments import Parser
from dmlc.ir.location import DmlcError
from dmlc.ir.suggest import did_you_mean
from dmlc.passmanager.manager import SECONDS, difference


def parser() -> Parser:
    p = Parser(prog="dmlc inspect", description="Show a compiled folder's plan and why, and what each pass did.")
    p.add_argument("folder", metavar="OUT", nargs="?")
    p.add_argument("--diff", metavar="PASS", help="show the text before and after a pass (a name, or its number where it ran several times)")
    return p


def main(argv: Sequence[str]) -> int:
    p = parser()
    args = p.parse(argv)
    if args.folder is None:
        p.error("no OUT given")
    folder = Path(args.folder)
    plan = read_plan(folder)
    print("\n".join(diff_lines(folder, args.diff) if args.diff else lines_of(folder, plan)))
    return 0


def read_plan(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    except OSError:
        raise DmlcError(f"{folder} is not a compiled folder (it has no plan.json); make one with dmlc compile") from None
    except ValueError:
        raise DmlcError(f"{folder / 'plan.json'} is damaged; compile again") from None


# ---------------------------------------------------------------- the plan


def lines_of(folder: Path, plan: dict[str, Any]) -> list[str]:
    remarks = plan.get("reasons", [])
    return [*plan_lines(plan), "", *pass_lines(folder, plan.get("passes", []), remarks), "", *reason_lines(remarks)]


def plan_lines(plan: dict[str, Any]) -> list[str]:
    """What was decided, at what price, and the runner-up."""
    axes = " x ".join(f"{name}={size}" for name, size in plan.get("mesh", {}).items()) or "one rank"
    lines = [f"{plan.get('model', '')}: {plan.get('plan', 'one rank')}", f"  mesh       {axes}"]
    if plan.get("price_ps") is not None:
        lines.append(
            f"  price      {_micro(plan['price_ps'])} of computation and communication, at most {plan.get('optimality_gap', 0):.2%} above the best (proven bound {_micro(plan['proven_bound_ps'])})"
        )
    second = plan.get("second_best")
    if second:
        other = second["plan"] if second["plan"] != plan["plan"] else "other places"
        lines.append(f"  second     {other} at {_micro(second['price_ps'])}")
    lines += [f"  size       {size}" for size in map(_size, plan.get("sizes", []))]
    lines += training_lines(plan["training"]) if plan.get("training") else []
    arguments = [f"  {name:40} {text.removeprefix('#dmlc.sharding')}" for name, text in plan.get("shardings", {}).items()]
    return [*lines, "", "arguments", *arguments]


def training_lines(facts: dict[str, Any]) -> list[str]:
    """What a step trains with, what a rank holds for it and what it sends."""
    asked, held = facts["request"], facts["bytes_a_rank"]
    batch = f"{facts['batch']} samples a step in {facts['microbatches']} microbatch(es)"
    sent = ", ".join(f"{t['count']} {kind} of {t['bytes']:,} bytes in all" for kind, t in facts["collectives_a_step"].items()) or "nothing"
    lines = [
        f"  training   loss {asked.get('loss') or 'of the model'}, {asked.get('optimizer')}, {batch}, {facts['trained']} parameters trained",
        "  a rank     holds " + ", ".join(f"{n:,} bytes of {name.replace('_', ' ')}" for name, n in held.items()),
        f"  a step     sends {sent}; buckets of {', '.join(map(str, facts['buckets'])) or 'one tensor each'}",
    ]
    return lines + [f"  {key:10} {', '.join(facts[key])}" for key in ("frozen", "unused") if facts[key]]


def _size(row: Any) -> str:
    return " ".join(map(str, row.values() if isinstance(row, dict) else row))


def _micro(picoseconds: int) -> str:
    return f"{picoseconds / 1e6:.1f} us"


def pass_lines(folder: Path, passes: list[dict[str, Any]], remarks: list[dict[str, Any]]) -> list[str]:
    """One row a pass: ops before and after, time where it was kept, number of remarks."""
    seconds = _seconds(folder)
    lines = ["pass by pass                     ops before   after   seconds   remarks"]
    for number, row in enumerate(passes, 1):
        said = sum(1 for r in remarks if r["pass"] == row["name"])
        took = f"{seconds[number - 1]:9.3f}" if number <= len(seconds) else "        -"
        mark = "" if row["changed"] else "  (no change)"
        lines.append(f"  {number:2} {row['name']:28} {row['ops_before']:8} {row['ops_after']:7} {took} {said or '':>9}{mark}")
    return lines


def _seconds(folder: Path) -> list[float]:
    path = folder / "ir" / SECONDS
    return json.loads(path.read_text()) if path.is_file() else []


def reason_lines(remarks: list[dict[str, Any]]) -> list[str]:
    lines = ["reasons"] if remarks else []
    for r in remarks:
        which = f" [{r['op']}]" if r.get("op") else ""
        where = f"{r['where']}: " if r.get("where") else ""
        lines.append(f"  {r['pass']}: {where}{r['text']}{which}")
    return lines


# ---------------------------------------------------------------- differences


def diff_lines(folder: Path, wanted: str) -> list[str]:
    """The differences that the runs of one pass made to the text."""
    files = sorted((folder / "ir").glob("*.mlir"))
    if not files:
        raise DmlcError(f"{folder} holds no texts; compile it with --dump-ir")
    found = [(before, after) for before, after in zip(files, files[1:]) if wanted in (after.stem, after.stem[3:], after.stem[:2], after.stem[:2].lstrip("0"))]
    if not found:
        names = list(dict.fromkeys(f.stem[3:] for f in files[1:]))
        raise DmlcError(f"no pass '{wanted}' ran{did_you_mean(wanted, names)}")
    lines = []
    for before, after in found:
        text = difference(before.read_text(encoding="utf-8"), after.read_text(encoding="utf-8"), after.stem)
        lines += text.splitlines() or [f"{after.stem}: no change"]
    return lines
