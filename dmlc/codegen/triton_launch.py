"""Which template a kernel takes, and its tile: rows (or elements) a program, columns a step, warps."""

from __future__ import annotations

from dataclasses import dataclass

from dmlc.codegen.triton_body import KernelBody
from dmlc.codegen.triton_index import needs_64_bits
from dmlc.ir.dims import Size, bounds

REGISTER_WORDS = 40960  # 32-bit words of row values that one program may keep: five eighths of the 65,536 registers of a multiprocessor
FLAT = 1024  # elements a program of a pointwise kernel
STEP = 2048  # columns a step of a looped kernel
CROWDED = 7  # words a row element at and above which ptxas, left alone, spills a few registers for the sake of more blocks a multiprocessor
REGISTERS = 128  # what a thread of such a kernel may have, twice as many if its values alone need it
TILE = 1024  # elements a program works on at a time at least, where rows are short


@dataclass(frozen=True)
class Launch:
    """`template` is flat (pointwise), persistent (a whole row in registers) or looped (a row in steps of `columns`).

    size      elements (flat) or rows that the grid covers, `tile` of them a program
    columns   block of columns, a power of two (0: flat)
    warps     of 32 threads
    registers most that a thread may have (0: the compiler's choice)
    wide      offsets need 64 bits
    """

    template: str
    size: Size
    tile: int
    columns: int
    warps: int
    registers: int
    wide: bool

    def options(self) -> dict[str, int]:
        """What the compiler is told."""
        return {"num_warps": self.warps} | ({"maxnreg": self.registers} if self.registers else {})


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n (and at least 1)."""
    return 1 << max(n - 1, 0).bit_length()


def plan_launch(body: KernelBody) -> Launch:
    if body.space.columns == 0:
        return _flat(body)
    width = bounds(body.space.width, body.ranges())[1]  # the widest row there may be
    block = power_of_two(width) if width is not None else REGISTER_WORDS
    return _persistent(body, block) if block * body.live() <= REGISTER_WORDS else _looped(body)


def _warps(elements: int, most: int) -> int:
    """About 8 to 16 elements a thread."""
    return min(max(power_of_two(elements) // 256, 1), most)


def _registers(body: KernelBody, elements: int, warps: int) -> int:
    """A bound for kernels with many values; without one ptxas trades spills for occupancy."""
    live, threads = body.live(), 32 * warps
    if live < CROWDED:
        return 0
    return REGISTERS if live * elements // threads + 32 <= REGISTERS else min(255, 65536 // threads)


def _flat(body: KernelBody) -> Launch:
    size = body.space.rows
    tile = min(FLAT, _up_to(size))
    warps = _warps(tile, 4)
    return Launch("flat", size, tile, 0, warps, _registers(body, tile, warps), needs_64_bits(body, _up(size, tile)))


def _persistent(body: KernelBody, block: int) -> Launch:
    rows = body.space.rows
    tile = min(max(TILE // block, 1), _up_to(rows))
    warps = _warps(tile * block, 16)
    return Launch("persistent", rows, tile, block, warps, _registers(body, tile * block, warps), needs_64_bits(body, _up(rows, tile) * block))


def _looped(body: KernelBody) -> Launch:
    step = STEP if body.live() <= 12 else STEP // 2
    return Launch("looped", body.space.rows, 1, step, 8, _registers(body, step, 8), needs_64_bits(body, body.space.rows * _up(body.space.width, step)))


def _up(n: Size, step: int) -> Size:
    return -(-n // step) * step


def _up_to(n: Size) -> int:
    """The power of two that holds n elements; of an open size any."""
    return power_of_two(n) if isinstance(n, int) else FLAT
