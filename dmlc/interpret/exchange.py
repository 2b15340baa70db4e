"""The meeting point of interpreted ranks: matches collectives by (group, sequence number) and messages by (pair, tag).

A mismatch, or no progress, is an error naming both places: deadlocks are found without a cluster.
"""

from __future__ import annotations

from typing import Any

import torch

from dmlc.interpret.arguments import poison
from dmlc.interpret.prelude_shards import combine, join_parts, pad_to
from dmlc.interpret.rank import Posted
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh, ceildiv
from dmlc.ops.base import own_attrs
from dmlc.ops.comm import base_name


class Exchange:
    def __init__(self, mesh: Mesh, poison_pads: bool = False):
        self.mesh, self.poison_pads = mesh, poison_pads
        self._next: dict[tuple[Any, int], int] = {}  # (group, rank) -> sequence number of its next collective
        self._open: dict[tuple[Any, int], dict[int, Posted]] = {}
        self._mail: dict[tuple[int, int, int], list[Posted]] = {}
        self._receivers: dict[tuple[int, int, int], list[Posted]] = {}
        self._begun: list[list[Posted]] = []  # complete collectives that some member does not wait for yet

    def post(self, posted: Posted) -> bool:
        """Take a rank's request; True when anything was completed by it. A request posted before is only looked at."""
        if posted.taken:
            return False
        posted.taken = True
        name = base_name(posted.op)
        if name == "comm.send":
            return self._send(posted)
        if name == "comm.recv":
            return self._receive(posted)
        return self._collective(posted)

    # -------------------------------------------------- messages

    def _peer(self, posted: Posted, key: str) -> int:
        here = self.mesh.coordinates(posted.rank)
        return self.mesh.rank({**here, posted.op.attrs["axis"]: posted.op.attrs[key]})

    def _send(self, posted: Posted) -> bool:
        channel = (posted.rank, self._peer(posted, "to"), posted.op.attrs.get("tag", 0))
        self._mail.setdefault(channel, []).append(posted)
        posted.results = []
        self._deliver(channel)
        return True

    def _receive(self, posted: Posted) -> bool:
        channel = (self._peer(posted, "source"), posted.rank, posted.op.attrs.get("tag", 0))
        self._receivers.setdefault(channel, []).append(posted)
        return self._deliver(channel)

    def _deliver(self, channel: tuple[int, int, int]) -> bool:
        mail, waiting = self._mail.get(channel, []), self._receivers.get(channel, [])
        done = False
        while mail and waiting:
            waiting.pop(0).results = mail.pop(0).operands
            done = True
        return done

    # -------------------------------------------------- collectives

    def _collective(self, posted: Posted) -> bool:
        group = self.mesh.group(posted.rank, posted.op.attrs["axes"])
        number = self._next.get((group, posted.rank), 0)
        self._next[group, posted.rank] = number + 1
        here = self._open.setdefault((group, number), {})
        for other in here.values():
            _check_match(posted, other)
        here[posted.rank] = posted
        if len(here) < len(group):
            return False
        del self._open[group, number]
        ordered = [here[r] for r in group]
        for index, member in enumerate(ordered):
            member.results = [self._result(ordered, index, i) for i in range(len(member.operands))]
        self._begun = [members for members in [*self._begun, ordered] if not all(m.waits for m in members)]
        return True

    def _result(self, members: list[Posted], index: int, i: int) -> torch.Tensor:
        op = members[index].op
        parts = [m.operands[i] for m in members]
        return RULES[base_name(op)](self, op.attrs, i, parts, index)

    def _all_reduce(self, attrs: Any, i: int, parts: list[torch.Tensor], index: int) -> torch.Tensor:
        return combine(parts, attrs.get("combiner", "sum"))

    def _all_gather(self, attrs: Any, i: int, parts: list[torch.Tensor], index: int) -> torch.Tensor:
        return self._join(parts, attrs, i)

    def _reduce_scatter(self, attrs: Any, i: int, parts: list[torch.Tensor], index: int) -> torch.Tensor:
        whole = combine(parts, attrs.get("combiner", "sum"))
        return self._part(whole, attrs["dims"][i], attrs["sizes"][i], attrs["grains"][i], attrs["axes"], index, "dmlc.pad" in attrs)

    def _all_to_all(self, attrs: Any, i: int, parts: list[torch.Tensor], index: int) -> torch.Tensor:
        mine = [self._part(p, attrs["split_dims"][i], attrs["split_sizes"][i], attrs["split_grains"][i], attrs["axes"], index) for p in parts]
        return self._join(mine, attrs, i)

    def _join(self, parts: list[torch.Tensor], attrs: Any, i: int) -> torch.Tensor:
        """Parts joined level by level, the padding of each nesting level dropped."""
        counts = [self.mesh.sizes[a] for a in attrs["axes"]]
        return _nested_join(parts, attrs["dims"][i], attrs["sizes"][i], attrs["grains"][i], counts)

    def _part(self, x: torch.Tensor, dim: int, size: int, grain: int, axes: Any, index: int, zeros: bool = False) -> torch.Tensor:
        """A rank's part; its padding is poisoned unless the program relies on zeros there."""
        counts = [self.mesh.sizes[a] for a in axes]
        indices = []
        for c in reversed(counts):
            indices.insert(0, index % c)
            index //= c
        start, valid = self.mesh.window(size, axes, dict(zip(axes, indices)), grain)
        fill = poison(x.dtype) if self.poison_pads and not zeros else 0
        return pad_to(x.narrow(dim, min(start, size), valid), dim, self.mesh.local_size(size, axes, grain), fill)

    # -------------------------------------------------- diagnosis

    def stuck(self, waiting: list[Posted], finished: list[int]) -> DmlcError:
        """No rank can go on: say who waits for whom and where."""
        notes = [self._waits(p, {q.rank: q for q in waiting}) for p in waiting[:8]]
        for (group, number), here in self._open.items():
            missing = [r for r in group if r not in here]
            place = next(iter(here.values()))
            notes.append(f"collective {number} of ranks {list(group)}, '{place.op.name}' at {place.op.loc}, lacks ranks {missing}" + (" (which have finished)" if set(missing) & set(finished) else ""))
        first = waiting[0] if waiting else next(iter(next(iter(self._open.values())).values()))
        return DmlcError("the ranks deadlock: no rank can go on", first.op.loc, tuple(notes))

    def _waits(self, posted: Posted, waiting: dict[int, Posted]) -> str:
        text = f"rank {posted.rank} waits in '{posted.op.name}' [{posted.op.id}] at {posted.op.loc}"
        if posted.op.name != "comm.recv":
            return text
        peer = self._peer(posted, "source")
        return f"{text} for a message of rank {peer}, " + (f"which waits at {waiting[peer].op.loc}" if peer in waiting else "which has finished")

    def left_over(self) -> DmlcError | None:
        """What ranks have begun and nobody took up when all have finished: a started collective, a message without receiver."""
        if self._open:
            return self.stuck([], list(range(self.mesh.devices)))
        for members in self._begun:
            if (forgotten := next((m for m in members if not m.waits), None)) is not None:
                return _never_waited(forgotten, members)
        for (sender, receiver, tag), mail in self._mail.items():
            if mail:
                loc = mail[0].op.loc
                return DmlcError(f"rank {receiver} never receives a message that rank {sender} sends with tag {tag}", loc)
        return None


