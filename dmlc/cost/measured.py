"""Measured times of ops and collectives: what a database of one machine holds (`dmlc.cost.database` keeps it in a file).

The text names one in `dmlc.measured`, by the hash of its content. Nothing in it says when it was made, so that equal measurements have
equal hashes. All times are integer picoseconds, all sizes bytes of one rank.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property

from dmlc.cost.curve import Curve
from dmlc.cost.signature import op_key
from dmlc.ir.core import Module, Op
from dmlc.ir.location import DmlcError

Features = tuple[int, ...]
SAME = ("device", "name", "threads", "torch")  # what databases that are put together must agree on


class Measurements:
    """Times that were measured on one machine.

    ops          key of an op (`op_key`) -> ps of one run, its dispatch included; "pack KEY" and "unpack KEY" of a collective: the local copies
                 before it starts and after it is done; "call KEY": all that a start takes of its rank, its copies included
    collectives  (kind, ranks, link's name) -> ((bytes, ps), ...): bytes as `CostModel.collective` takes them, ps with all ranks there
    samples      (kind, dtype) -> ((features, ps), ...) of one PyTorch call (`dmlc.measure.calls` says which call and which features)
    cores        link's name -> percent of a core that a large collective keeps busy while it moves
    overlaps     link's name -> percent of their speed that (computation, a collective) keep while both run
    calls        link's name -> ps that starting a collective takes of its rank, whatever its size
    machine      what it was measured on: "device" (cpu, cuda), "name", "threads", "torch", ...
    """

    def __init__(
        self,
        ops: Mapping[str, int] | None = None,
        collectives: Mapping[tuple[str, int, str], Sequence[tuple[int, int]]] | None = None,
        samples: Mapping[tuple[str, str], Sequence[tuple[Features, int]]] | None = None,
        cores: Mapping[str, int] | None = None,
        overlaps: Mapping[str, tuple[int, int]] | None = None,
        calls: Mapping[str, int] | None = None,
        machine: Mapping[str, str] | None = None,
    ):
        self.ops, self.cores, self.overlaps, self.machine = dict(ops or {}), dict(cores or {}), dict(overlaps or {}), dict(machine or {})
        self.calls = dict(calls or {})
        self.collectives = {key: tuple(sorted(points)) for key, points in (collectives or {}).items()}
        self.sampled = {key: tuple(sorted(points)) for key, points in (samples or {}).items()}
        self._curves: dict[tuple[str, int, str], Curve | None] = {}

    @classmethod
    def of(cls, module: Module) -> Measurements | None:
        """The measurements that the module's text names; None when it names none. Raises `DmlcError` when they are nowhere."""
        name = module.attrs.get("dmlc.measured")
        if name is None:
            return None
        from dmlc.cost.database import find

        return find(name)

    # -------------------------------------------------- questions

    def op(self, op: Op) -> int | None:
        """Picoseconds that an op with this one's name, types and own attributes took; None when none was measured."""
        return self.ops.get(op_key(op)) if self.ops else None

    def before(self, op: Op, link: str, call: int = 0, packing: int = 0) -> int:
        """Picoseconds that starting a collective takes of its rank: the call itself (`call` where it was not measured on `link`), and packing
        (`packing` where it was not measured)."""
        key = op_key(op)
        known = self.ops.get(f"call {key}")
        return self.ops.get(f"pack {key}", packing) + self.calls.get(link, call) if known is None else known

    def after(self, op: Op) -> int:
        """Picoseconds that unpacking a collective's results takes of its rank; `op` is the collective, or its start."""
        return self.ops.get(f"unpack {op_key(op)}", 0)

    def collective(self, kind: str, bytes: int, ranks: int, link: str) -> int | None:
        """Picoseconds of one collective, interpolated over the sizes that were measured; None when this kind was not, on so many ranks."""
        key = ("send" if kind == "recv" else kind, ranks, link)
        if key not in self._curves:
            points = self.collectives.get(key, ())
            self._curves[key] = Curve(points) if points else None
        curve = self._curves[key]
        return curve.at(bytes) if curve is not None else None

    def samples(self, kind: str, dtype: str) -> Sequence[tuple[Features, int]]:
        """(features, picoseconds) of single PyTorch calls of a kind, smallest features first."""
        return self.sampled.get((kind, dtype), ())

    def core(self, link: str) -> int | None:
        """Percent of a core that a large collective keeps busy while it moves over `link`."""
        return self.cores.get(link)

    def slow_down(self, link: str) -> tuple[int, int] | None:
        """Percent of their speed that computation and a collective over `link` keep while both run."""
        return self.overlaps.get(link)

    # -------------------------------------------------- content

    def rows(self) -> dict[str, list[tuple]]:
        """The content, as rows of one table a kind, in order."""
        found: dict[str, list[tuple]] = {
            "machine": list(self.machine.items()),
            "ops": list(self.ops.items()),
            "samples": [(kind, dtype, json.dumps(list(f)), ps) for (kind, dtype), points in self.sampled.items() for f, ps in points],
            "collectives": [(*key, size, ps) for key, points in self.collectives.items() for size, ps in points],
            "cores": list(self.cores.items()),
            "overlaps": [(link, *percents) for link, percents in self.overlaps.items()],
            "calls": list(self.calls.items()),
        }
        return {name: sorted(rows) for name, rows in found.items()}

    @cached_property
    def hash(self) -> str:
        """Of the content: 16 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.rows(), sort_keys=True).encode()).hexdigest()[:16]

    def merged(self, other: Measurements) -> Measurements:
        """Both; where both know a time, `other`'s. Raises `DmlcError` when they are of different machines."""
        for key in SAME:
            mine, theirs = self.machine.get(key), other.machine.get(key)
            if mine is not None and theirs is not None and mine != theirs:
                raise DmlcError(
                    f"measurements of different machines cannot be put together: {key} is {mine} here and {theirs} there",
                    notes=("write to another file with -o",),
                )
        return Measurements(
            {**self.ops, **other.ops},
            {key: _union(self.collectives.get(key, ()), other.collectives.get(key, ())) for key in {*self.collectives, *other.collectives}},
            {key: _union(self.samples(*key), other.samples(*key)) for key in {*self.sampled, *other.sampled}},
            {**self.cores, **other.cores},
            {**self.overlaps, **other.overlaps},
            {**self.calls, **other.calls},
            {**self.machine, **other.machine},
        )


def _union(first: Sequence[tuple], second: Sequence[tuple]) -> list[tuple]:
    return list({**dict(first), **dict(second)}.items())
