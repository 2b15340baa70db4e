"""What the user asked of the plan: the module attribute `dmlc.request` and the text `dp=2,tp=4`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dmlc.ir.attributes import Axes
from dmlc.ir.core import Module
from dmlc.ir.location import UNKNOWN, DmlcError, Loc
from dmlc.ir.sharding import Mesh

KINDS = {"dp": "data", "tp": "model"}  # request key -> mesh axis
LATER = {"pp": "pipeline", "ep": "expert", "cp": "context"}
ZERO = (0, 1, 2, 3)
SLACK = 0.10


@dataclass(frozen=True)
class Request:
    """`degrees` is None for an automatic plan, else {dp: 2, tp: 4}. `memory` in bytes a rank (0: the device's).

    `zero` is the level of ZeRO (None: the plan's choice), `microbatches` their number in a training step (0: no training step), `recompute`
    whether values of its forward pass may be made again instead of kept.
    """

    devices: int = 1
    degrees: tuple[tuple[str, int], ...] | None = None
    memory: int = 0
    slack: float = SLACK
    zero: int | None = None
    microbatches: int = 0
    recompute: bool = False

    @classmethod
    def of(cls, module: Module) -> Request:
        attr = module.attrs.get("dmlc.request", {})
        devices = attr.get("devices", 1)
        plan = attr.get("plan", "auto")
        degrees = None if plan == "auto" else parse_plan(plan, devices, module.op.loc)
        zero = None if plan == "auto" else zero_of(plan)
        steps = attr.get("microbatches", 1) if module.attrs.get("dmlc.mode") in ("train", "eval") else 0
        recompute = module.attrs.get("dmlc.mode") == "train" and module.attrs.get("dmlc.train", {}).get("recompute", "none") != "none"
        return cls(devices, degrees, attr.get("memory", 0), attr.get("slack", SLACK), zero, steps, recompute)

    def degree(self, kind: str) -> int:
        return dict(self.degrees or ()).get(kind, 1)


def parse_plan(text: str, devices: int, loc: Loc = UNKNOWN) -> tuple[tuple[str, int], ...]:
    """`dp=2,tp=4` for 8 devices; the product must be the number of devices. `zero=2` is no factor of it."""
    degrees: dict[str, int] = {}
    zero_of(text, loc)
    for part in filter(None, text.replace(" ", "").split(",")):
        kind, _, number = part.partition("=")
        if kind == "zero":
            continue
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


def zero_of(text: str, loc: Loc = UNKNOWN) -> int:
    """The level of ZeRO in a plan's text, 0 when it says nothing."""
    levels = [part.partition("=")[2] for part in text.replace(" ", "").split(",") if part.partition("=")[0] == "zero"]
    if len(levels) > 1:
        raise DmlcError(f"the plan {text} gives zero twice", loc)
    if levels and (not levels[0].isdigit() or int(levels[0]) not in ZERO):
        raise DmlcError(f"'zero={levels[0]}' is no level of ZeRO; there are 0, 1 (optimizer state), 2 (and gradients) and 3 (and parameters)", loc)
    return int(levels[0]) if levels else 0


def mesh_for(dp: int, tp: int, microbatches: int = 0) -> Mesh:
    """The mesh of a plan: `data` outside, `model` inside (neighbouring ranks); axes of size 1 are left out. A training step has the
    sequential axis `micro` before them, whatever its size: it is what marks the batch."""
    axes = tuple((KINDS[k], n) for k, n in (("dp", dp), ("tp", tp)) if n > 1)
    return Mesh(Axes((("micro", microbatches), *axes), ("micro",)) if microbatches else Axes(axes))


def factorisations(devices: int) -> list[tuple[int, int]]:
    """All (dp, tp) with dp * tp = devices, most data parallel first."""
    return [(d, devices // d) for d in range(devices, 0, -1) if devices % d == 0]
