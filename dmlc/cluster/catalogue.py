"""The built-in devices and what usually links them.

Rates are dense: sheets since Ampere also print 2:4-sparse ones, twice as high, and those since Hopper print little else. Memory is in
units of 10^9 bytes. A kernel's launch latency is taken as 5 us on every GPU. `cpu` is two cores of a current server with AVX-512, shared
by the ranks of a test run.
"""

from __future__ import annotations

from dmlc.cluster.device import GIGA, Device
from dmlc.cluster.link import Link
from dmlc.ir.attributes import AttrDict
from dmlc.ir.location import DmlcError
from dmlc.ir.suggest import did_you_mean

LAUNCH = 5_000_000
MICROSECOND = 1_000_000
MEGA = 2**20

# name: giga-operations a second of f64, f32, tf32, f16, bf16, fp8 (0: no units for it); GB of memory and GB/s to it; units, MiB of cache, watts; source
GPUS: dict[str, tuple] = {
    "v100": (7_800, 15_700, 0, 125_000, 0, 0, 32, 900, 80, 6, 300, "NVIDIA V100 data sheet (SXM2, 32 GB)"),
    "v100-16": (7_800, 15_700, 0, 125_000, 0, 0, 16, 900, 80, 6, 300, "NVIDIA V100 data sheet (SXM2, 16 GB)"),
    "a100": (19_500, 19_500, 156_000, 312_000, 312_000, 0, 80, 2039, 108, 40, 400, "NVIDIA A100 data sheet (SXM4, 80 GB)"),
    "a100-40": (19_500, 19_500, 156_000, 312_000, 312_000, 0, 40, 1555, 108, 40, 400, "NVIDIA A100 data sheet (SXM4, 40 GB)"),
    "a100-pcie": (19_500, 19_500, 156_000, 312_000, 312_000, 0, 80, 1935, 108, 40, 300, "NVIDIA A100 data sheet (PCIe, 80 GB)"),
    "a100-pcie-40": (19_500, 19_500, 156_000, 312_000, 312_000, 0, 40, 1555, 108, 40, 250, "NVIDIA A100 data sheet (PCIe, 40 GB)"),
    "h100": (67_000, 67_000, 494_500, 989_000, 989_000, 1_979_000, 80, 3350, 132, 50, 700, "NVIDIA H100 data sheet (SXM5), sparse rates halved"),
    "h100-pcie": (51_000, 51_000, 378_000, 756_000, 756_000, 1_513_000, 80, 2000, 114, 50, 350, "NVIDIA H100 data sheet (PCIe), sparse rates halved"),
    "h200": (67_000, 67_000, 494_500, 989_000, 989_000, 1_979_000, 141, 4800, 132, 50, 700, "NVIDIA H200 data sheet (SXM), sparse rates halved"),
    "b200": (40_000, 80_000, 1_125_000, 2_250_000, 2_250_000, 4_500_000, 192, 8000, 148, 126, 1000, "NVIDIA B200 data sheet (SXM), sparse rates halved"),
    "mi300x": (163_400, 163_400, 653_700, 1_307_000, 1_307_000, 2_615_000, 192, 5300, 304, 256, 750, "AMD Instinct MI300X data sheet"),
    "t4": (253, 8_100, 0, 65_000, 0, 0, 16, 320, 40, 4, 70, "NVIDIA T4 data sheet; f64 is 1/32 of f32"),
    "l4": (473, 30_300, 60_500, 121_000, 121_000, 242_000, 24, 300, 58, 48, 72, "NVIDIA L4 data sheet, sparse rates halved; f64 is 1/64 of f32"),
    "l40s": (1_430, 91_600, 183_000, 362_000, 362_000, 733_000, 48, 864, 142, 96, 350, "NVIDIA L40S data sheet; f64 is 1/64 of f32"),
    "a10": (488, 31_200, 62_500, 125_000, 125_000, 0, 24, 600, 72, 6, 150, "NVIDIA A10 data sheet; f64 is 1/64 of f32"),
    "rtx4090": (1_290, 82_600, 82_600, 165_200, 165_200, 330_300, 24, 1008, 128, 72, 450, "NVIDIA Ada architecture paper (sums in f32); f64 is 1/64 of f32"),
}  # fmt: skip


def _gpu(
    name: str, f64: int, f32: int, tf32: int, f16: int, bf16: int, fp8: int, memory: int, bandwidth: int, units: int, cache: int, watts: int, source: str
) -> Device:
    rates = {"f64": f64, "f32": f32, "tf32": tf32, "f16": f16, "bf16": bf16, "f8E4M3FN": fp8, "f8E5M2": fp8}
    peak = AttrDict({dtype: rate * GIGA for dtype, rate in rates.items() if rate})
    return Device(name, peak, memory * GIGA, bandwidth * GIGA, LAUNCH, source, units=units, cache=cache * MEGA, watts=watts)


