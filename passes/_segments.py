"""A training step seen by recomputation: which ops go forward and which backward, and where the forward pass can be cut.

The forward pass is cut where few bytes live across: between the blocks of a transformer only the residual stream does. A segment is what
lies between two cuts. Cuts stay only where both neighbours keep more for the backward pass than the cut itself costs; a chain without
narrow places ends up in a few long segments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property

from dmlc.ir.core import BlockArgument, Function, Op, Value
from dmlc.ops.base import definition
from dmlc.simulate.liveness import outside_values, root_of

WORTH = 2  # a segment keeps at least this many times the bytes that come in over its first cut


class Step:
    """`size(value)` gives a value's bytes on a rank.

    backward  ops of the backward pass: those with `dmlc.of` and what is made from them, up to the update phase
    batched   forward ops that depend on the batch or on random numbers; the others make the same in every microbatch
    """

    def __init__(self, function: Function, size: Callable[[Value], int]):
        self.function, self.size = function, size
        self.ops = [op for op in function.body if op is not function.return_op]
        self.number = {op: i for i, op in enumerate(self.ops)}
        self.backward: dict[Op, None] = {}
        self.batched: dict[Op, None] = {}
        for op in self.ops:
            made_from = [v.op for v in outside_values(op)]
            if op.attrs.get("dmlc.phase") == "update":
                continue
            if "dmlc.of" in op.attrs or any(o in self.backward for o in made_from):
                self.backward[op] = None
            elif definition(op).effects == "random" or any(map(self.is_batched, outside_values(op))):
                self.batched[op] = None
        self.last_use = {v: self._last_use(v) for op in self.batched for v in op.results}

    def is_batched(self, value: Value) -> bool:
        if isinstance(value, BlockArgument):
            return value.attrs.get("dmlc.role", "input") == "input"
        return value.op in self.batched

    def is_forward(self, op: Op | None) -> bool:
        return op in self.number and op not in self.backward and op.attrs.get("dmlc.phase") != "update"

    def _last_use(self, value: Value) -> int:
        """Number of the last forward op that reads the value."""
        return max((self.number[u] for u in value.users if self.is_forward(u)), default=self.number[value.op])

    # -------------------------------------------------- storage

    @cached_property
    def _lives(self) -> dict[Value, int]:
        """Buffer made by a batched op -> number of the last forward op that reads it, through views too."""
        lives: dict[Value, int] = {}
        for v, last in self.last_use.items():
            root = root_of(v)
            if root.op in self.batched:
                lives[root] = max(lives.get(root, 0), last)
        return lives

    @cached_property
    def _saved(self) -> dict[Value, None]:
        """Buffers that the backward pass reads."""
        used = (v for v in self.last_use if any(u in self.backward for u in v.users))
        return dict.fromkeys(r for v in used if (r := root_of(v)) in self._lives)

    def end(self, value: Value) -> int:
        """Number of the last forward op that needs the value's buffer."""
        return self._lives.get(root_of(value), self.number[value.op] if value.op is not None else 0)

    # -------------------------------------------------- cuts

    @cached_property
    def cuts(self) -> list[int]:
        """Numbers of the ops with which a new segment begins, ascending; the first segment begins with the program."""
        if not self.batched:
            return []
        crossing = self._crossing()
        first, last = self.number[next(iter(self.batched))], self.number[next(reversed(self.batched))]
        found = [p for p in range(first + 1, last + 1) if crossing[p - 1] >= crossing[p] < crossing[p + 1]]
        while found:
            ratio, at = min((self._worth(found, k, crossing), k) for k in range(len(found) + 1))
            if ratio >= WORTH:
                break
            around = [k for k in (at - 1, at) if 0 <= k < len(found)]
            del found[max(around, key=lambda k: crossing[found[k]])]
        return found

    def _crossing(self) -> list[int]:
        """Bytes that live from before op p to op p or later, without buffers that live through half of the forward pass."""
        change = [0] * (len(self.ops) + 2)
        for root, end in self._lives.items():
            made = self.number[root.op]
            if 2 * (end - made) <= len(self.batched):
                change[made + 1] += self.size(root)
                change[end + 1] -= self.size(root)
        total, found = 0, []
        for c in change:
            total += c
            found.append(total)
        return found

    def _worth(self, cuts: list[int], k: int, crossing: list[int]) -> float:
        """Bytes that segment k keeps for the backward pass alone, as a multiple of what comes in over its first cut."""
        begin, stop = cuts[k - 1] if k else 0, cuts[k] if k < len(cuts) else len(self.ops)
        kept = sum(self.size(r) for r in self._saved if begin <= self.number[r.op] and self._lives[r] < stop)
        return kept / max(crossing[begin], 1) if k else float(kept)

    # -------------------------------------------------- segments

    def segment(self, op: Op) -> int:
        """The segment of a forward op."""
        return bisect_right(self.cuts, self.number[op])

    @cached_property
    def backward_segment(self) -> dict[Op, int]:
        """Backward op -> the segment of the forward op it serves; of one that serves none known, that of the backward op before."""
        by_id = {op.id: op for op in self.batched}
        found: dict[Op, int] = {}
        here = len(self.cuts)
        for op in self.backward:
            source = by_id.get(op.attrs.get("dmlc.of", ""))
            here = self.segment(source) if source is not None else here
            found[op] = here
        return found

    def crosses(self, op: Op, segment: int) -> bool:
        """Whether a later segment than `segment` reads a buffer of the op's results."""
        return any(bisect_right(self.cuts, self.end(r)) > segment for r in op.results)
