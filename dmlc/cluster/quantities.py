"""Amounts with units, as people write them: "25 GB/s", "400 Gbit/s", "5 us", "80 GB", "700 W", "312 TFLOP/s".

B is a byte, bit (or a small b, as in Gb/s) a bit; k, M, G, T are powers of 1000, Ki, Mi, Gi, Ti of 1024.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from dmlc.ir.suggest import did_you_mean

DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def _with(prefixes: dict[str, int], units: dict[str, Fraction]) -> dict[str, Fraction]:
    return {f"{prefix}{unit}": factor * size for unit, size in units.items() for prefix, factor in prefixes.items()}


@dataclass(frozen=True)
class Quantity:
    """What is measured: unit -> how many of the unit that the program counts in; an example for messages."""

    name: str
    units: dict[str, Fraction]
    example: str

    def read(self, text: str) -> int:
        """The amount in the program's unit, rounded. Raises `ValueError` with what is wrong."""
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]*)", text.strip())
        if match is None:
            raise ValueError(f"{self.name} is a number and a unit, as in {self.example}, not '{text}'")
        number, unit = match.groups()
        if unit not in self.units:
            what = f"there is no unit '{unit}' of {self.name}{self._nearest(unit)}" if unit else f"{self.name} needs a unit"
            raise ValueError(f"{what}, as in {self.example}")
        return round(Fraction(number) * self.units[unit])

    def _nearest(self, unit: str) -> str:
        """The units that differ in case only, where b is a bit and B a byte; else the nearest one."""
        same = [u for u in self.units if u.lower() == unit.lower()]
        return f"; did you mean {' or '.join(same)}?" if same else did_you_mean(unit, self.units)


SIZE = Quantity("a size", _with(DECIMAL | BINARY, {"B": Fraction(1)}), "80 GB")
BANDWIDTH = Quantity(
    "a bandwidth",
    _with(DECIMAL | BINARY, {"B/s": Fraction(1)}) | _with(DECIMAL, {"bit/s": Fraction(1, 8), "b/s": Fraction(1, 8), "bps": Fraction(1, 8)}),
    "25 GB/s or 400 Gbit/s",
)
TIME = Quantity("a time", {u: Fraction(n) for u, n in {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9, "s": 10**12}.items()}, "5 us")
POWER = Quantity("a power", _with({"": 1, "k": 10**3, "M": 10**6}, {"W": Fraction(1)}), "700 W")
RATE = Quantity("a rate", _with(DECIMAL, {"FLOP/s": Fraction(1), "FLOPS": Fraction(1)}), "312 TFLOP/s")


def shown(amount: int, unit: str) -> str:
    """An amount with a unit that reads back exactly: `450 GB/s` for 450,000,000,000 B/s."""
    for prefix, factor in reversed(DECIMAL.items()):
        if prefix != "K" and amount and amount * 1000 % factor == 0 and amount >= factor:
            return f"{amount / factor:g} {prefix}{unit}" if amount % factor else f"{amount // factor} {prefix}{unit}"
    return f"{amount} {unit}"


def shown_time(picoseconds: int) -> str:
    for unit, factor in (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3)):
        if picoseconds and picoseconds % factor == 0:
            return f"{picoseconds // factor} {unit}"
    return f"{picoseconds} ps"
