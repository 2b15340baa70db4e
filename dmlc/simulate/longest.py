"""The longest chain of a program whose ops each need what they read: a time that no order beats."""

from __future__ import annotations

from collections.abc import Mapping

from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, Op, Value
from dmlc.ir.types import FutureType
from dmlc.ops.control import LOOPS, trips
from dmlc.simulate.liveness import outside_values


def critical_path(block: Block, time: Mapping[Op, int]) -> int:
    """Picoseconds of the longest chain in a block; `time` of each op that takes any. A loop takes no less than its iterations' computation,
    its traffic and one iteration's longest chain; a branch no less than the shortest of its blocks."""
    return _Chains(time).of(block)


class _Chains:
    def __init__(self, time: Mapping[Op, int]):
        self.time = time

    def of(self, block: Block) -> int:
        done: dict[Value, int] = {}
        longest = 0
        for op in block:
            if op.name in TERMINATORS:
                continue
            values = (
                outside_values(op) if not op.regions else [v for v in outside_values(op) if not isinstance(v.type, FutureType)]
            )  # waited for inside, if at all
            ready = max([done.get(v, 0) for v in values], default=0)
            end = ready + self._alone(op)
            longest = max(longest, end)
            done.update(dict.fromkeys(op.results, end))
        return longest

    def _alone(self, op: Op) -> int:
        if not op.regions or op.name == "kernel.fused":
            return self.time.get(op, 0)
        blocks = [b for r in op.regions for b in r.blocks]
        if op.name == "dmlc.microbatch" or op.name in LOOPS:
            count = trips(op)
            return max(sum(map(self.of, blocks)) if count else 0, sum(map(self._computation, blocks)) * count)
        return min(self.of(b) for b in blocks)

    def _computation(self, block: Block) -> int:
        """Time of a block's own ops on the compute stream."""
        own = (op for op in block if op.name == "kernel.fused" or (op.dialect != "comm" and not op.regions and op.name not in TERMINATORS))
        return sum(self.time.get(op, 0) for op in own)
