"""Prices beside published measurements: python tools/validate_costs.py DATA_DIR

DATA_DIR holds what was published: vtrain/*_LUT.csv (nccl-tests of all-reduce on A100 and V100), vtrain/ground_truth_*.csv (steps of GPT models trained
with Megatron-DeepSpeed on A100), llm_foundry/*.csv (MPT with FSDP), published/*.csv. What is not there is left out. Prints the mean, the median, the 90th
percentile and the largest error, the bias (mean of predicted / measured - 1) and Spearman's correlation of ranks.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dmlc.cluster import Cluster
from dmlc.cost import CostModel
from dmlc.ir.sharding import Mesh
from dmlc.tools.published_steps import report_steps

MIB = 1 << 20


@dataclass(frozen=True)
class Errors:
    """Of (predicted, measured) pairs, relative to the measured."""

    count: int
    mean: float
    median: float
    p90: float
    worst: float
    bias: float
    spearman: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> Errors:
        pairs = list(pairs)
        signed = [p / m - 1 for p, m in pairs]
        sizes = sorted(map(abs, signed))
        n = len(sizes)
        return cls(n, sum(sizes) / n, sizes[n // 2], sizes[min(n * 9 // 10, n - 1)], sizes[-1], sum(signed) / n, spearman(pairs))

    def __str__(self) -> str:
        percents = (self.mean, self.median, self.p90, self.worst, self.bias)
        return f"{self.count:5d}  " + "  ".join(f"{100 * x:7.2f}%" for x in percents) + f"  {self.spearman:7.3f}"


HEAD = f"{'':46} rows      mean    median       p90     worst      bias  Spearman"


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Correlation of the ranks of both sides; 1 for fewer than two pairs."""
    sides = [_ranks([pair[side] for pair in pairs]) for side in (0, 1)]
    middle = (len(pairs) - 1) / 2
    shared = sum((a - middle) * (b - middle) for a, b in zip(*sides))
    spread = [sum((r - middle) ** 2 for r in side) for side in sides]
    return shared / (spread[0] * spread[1]) ** 0.5 if all(spread) else 1.0


def _ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in order; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks, first = [0.0] * len(values), 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for i in order[first : last + 1]:
            ranks[i] = (first + last) / 2
        first = last + 1
    return ranks


def line(name: str, pairs: Iterable[tuple[float, float]]) -> str:
    return f"{name:44.44} {Errors.of(pairs)}"


# ---------------------------------------------------------------- collectives


def all_reduce_times(path: Path) -> list[tuple[int, float]]:
    """(bytes, measured microseconds, out of place) of an nccl-tests table."""
    with path.open(newline="") as file:
        return [(int(row[0]), float(row[3]) / 1000) for row in list(csv.reader(file))[1:]]


def priced(device: str, ranks: int, sizes: Iterable[int]) -> list[float]:
    """Microseconds that the shipped prices say for an all-reduce on one node."""
    cost, mesh = CostModel(Cluster.named(device, ranks)), Mesh.make(data=ranks)
    return [cost.collective("all_reduce", size, ("data",), mesh).time / 1e6 for size in sizes]


def report_tables(folder: Path) -> bool:
    """One line a table, one for what is below 16 MiB of it; whether all hold 2 % and 6 % on average."""
    good = True
    for path in sorted(folder.glob("*_AR_GPU*_LUT.csv")):
        device, ranks = re.match(r"(\w+)_AR_GPU(\d+)_LUT", path.name).groups()  # type: ignore[union-attr]
        rows = all_reduce_times(path)
        pairs = list(zip(priced(device, int(ranks), [size for size, _ in rows]), [time for _, time in rows]))
        small = [pair for pair, (size, _) in zip(pairs, rows) if size < 16 * MIB]
        print(line(f"all-reduce, {ranks} x {device}", pairs))
        print(line("    below 16 MiB", small))
        good &= Errors.of(pairs).mean <= 0.02 and Errors.of(small).mean <= 0.06
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA_DIR")
    data = parser.parse_args(arguments).data
    print(HEAD)
    good = report_tables(data / "vtrain")
    print("tables: mean error at most 2 %, below 16 MiB at most 6 %:", "yes" if good else "NO")
    report_steps(data, line)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
