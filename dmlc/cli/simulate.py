"""predict a step's time, memory and cost, and what would change them

`dmlc simulate OUT` reads a compiled folder; `dmlc simulate MODEL --devices 8` compiles a model in memory, without kernels and weights.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmlc.cli._train_options import add_options, parse_compilation
from dmlc.cli.arguments import Parser, Usage
from dmlc.cli.compile import add_request
from dmlc.ir.location import DmlcError, Loc

PICO = 10**12

if TYPE_CHECKING:
    from dmlc.cli._simulate_changes import Change
    from dmlc.cli._simulate_program import Subject
    from dmlc.cost import CostModel
    from dmlc.simulate.step import StepReport


def parser() -> Parser:
    p = Parser(prog="dmlc simulate", description="Predict a step of a compiled folder, or of a model compiled in memory: time, throughput, memory, money.")
    p.add_argument("model", metavar="MODEL|OUT", nargs="?", help="a compiled folder, or what dmlc compile takes")
    p.add_argument("--print-cluster", metavar="NAME", help="print a cluster.yaml for --devices devices of this kind, to change and use with --cluster")
    p.add_argument("--json", metavar="FILE", help="write everything that is reported, and more digits of it")
    p.add_argument("--trace", metavar="FILE", help="write what runs when: trace.json, for Perfetto or chrome://tracing")
    p.add_argument(
        "--compare", metavar="PROFILE", nargs="?", const="", help="beside a profile of a run (dmlc run OUT --profile), op by op; default: OUT/profile.json"
    )
    p.add_argument("--whole", action="store_true", help="run a deep model with all its layers through the usual pipeline, not with few of them; slow")
    group = p.add_argument_group("what if (each is compared with the program as it is)")
    group.add_argument("--bandwidth", action="append", default=[], metavar="[LINK=]xF", help="links F times as fast: x2, or one by name or kind, network=x2")
    group.add_argument("--latency", action="append", default=[], metavar="[LINK=]xF", help="latency of links times F, as in x0.5")
    group.add_argument("--compute", action="append", default=[], metavar="xF", help="computation F times as fast")
    group.add_argument("--device", action="append", default=[], metavar="NAME", help="the same program on other devices, as in h200")
    group.add_argument("--no-overlap", action="store_true", help="each collective is waited for where it starts")
    add_request(p)
    add_options(p)
    p.set_defaults(check=False)
    return p


def main(argv: Sequence[str]) -> int:
    p = parser()
    args = parse_compilation(p, argv)
    if args.print_cluster:
        return print_cluster(args)
    if args.model is None:
        p.error("no MODEL or OUT given")
    for path in filter(None, (args.json, args.trace)):
        if not Path(path).absolute().parent.is_dir():
            p.error(f"there is no folder {Path(path).absolute().parent} to write {Path(path).name} in")
    changes = changes_asked(args)
    try:
        return run(args, changes)
    except DmlcError as e:  # what is wrong with the model as a whole has the model for its place
        raise e if e.loc.known else DmlcError(e.message, Loc(args.model), e.notes, e.source_line, e.span) from e


def print_cluster(args: argparse.Namespace) -> int:
    from dmlc.cluster.writer import cluster_text

    if args.devices is not None and args.devices < 1:
        raise Usage(f"dmlc simulate: --devices must be at least 1, not {args.devices}\n")
    try:
        print(cluster_text(args.print_cluster, args.devices or 0), end="")
    except DmlcError as e:
        raise Usage(f"dmlc simulate: {e.message}\n") from None
    return 0


def changes_asked(args: argparse.Namespace) -> list[Change]:
    from dmlc.cli._simulate_changes import changes_of

    try:
        return changes_of(args)
    except DmlcError as e:
        raise Usage(f"dmlc simulate: {e.message}\n") from None


def run(args: argparse.Namespace, changes: list[Change]) -> int:
    from dmlc.cli._simulate_program import subject_of
    from dmlc.cli._simulate_text import report_lines
    from dmlc.cost import CostModel

    subject = subject_of(args)
    profile = profile_of(args, subject) if args.compare is not None else None
    cost = CostModel.of(subject.module)
    facts, report = simulated(subject, cost)
    facts["what_if"] = [what_if(subject, cost, facts, change) for change in changes]
    lines = report_lines(facts, subject.note)
    if profile is not None:
        facts["compared"], lines = compared(profile, report)
    write_files(args, facts, report)  # first, since who reads the lines may stop, as `| head` does
    print("\n".join(lines))
    return 0


def profile_of(args: argparse.Namespace, subject: Subject) -> dict[str, Any]:
    """The profile to compare with. The program is then priced on what that ran on."""
    from dmlc.cli._profiles import price_as_it_ran, read_profile

    folder = Path(args.model)
    if not folder.is_dir():
        raise DmlcError("--compare is for a compiled folder: a profile is of its program")
    profile = read_profile(Path(args.compare) if args.compare else folder / "profile.json", folder)
    if not args.cluster and (note := price_as_it_ran(subject.module, profile, bool(args.measured))):
        print(note)
    return profile


def compared(profile: dict[str, Any], report: StepReport) -> tuple[dict[str, Any], list[str]]:
    """The prediction beside the profile of a run, as data and in words."""
    from dmlc.simulate.compare import compare, comparison_facts, comparison_lines

    found = compare(report, profile)
    return comparison_facts(found), comparison_lines(found)


def write_files(args: argparse.Namespace, facts: dict[str, Any], report: StepReport) -> None:
    """The files asked for."""
    if args.json:
        Path(args.json).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if args.trace:
        from dmlc.simulate import trace
        from dmlc.simulate.accuracy import ERROR_PERCENT

        trace.write(report, args.trace, ERROR_PERCENT)


def simulated(subject: Subject, cost: CostModel) -> tuple[dict[str, Any], StepReport]:
    from dmlc.cli._simulate_facts import facts_of
    from dmlc.simulate.step import simulate_step

    report = simulate_step(subject.module, cost)
    if subject.fewer is None:
        return facts_of(subject.name, subject.plan, subject.module, cost.cluster, report), report
    return deep_facts(subject, cost, report)


def deep_facts(subject: Subject, cost: CostModel, report: StepReport) -> tuple[dict[str, Any], StepReport]:
    """Of a deep model, from two programs with few of its layers; what ran when, and the costliest ops, are those of the longer one."""
    from dmlc.cli._simulate_facts import facts_of, utilisation_of
    from dmlc.simulate.depth import extended, further
    from dmlc.simulate.step import simulate_step

    assert subject.fewer is not None
    report = extended(simulate_step(subject.fewer, cost), report, subject.left_out)
    facts = facts_of(subject.name, subject.plan, subject.module, cost.cluster, report)
    few, more = (utilisation_of(m, cost.cluster, 1.0) for m in (subject.fewer, subject.module))
    facts["utilisation"]["hardware_flops"] = further(few["hardware_flops"], more["hardware_flops"], subject.left_out)
    facts["utilisation"]["hfu"] = (more["hfu"] + subject.left_out * (more["hfu"] - few["hfu"])) * PICO / report.time
    return facts, report


def what_if(subject: Subject, cost: CostModel, before: dict[str, Any], change: Change) -> dict[str, Any]:
    from dataclasses import replace

    from dmlc.cli._simulate_changes import outcome

    module, changed = change.apply(subject.module, cost)
    fewer = change.apply(subject.fewer, cost)[0] if subject.fewer is not None else None
    after, _ = simulated(replace(subject, module=module, fewer=fewer), changed)
    unmeasured = " (by formulas: the measured times are of the device as it is)" if cost.measured is not None and changed.measured is None else ""
    return {"change": change.text + unmeasured, "before": outcome(before), "after": outcome(after)}
