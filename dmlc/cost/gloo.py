"""Gloo as it behaves: the cores that compute also move the bytes, and most of its collectives send and receive by turns.

Measured between two hosts of one core each (float32, 64 MiB a rank, TCP over veth pairs): all-reduce 0.566 s at 1 Gbit/s with 0.082 s of
processor time, 0.121 s at 5 Gbit/s with 0.080 s, 0.090 s with no limit. A gather (list form) takes 1.9 times the all-reduce of the same
tensor a rank at 1 Gbit/s and 2.9 times at 5; `all_to_all_single` as long as the all-reduce, though half the bytes leave a rank. A message of a few
bytes takes 0.3 ms: its latency is waking threads. Overlapped with matrix products an all-reduce and the products share the core fairly.
"""

from __future__ import annotations

from dmlc.cost.cost import transfer

WAKE = 200_000_000  # picoseconds before the first byte of a collective moves
CALL = 400_000_000  # of the rank that starts one, before it goes on: Gloo's threads take the core meanwhile (0.2 to 0.5 ms as measured)
CACHES = 20  # percent: products and convolutions beside an all-reduce at 1 Gbit/s, which takes 15 percent of the core, keep 60 to 65
CORE = 840 * 10**6  # bytes a second of an all-reduce that a core moves and adds up
GATHER_CORE = 565 * 10**6  # of a gather's result: it is copied twice more
WIRE = 95  # percent of a link's bandwidth that payload gets
ONE_WAY = {"all_gather": 190, "all_to_all": 190, "reduce_scatter": 190}  # percent of a transfer in both directions at once


def time(kind: str, size: int, ranks: int, alpha: int, bandwidth: int, memory: int) -> int:
    """Picoseconds of a collective over `ranks` with steps of `alpha` on a link of `bandwidth`; `memory` is the device's bandwidth to memory.

    `reduce_scatter` runs as `all_to_all_single` and a local sum, which is how the emitted programs run it.
    """
    steps, sent = _steps(kind, ranks), _sent(kind, size, ranks)
    wire = transfer(sent * 100, bandwidth * WIRE)
    core = _core(kind, size, sent)
    moving = max(wire * ONE_WAY[kind] // 100, wire + core) if kind == "all_gather" else max(wire * ONE_WAY.get(kind, 100) // 100, core) + core // 10
    local = transfer(size + -(-size // ranks), memory) if kind == "reduce_scatter" else 0
    return WAKE + steps * alpha + moving + local


def _steps(kind: str, ranks: int) -> int:
    if kind in ("send", "recv"):
        return 1
    if kind == "broadcast":
        return (ranks - 1).bit_length()
    return 2 * (ranks - 1) if kind == "all_reduce" else ranks - 1


def _sent(kind: str, size: int, ranks: int) -> int:
    """Bytes that the busiest rank sends."""
    if kind in ("send", "recv"):
        return size
    if kind == "broadcast":
        return size * (ranks - 1).bit_length()
    return -(-size * (ranks - 1) * (2 if kind == "all_reduce" else 1) // ranks)


def _core(kind: str, size: int, sent: int) -> int:
    """Processor time of a rank."""
    return transfer(size, GATHER_CORE) if kind == "all_gather" else transfer(sent, CORE)


def core_percent(ranks: int, alpha: int, bandwidth: int, memory: int) -> int:
    """Percent of a core that an all-reduce keeps busy while it moves (64 MiB)."""
    size = 64 << 20
    return min(100, 100 * _core("all_reduce", size, _sent("all_reduce", size, ranks)) // time("all_reduce", size, ranks, alpha, bandwidth, memory))


def slow_down(core: int) -> tuple[int, int]:
    """Percent of their speed that computation and a collective keep on one core of which the collective alone would take `core` percent:
    either gets what it needs, at least half of the core; computation loses up to `CACHES` percent more, since what it had in the caches is gone each
    time that Gloo's threads had the core."""
    return max(50, 100 - core - min(2 * core, CACHES)), min(100, 5000 // max(core, 1))
