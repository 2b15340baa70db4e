"""What a deep program takes in a step, from the simulated steps of two that differ by one of its repeated layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from dmlc.ir.attributes import AttrDict
from dmlc.simulate.step import StepReport

KEPT = ("run", "device", "ranks")  # of the longer program


class Irregular(Exception):
    """The two programs differ by more than a layer."""


def extended(fewer: StepReport, more: StepReport, layers: int) -> StepReport:
    """The report of a program with `layers` layers more than `more`, which has one more than `fewer`: every figure goes on as from one to the other.
    What ran when is that of `more`. Raises `Irregular` where they have not the same kinds of collectives and ranks."""
    if set(fewer.traffic) != set(more.traffic) or fewer.ranks != more.ranks or len(fewer.classes) != len(more.classes):
        raise Irregular
    if any(fewer.traffic[kind].count > t.count for kind, t in more.traffic.items()) or fewer.time > more.time:
        raise Irregular
    figures = {f.name: further(getattr(fewer, f.name), getattr(more, f.name), layers) for f in fields(more) if f.name not in (*KEPT, "classes")}
    return replace(more, **figures, classes=tuple(extended(a, b, layers) for a, b in zip(fewer.classes, more.classes)))


def further(fewer: Any, more: Any, layers: int) -> Any:
    """Integers go on in a straight line, entry by entry of dictionaries and data classes; all else is that of `more`."""
    if isinstance(more, int) and isinstance(fewer, int):
        return more + layers * (more - fewer)
    if isinstance(more, Mapping):
        return AttrDict((key, further(fewer.get(key, _nothing(value)), value, layers)) for key, value in more.items())
    if is_dataclass(more) and not isinstance(more, type):
        return replace(more, **{f.name: further(getattr(fewer, f.name), getattr(more, f.name), layers) for f in fields(more)})
    return more


def _nothing(value: Any) -> Any:
    """What an entry that is not there stands for."""
    return 0 if isinstance(value, int) else value
