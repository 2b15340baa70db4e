"""Measured all-reduce times by fabric and group size, as a few knots of a piecewise linear curve.

Knots are (KiB, tenths of a microsecond), fitted so that the curve keeps to the whole table, and rising: a measured table is not always
(8 V100s take 313 us for 13 MiB and 256 us for 14 MiB, where NCCL changes its algorithm), a price must be.

Sources. nvlink-v100 and nvlink-a100: fitted to the nccl-tests tables of 1 MiB to 1 GiB that vTrain published (Bang et al., MICRO 2024,
github.com/VIA-Research/vTrain). nvlink-h200 (one node of 8), ib-b200 (4 nodes of 8) and the single points of nvlink-b200 and
xgmi-mi300x: bus bandwidths of nccl-tests and rccl-tests in stas00/ml-engineering (network/benchmarks), as times.
"""

from __future__ import annotations

from functools import cache

from dmlc.cost.curve import Curve

KIB, TENTH = 1 << 10, 100_000  # bytes, picoseconds
MIB = 1 << 10  # in KiB

KNOTS: dict[str, dict[int, tuple[tuple[int, int], ...]]] = {
    "nvlink-v100": {
        2: ((MIB, 701), (2 * MIB, 1160), (4 * MIB, 2086), (896 * MIB, 416_500), (1024 * MIB, 476_300)),
        4: ((MIB, 673), (3 * MIB, 1231), (5 * MIB, 1316), (8 * MIB, 1778), (384 * MIB, 70_800), (1024 * MIB, 189_000)),
        8: ((MIB, 799), (5 * MIB, 1702), (7 * MIB, 2013), (10 * MIB, 2660), (16 * MIB, 2727), (24 * MIB, 3684), (128 * MIB, 17_740), (1024 * MIB, 139_800)),
    },
    "nvlink-a100": {
        2: ((MIB, 442), (2 * MIB, 503), (32 * MIB, 2294), (224 * MIB, 12_930), (512 * MIB, 28_320), (768 * MIB, 41_630), (1024 * MIB, 54_600)),
        4: ((MIB, 514), (2 * MIB, 557), (7 * MIB, 1079), (14 * MIB, 1698), (20 * MIB, 1992), (96 * MIB, 7818), (384 * MIB, 28_390), (1024 * MIB, 72_720)),
        8: ((MIB, 928), (3 * MIB, 928), (5 * MIB, 969), (10 * MIB, 1581), (14 * MIB, 1980), (28 * MIB, 3328), (40 * MIB, 3952), (224 * MIB, 19_450), (1024 * MIB, 81_960)),
    },
    "nvlink-h200": {
        8: ((32, 182), (MIB, 246), (4 * MIB, 506), (16 * MIB, 1147), (64 * MIB, 3183), (256 * MIB, 10_628), (1024 * MIB, 40_323), (16384 * MIB, 623_750)),
    },
    "nvlink-b200": {8: ((16384 * MIB, 358_340),)},
    "ib-b200": {
        32: ((MIB, 1625), (16 * MIB, 4527), (64 * MIB, 6567), (256 * MIB, 18_378), (1024 * MIB, 56_841), (16384 * MIB, 882_918)),
    },
    "xgmi-mi300x": {2: ((16384 * MIB, 3_601_650),), 8: ((16384 * MIB, 960_536),)},
}  # fmt: skip

KNOTS["nvlink-h100"] = KNOTS["nvlink-h200"]  # the same links and switch

# Bytes a second of the link (one direction, one rank) that a table was measured on: a link of another bandwidth scales the part that grows with bytes.
NOMINAL = {
    "nvlink-v100": 136 * 10**9, "nvlink-a100": 230 * 10**9, "nvlink-h100": 360 * 10**9, "nvlink-h200": 360 * 10**9,
    "nvlink-b200": 720 * 10**9, "ib-b200": 45 * 10**9, "xgmi-mi300x": 313 * 10**9,
}  # fmt: skip
PER_NODE = {"ib-b200": 8}  # ranks of a node in the tables of fabrics between nodes


@cache
def table(fabric: str, ranks: int) -> Curve | None:
    """All-reduce picoseconds by bytes as measured; None when this size of group was not."""
    knots = KNOTS.get(fabric, {}).get(ranks)
    return None if knots is None else Curve((size * KIB, time * TENTH) for size, time in knots)
