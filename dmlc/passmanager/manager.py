"""Runs a pipeline: checks contracts, verifies, times, dumps, shows differences, and compares the program before and after."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError, Remark
from dmlc.ir.open_sizes import OpenSizes, in_force, pricing
from dmlc.ir.printer import print_module
from dmlc.ir.verifier import verify
from dmlc.passmanager.base import Pass
from dmlc.passmanager.context import Context
from dmlc.passmanager.contract import check_conditions

SECONDS = "seconds.json"


@dataclass
class Report:
    """What one pass did. `check` says how the program after it compares with the one before; `diff` is a unified text difference."""

    name: str
    changed: bool = False
    seconds: float = 0.0
    ops_before: int = 0
    ops_after: int = 0
    remarks: list[Remark] = field(default_factory=list)
    check: str = ""
    diff: str = ""


@dataclass(frozen=True)
class PassManager:
    """Runs `passes` over a module, in place.

    verify   run the verifier after each pass
    check    interpret the module before and after each pass and compare (`dmlc.passmanager.check`)
    dump     folder for numbered text files `NN-<pass>.mlir` (00 is the input), and `seconds.json` with the time each pass took
    diff     keep the text difference that each pass makes
    progress called with each pass before it runs
    """

    passes: Sequence[Pass]
    verify: bool = True
    check: bool = False
    dump: Path | None = None
    diff: bool = False
    progress: Callable[[Pass], None] = lambda pass_: None

    def run(self, module: Module, context: Context) -> list[Report]:
        """Raises `DmlcError`, with a note naming the pass at fault and those before it."""
        reports: list[Report] = []
        self._dump(module, 0, "input")
        for number, pass_ in enumerate(self.passes, 1):
            self.progress(pass_)
            try:
                reports.append(self._step(pass_, module, context, reports[-1].ops_after if reports else _count(module)))
            except DmlcError as e:
                raise _in_pass(e, pass_, reports) from e
            finally:
                context.pass_name = ""
            self._dump(module, number, pass_.name)
        if self.dump is not None:
            (self.dump / SECONDS).write_text(json.dumps([round(r.seconds, 6) for r in reports]) + "\n")
        return reports

    def _step(self, pass_: Pass, module: Module, context: Context, ops: int) -> Report:
        report = Report(pass_.name, ops_before=ops)
        check_conditions(pass_, module, "requires")
        text = print_module(module) if self.diff or self.check else ""
        before = module.clone() if self.check else None
        known = len(context.remarks)
        context.pass_name = pass_.name
        start = time.perf_counter()
        with in_force(OpenSizes.of(module)), pricing() if pass_.decides else nullcontext():
            report.changed = pass_.run(module, context)
        report.seconds = time.perf_counter() - start
        if not isinstance(report.changed, bool):
            raise DmlcError(f"run returned {report.changed!r}; it returns True if it changed the program, else False")
        report.ops_after, report.remarks = _count(module), context.remarks[known:]
        if self.verify:
            verify(module)
        check_conditions(pass_, module, "ensures")
        if self.diff:
            report.diff = difference(text, print_module(module), pass_.name)
        if before is not None:
            report.check = self._compare(before, text, pass_, report, module, context)
        return report

    def _compare(self, before: Module, text: str, pass_: Pass, report: Report, module: Module, context: Context) -> str:
        """The check's line; empty where nothing changed. A pass cannot escape the check by saying so."""
        if not report.changed:
            if print_module(module) != text:
                raise DmlcError("run returned False, but the program changed")
            return ""
        from dmlc.passmanager.check import compare

        return compare(before, module, pass_.numerics, context.weights, only_common=pass_.results == "changed")

    def _dump(self, module: Module, number: int, name: str) -> None:
        if self.dump is not None:
            self.dump.mkdir(parents=True, exist_ok=True)
            (self.dump / f"{number:02}-{name}.mlir").write_text(print_module(module), encoding="utf-8")


def _in_pass(error: DmlcError, pass_: Pass, done: Sequence[Report]) -> DmlcError:
    after = f", after {', '.join(r.name for r in done)}" if done else ""
    notes = (*error.notes, f"in pass '{pass_.name}'{after}")
    return error.told(error.message, error.loc, notes)


def _count(module: Module) -> int:
    """Ops of all functions, terminators left out."""
    return sum(sum(1 for _ in f.ops()) - 1 for f in module.functions)


def difference(before: str, after: str, name: str) -> str:
    """A unified difference of two texts, without a trailing newline; empty when they are equal."""
    import difflib

    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"before {name}", f"after {name}", lineterm="", n=1)
    return "\n".join(lines)