CPU = Device("cpu", AttrDict(f64=20 * GIGA, f32=40 * GIGA, bf16=40 * GIGA), 8 * GIGA, 10 * GIGA, LAUNCH, "estimate", kind="cpu", units=2, watts=30)
DEVICES: dict[str, Device] = {**{name: _gpu(name, *row) for name, row in GPUS.items()}, "cpu": CPU}


def device_named(name: str) -> Device:
    """The catalogue's entry. Raises `DmlcError` with the nearest known name."""
    if name not in DEVICES:
        raise DmlcError(f"there is no device '{name}'{did_you_mean(name, DEVICES) or '.'} Known: {', '.join(DEVICES)}")
    return DEVICES[name]


# What a driver calls a device, most special first; then the memory (GB) below which it is the smaller edition.
DRIVER_NAMES = (
    ("h200", "h200", 0), ("h100 pcie", "h100-pcie", 0), ("h100", "h100", 0), ("b200", "b200", 0), ("a100-pcie", "a100-pcie", 60), ("a100 80gb pcie", "a100-pcie", 0),
    ("a100", "a100", 60), ("v100", "v100", 24), ("mi300x", "mi300x", 0), ("l40s", "l40s", 0), ("l4", "l4", 0), ("a10", "a10", 0), ("rtx 4090", "rtx4090", 0), ("t4", "t4", 0),
)  # fmt: skip
SMALLER = {"a100": "a100-40", "a100-pcie": "a100-pcie-40", "v100": "v100-16"}


def device_called(driver_name: str, memory: int = 0) -> str | None:
    """The catalogue's name of a GPU that its driver calls `driver_name` (as in "NVIDIA A100-SXM4-80GB") and that has `memory` bytes; None for
    one that the catalogue does not know."""
    words = driver_name.lower()
    for text, name, least in DRIVER_NAMES:
        at = words.find(text)
        if at >= 0 and not words[at + len(text) : at + len(text) + 1].isalnum():  # an A10 is no A100, an L4 no L40
            return SMALLER[name] if 0 < memory < least * GIGA else name
    return None


# ---------------------------------------------------------------- links


def _direct(bandwidth: int, fabric: str, alpha: int) -> Link:
    return Link("nvlink" if fabric.startswith("nvlink") else "xgmi", 8, alpha * MICROSECOND, bandwidth * GIGA, "as collectives reach it", fabric, kind="nvlink")


def _network(bandwidth: int, alpha: int, fabric: str = "", shared: int = 1) -> Link:
    return Link("network", 0, alpha * MICROSECOND, bandwidth * GIGA, fabric=fabric, shared=shared)


def _cards(bandwidth: int, network: int, span: int = 8, source: str = "three quarters of the slot's rate") -> tuple[Link, ...]:
    """PCIe cards: no links of their own, and one network adapter for all of a host."""
    return Link("pcie", span, 6 * MICROSECOND, bandwidth * GIGA, source, kind="pcie"), _network(network, 14, shared=span)


# Bandwidths are of one direction. Direct links: what a ring of 8 devices reaches (for MI300X: measured all-reduces of 8). Network: an adapter of 400 Gb/s
# (h100 and later), 200 Gb/s (a100) or 100 Gb/s a device, 90 % of it. Alphas: NCCL's latencies of a ring's hop (tuning.cc); the cpu's are Gloo's over loopback.
DEFAULT_LINKS: dict[str, tuple[Link, ...]] = {
    "v100": (_direct(136, "nvlink-v100", 4), _network(11, 14)),
    "v100-16": (_direct(136, "nvlink-v100", 4), _network(11, 14)),
    "a100": (_direct(230, "nvlink-a100", 3), _network(22, 10)),
    "a100-40": (_direct(230, "nvlink-a100", 3), _network(22, 10)),
    "a100-pcie": _cards(24, 22),
    "a100-pcie-40": _cards(24, 22),
    "h100": (_direct(360, "nvlink-h100", 2), _network(45, 8)),
    "h100-pcie": _cards(47, 45),
    "h200": (_direct(360, "nvlink-h200", 2), _network(45, 8)),
    "b200": (_direct(720, "nvlink-b200", 2), _network(45, 8, "ib-b200")),
    "mi300x": (_direct(313, "xgmi-mi300x", 3), _network(45, 8)),
    "t4": _cards(12, 11, 4),
    "l4": _cards(24, 11),
    "l40s": _cards(24, 22),
    "a10": _cards(24, 11, 4),
    "rtx4090": _cards(12, 11, source="half of that: a card has no access to another's memory, all goes through the host's"),
    "cpu": (Link("loopback", 0, 60 * MICROSECOND, GIGA, "estimate", kind="memory", backend="gloo"),),
}
