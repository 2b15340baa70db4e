"""Accelerators: peak rates, memory, bandwidth.

Rates are dense (vendor sheets since Hopper print 2:4-sparse ones, twice as high). Sources: NVIDIA A100, H100, H200 and B200 data sheets as
collected in stas00/ml-engineering (compute/accelerator) and torch/_inductor/analysis/device_info.py; the `cpu` row is two cores
of a current server with AVX-512, shared by the ranks of a test run.
"""

from __future__ import annotations

from dataclasses import dataclass

from dmlc.ir.attributes import AttrDict
from dmlc.ir.location import DmlcError
from dmlc.ir.suggest import did_you_mean

GIGA, TERA = 10**9, 10**12


@dataclass(frozen=True)
class Device:
    """One kind of accelerator.

    peak       dtype -> floating-point operations a second of dense matrix products (`f32` means TF32 off)
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
        """Operations a second in `dtype`; a type the sheet does not list runs at the float32 rate."""
        return self.peak.get(dtype, self.peak["f32"])

    def to_attr(self) -> AttrDict:
        known = AttrDict(name=self.name, peak=self.peak, memory=self.memory, bandwidth=self.bandwidth, launch=self.launch, source=self.source)
        more = {key: value for key in ("kind", "units", "cache", "watts") if (value := getattr(self, key)) != getattr(Device, key)}
        return AttrDict({**known, **more})


def _gpu(name: str, f64: int, f32: int, half: int, fp8: int, memory: int, bandwidth: int) -> Device:
    """Rates in giga-operations a second, memory in gigabytes, bandwidth in gigabytes a second."""
    rates = {"f64": f64, "f32": f32, "f16": half, "bf16": half, "f8E4M3FN": fp8, "f8E5M2": fp8}
    peak = AttrDict({dtype: rate * GIGA for dtype, rate in rates.items()})
    return Device(name, peak, memory * GIGA, bandwidth * GIGA, 5_000_000, "data sheet")


DEVICES: dict[str, Device] = {
    d.name: d
    for d in (
        _gpu("h100", 67_000, 67_000, 989_000, 1_979_000, memory=80, bandwidth=3350),
        _gpu("h200", 67_000, 67_000, 989_000, 1_979_000, memory=141, bandwidth=4800),
        _gpu("b200", 40_000, 80_000, 2_250_000, 4_500_000, memory=192, bandwidth=8000),
        _gpu("a100", 19_500, 19_500, 312_000, 312_000, memory=80, bandwidth=2039),
        Device("cpu", AttrDict(f64=20 * GIGA, f32=40 * GIGA, bf16=40 * GIGA), 8 * GIGA, 10 * GIGA, 5_000_000, "estimate", kind="cpu"),
    )
}


def device_named(name: str) -> Device:
    """The catalogue's entry. Raises `DmlcError` with the nearest known name."""
    if name not in DEVICES:
        raise DmlcError(f"there is no device '{name}'{did_you_mean(name, DEVICES) or '.'} Known: {', '.join(DEVICES)}")
    return DEVICES[name]
