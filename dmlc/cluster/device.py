"""A kind of accelerator: peak rates, memory, bandwidth, power."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dmlc.ir.attributes import AttrDict

GIGA, TERA = 10**9, 10**12
WIDENED = {"f8E4M3FN": "f16", "f8E5M2": "f16"}  # types that are computed in another one where the device has no units for them


@dataclass(frozen=True)
class Device:
    """One kind of accelerator.

    peak       dtype -> floating-point operations a second of dense matrix products. `f32` means TF32 off, as emitted programs run;
               the rate with TF32 on stands under `tf32`, which no value has as its type
    memory     bytes
    bandwidth  bytes a second to memory
    launch     picoseconds that one more kernel costs
    source     where the figures come from
    kind       "gpu": the host runs ahead and queues kernels; "cpu": the host is the device and runs one op after the other
    units      streaming multiprocessors or compute units that share out a kernel's tiles (0: not known)
    cache      bytes of the last level of cache (0: not known)
    watts      power at full load (0: not known)
    """

    name: str
    peak: AttrDict
    memory: int
    bandwidth: int
    launch: int
    source: str
    kind: str = "gpu"
    units: int = 0
    cache: int = 0
    watts: int = 0

    def rate(self, dtype: str) -> int:
        """Operations a second in `dtype`; a type the sheet does not list runs at the float32 rate, an 8-bit one at that of f16."""
        found = self.peak.get(dtype) or self.peak.get(WIDENED.get(dtype, ""))
        return found or self.peak["f32"]

    def to_attr(self) -> AttrDict:
        known = AttrDict(name=self.name, peak=self.peak, memory=self.memory, bandwidth=self.bandwidth, launch=self.launch, source=self.source)
        more = {key: value for key in ("kind", "units", "cache", "watts") if (value := getattr(self, key)) != getattr(Device, key)}
        return AttrDict({**known, **more})


def slowest(devices: Iterable[Device]) -> Device:
    """The device that is none of them faster than: one of them, where one is worst in everything, else the worst of each figure.

    All ranks of a step wait for the slowest one, whichever op they are at, and a plan has to fit the smallest memory.
    """
    kinds = list(dict.fromkeys(devices))
    if len(kinds) == 1:
        return kinds[0]
    dtypes = dict.fromkeys(d for k in kinds for d in k.peak)
    lowest = {key: min(getattr(k, key) for k in kinds) for key in ("memory", "bandwidth", "units", "cache")}
    highest = {key: max(getattr(k, key) for k in kinds) for key in ("launch", "watts")}
    kind = "cpu" if any(k.kind == "cpu" for k in kinds) else "gpu"
    peak = AttrDict((d, min(k.rate(d) for k in kinds)) for d in dtypes if all(d in k.peak for k in kinds) or d != "tf32")
    worst = Device("", peak, source="the worst of each figure", kind=kind, **lowest, **highest)
    for k in kinds:
        if all(k.rate(d) == rate for d, rate in peak.items()) and (k.memory, k.bandwidth, k.launch) == (worst.memory, worst.bandwidth, worst.launch):
            return k
    return replace(worst, name="slowest of " + ", ".join(k.name for k in kinds))
