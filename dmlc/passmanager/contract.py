"""Conditions that passes require and ensure. Each is read off the module, so an edited dump is judged by what it says.

A predicate returns the first offending op, or None when the condition holds.
"""

from __future__ import annotations

from collections.abc import Callable

from dmlc.ir.core import Module, Op
from dmlc.ir.location import UNKNOWN, DmlcError
from dmlc.ir.suggest import did_you_mean
from dmlc.passmanager.base import Pass


def _first(module: Module, wrong: Callable[[Op], bool]) -> Op | None:
    return next((op for op in module.walk() if wrong(op)), None)


def _communicates(op: Op) -> bool:
    return op.dialect == "comm" and op.name != "comm.axis_index"


def _started_before(op: Op) -> bool:
    """Whether a start's future is never waited for."""
    return op.name.endswith("_start") and op.unused


CONDITIONS: dict[str, tuple[str, Callable[[Module], Op | None]]] = {
    "verified": ("the verifier accepts the module", lambda module: None),
    "global": ("the program is still the global one, without communication", lambda module: _first(module, _communicates)),
    "partitioned": ("the program is a rank's, without resharding left to do", lambda module: _first(module, lambda op: op.name == "dmlc.reshard")),
    "scheduled": ("every started collective is waited for", lambda module: _first(module, _started_before)),
    "outlined": ("every fused region is a kernel call", lambda module: _first(module, lambda op: op.name == "kernel.fused")),
}


def check_conditions(pass_: Pass, module: Module, when: str) -> None:
    """Raise when a condition of `pass_` does not hold; `when` is "requires" or "ensures"."""
    for name in getattr(pass_, when):
        if name not in CONDITIONS:
            raise DmlcError(f"pass '{pass_.name}' names the unknown condition '{name}'{did_you_mean(name, CONDITIONS)}")
        meaning, predicate = CONDITIONS[name]
        offender = predicate(module)
        if offender is not None:
            verb = "needs" if when == "requires" else "promised"
            raise DmlcError(f"pass '{pass_.name}' {verb} '{name}' ({meaning}), but there is '{offender.name}'", offender.loc if offender.loc.known else UNKNOWN)
