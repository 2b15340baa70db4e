"""Which template a kernel takes, and its tile: rows (or elements) a program, columns a step, warps."""

from __future__ import annotations

from dataclasses import dataclass

from dmlc.codegen.triton_body import KernelBody
from dmlc.codegen.triton_index import needs_64_bits

REGISTER_WORDS = 40960  # 32-bit words of row values that one program may keep: five eighths of the 65,536 registers of a multiprocessor
FLAT = 1024  # elements a program of a pointwise kernel
STEP = 2048  # columns a step of a looped kernel
TILE = 1024  # elements a program works on at a time at least, where rows are short


@dataclass(frozen=True)
class Launch:
    """`template` is flat (pointwise), persistent (a whole row in registers) or looped (a row in steps of `columns`).

    size      elements (flat) or rows that the grid covers, `tile` of them a program
    columns   block of columns, a power of two (0: flat)
    warps     of 32 threads
    wide      offsets need 64 bits
    """

    template: str
    size: int
    tile: int
    columns: int
    warps: int
    wide: bool


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n (and at least 1)."""
    return 1 << max(n - 1, 0).bit_length()


def plan_launch(body: KernelBody) -> Launch:
    if body.space.columns == 0:
        return _flat(body)
    block = power_of_two(body.space.width)
    return _persistent(body, block) if block * body.live() <= REGISTER_WORDS else _looped(body)


def _warps(elements: int, most: int) -> int:
    """About 8 to 16 elements a thread."""
    return min(max(power_of_two(elements) // 256, 1), most)


def _flat(body: KernelBody) -> Launch:
    size = body.space.rows
    tile = min(FLAT, power_of_two(size))
    return Launch("flat", size, tile, 0, min(_warps(tile, 8), 4), needs_64_bits(body, _up(size, tile)))


def _persistent(body: KernelBody, block: int) -> Launch:
    rows = body.space.rows
    tile = min(max(TILE // block, 1), power_of_two(rows))
    return Launch("persistent", rows, tile, block, _warps(tile * block, 16), needs_64_bits(body, _up(rows, tile) * block))


def _looped(body: KernelBody) -> Launch:
    step = STEP if body.live() <= 12 else STEP // 2
    return Launch("looped", body.space.rows, 1, step, 8, needs_64_bits(body, body.space.rows * _up(body.space.width, step)))


def _up(n: int, step: int) -> int:
    return -(-n // step) * step
