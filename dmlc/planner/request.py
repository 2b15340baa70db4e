"""What the user asked of the plan: the module attribute `dmlc.request` and the text `dp=2,tp=4`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dmlc.ir.attributes import Axes
from dmlc.ir.core import Module
from dmlc.ir.location import UNKNOWN, DmlcError, Loc
from dmlc.ir.sharding import Mesh

KINDS = {"dp": "data", "tp": "model"}  # request key -> mesh axis
LATER = {"pp": "pipeline", "ep": "expert", "zero": "ZeRO", "cp": "context"}
SLACK = 0.10


@dataclass(frozen=True)
class Request:
    """`degrees` is None for an automatic plan, else {dp: 2, tp: 4}. `memory` in bytes a rank (0: the device's)."""

    devices: int = 1
    degrees: tuple[tuple[str, int], ...] | None = None
    memory: int = 0
    slack: float = SLACK

    @classmethod
    def of(cls, module: Module) -> Request:
        attr = module.attrs.get("dmlc.request", {})
        devices = attr.get("devices", 1)
        plan = attr.get("plan", "auto")
        degrees = None if plan == "auto" else parse_plan(plan, devices, module.op.loc)
        return cls(devices, degrees, attr.get("memory", 0), attr.get("slack", SLACK))

    def degree(self, kind: str) -> int:
        return dict(self.degrees or ()).get(kind, 1)


def parse_plan(text: str, devices: int, loc: Loc = UNKNOWN) -> tuple[tuple[str, int], ...]:
    """`dp=2,tp=4` for 8 devices; the product must be the number of devices."""
    degrees: dict[str, int] = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        kind, _, number = part.partition("=")
        if kind in LATER:
            raise DmlcError(f"{LATER[kind]} parallelism ({kind}) is not available yet; a plan takes dp and tp", loc)
        if kind not in KINDS or not number.isdigit() or int(number) < 1:
            raise DmlcError(f"'{part}' is not part of a plan; write for example dp=2,tp=4 or auto", loc)
        if kind in degrees:
            raise DmlcError(f"the plan {text} gives {kind} twice")
        degrees[kind] = int(number)
    if not degrees:
        raise DmlcError("the plan is empty; write for example dp=2,tp=4 or auto", loc)
    product = math.prod(degrees.values())
    if product != devices:
        fits = [f"dp={d},tp={devices // d}" for d in range(1, devices + 1) if devices % d == 0]
        raise DmlcError(f"the plan {text} is for {product} devices, not {devices}; what fits: {', '.join(fits)}, or --devices {product}", loc)
    return tuple(sorted(degrees.items()))


def mesh_for(dp: int, tp: int) -> Mesh:
    """The mesh of a plan: `data` outside, `model` inside (neighbouring ranks); axes of size 1 are left out."""
    return Mesh(Axes(tuple((KINDS[k], n) for k, n in (("dp", dp), ("tp", tp)) if n > 1)))


def factorisations(devices: int) -> list[tuple[int, int]]:
    """All (dp, tp) with dp * tp = devices, most data parallel first."""
    return [(d, devices // d) for d in range(devices, 0, -1) if devices % d == 0]