def _never_waited(forgotten: Posted, members: list[Posted]) -> DmlcError:
    loc = forgotten.op.loc
    notes = [f"rank {m.rank} waits for it in '{m.waiter.name}' [{m.waiter.id}] at {m.waiter.loc}" for m in members if m.waiter is not None]
    return DmlcError(f"rank {forgotten.rank} begins '{forgotten.op.name}' [{forgotten.op.id}] and never waits for it", loc, tuple(notes[:1]))


def _check_match(a: Posted, b: Posted) -> None:
    """Both requests are the same collective: kind, attributes, dtypes and shapes."""
    same = base_name(a.op) == base_name(b.op) and own_attrs(a.op) == own_attrs(b.op)
    same = same and [(x.shape, x.dtype) for x in a.operands] == [(x.shape, x.dtype) for x in b.operands]
    if not same or a.op.id != b.op.id:
        notes = (f"rank {a.rank}: '{a.op.name}' [{a.op.id}] at {a.op.loc}", f"rank {b.rank}: '{b.op.name}' [{b.op.id}] at {b.op.loc}")
        raise DmlcError("ranks of one group issue different collectives at the same place", a.op.loc, notes)


def _nested_join(parts: list[torch.Tensor], dim: int, size: int, grain: int, counts: list[int]) -> torch.Tensor:
    if not counts:
        return parts[0].narrow(dim, 0, size)
    width = ceildiv(ceildiv(size, grain), counts[0]) * grain
    inner = len(parts) // counts[0]
    joined = [_nested_join(parts[i * inner : (i + 1) * inner], dim, width, grain, counts[1:]) for i in range(counts[0])]
    return join_parts(joined, dim, size)


RULES = {
    "comm.all_reduce": Exchange._all_reduce,
    "comm.all_gather": Exchange._all_gather,
    "comm.reduce_scatter": Exchange._reduce_scatter,
    "comm.all_to_all": Exchange._all_to_all,
}
