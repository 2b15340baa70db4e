"""The one type every price has."""

from __future__ import annotations

from dataclasses import dataclass

SOURCES = ("measured", "table", "model", "default")  # best known first


@dataclass(frozen=True)
class Cost:
    """time in picoseconds, bytes moved (memory for an op, link for a collective), floating-point operations, and the source:
    `measured` on the device, read off a `table`, from a `model`, or a `default` for want of anything better."""

    time: int = 0
    bytes: int = 0
    flops: int = 0
    source: str = "model"

    def __add__(self, other: Cost) -> Cost:
        """One after the other; the sum is known as badly as its worse part."""
        source = max(self.source, other.source, key=SOURCES.index)
        return Cost(self.time + other.time, self.bytes + other.bytes, self.flops + other.flops, source)

    def times(self, count: int) -> Cost:
        return Cost(self.time * count, self.bytes * count, self.flops * count, self.source)


PICO = 10**12


def transfer(amount: int, rate: int) -> int:
    """Picoseconds that `amount` units take at `rate` units a second, rounded up."""
    return -(-amount * PICO // rate)
