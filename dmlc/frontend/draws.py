"""What importers give to random ops: the seed, the count of steps, a stream of numbers each."""

from __future__ import annotations

from dmlc.ir.core import Function, Value
from dmlc.ir.types import TensorType


class Draws:
    """A part of an importer, which has the `function` being made and finds free names for its arguments."""

    function: Function
    _streams = 0

    def argument_name(self, name: str) -> str:
        """A free name near `name`."""
        raise AssertionError("an importer names its arguments")

    def stream(self) -> int:
        """A new stream of random numbers."""
        self._streams += 1
        return self._streams - 1

    def seed_and_step(self) -> list[Value]:
        """The arguments that random ops take: one seed, and the count of steps so far (i64 scalars)."""
        found = {a.name: a for a in self.function.args}
        for name in ("rng_seed", "rng_step"):
            if name not in found:
                found[name] = self.function.body.add_arg(TensorType((), "i64"), self.argument_name(name), {"dmlc.role": "seed"})
        return [found["rng_seed"], found["rng_step"]]
