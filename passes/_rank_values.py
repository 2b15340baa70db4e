"""What depends on the rank or the microbatch, as values: axis indices, windows of sharded dims, counts of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, Function, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType
from dmlc.ops.comm import delivered_types

INDEX = TensorType((), "i64")


def batch_size(function: Function, mesh: Mesh) -> int:
    """Samples of the whole batch: the size of the dims that the sequential axes split."""
    sizes: dict[int, str] = {}
    for arg in function.args:
        sharding = arg.attrs.get("dmlc.sharding")
        dims: tuple[tuple[str, ...], ...] = sharding.dims if sharding is not None else ()
        for n, axes in zip(arg.shape, dims):
            if any(a in mesh.axes.sequential for a in axes):
                sizes.setdefault(int(n), arg.name)
    if len(sizes) != 1:
        said = ", ".join(f"{n} in %{name}" for n, name in sizes.items())
        raise DmlcError(f"the inputs have batches of different sizes ({said})" if sizes else "no input has a batch to split", function.op.loc)
    return next(iter(sizes))


class RankValues:
    """Axis indices and windows of this rank, each emitted once at its first use."""

    def __init__(self, mesh: Mesh, block: Block, ids: IdPool):
        self.mesh, self.ids = mesh, ids
        self.b = Builder(block, None, ids)
        self._known: dict[Any, Any] = {}
        self.batch = 0  # samples of the whole batch, in a program with microbatches

    def microbatches(self, batch: int) -> None:
        """Adds the arguments that say how many samples there are and in how many microbatches."""
        self.batch = batch
        self.size = self.b.block.add_arg(INDEX, "batch_size", {"dmlc.role": "size"})
        self.count = self.b.block.add_arg(INDEX, "microbatches", {"dmlc.role": "size"})

    def is_batch(self, axes: Sequence[str]) -> bool:
        """Whether a dim split by these axes holds samples, whose number is known at run time only."""
        return any(a in self.mesh.axes.sequential for a in axes)

    def constant(self, n: int) -> Value:
        return self._once(("n", n), lambda: self._emit("dmlc.full", (), {"value": n}, [INDEX])[0])

    def index(self, axis: str) -> Value:
        return self._once(("axis", axis), lambda: self._emit("comm.axis_index", (), {"axis": axis}, [INDEX])[0])

    def window(self, n: int, axes: Sequence[str], grain: int = 1) -> tuple[Value, Value]:
        """Global start and valid count of this rank's part of a dim of n elements split by `axes`."""
        if not axes:
            return self.constant(0), self.constant(n)
        if self.is_batch(axes):
            return self._once(("batch", n, tuple(axes), grain), lambda: self._batch_window(n, tuple(axes), grain))

        def make() -> tuple[Value, Value]:
            operands = [self.constant(n), *(self.index(a) for a in axes)]
            counts = tuple(self.mesh.sizes[a] for a in axes)
            return self._emit("dmlc.window", operands, {"counts": counts, "grain": grain}, [INDEX, INDEX])  # type: ignore[reportReturnType]

        return self._once(("window", n, tuple(axes), grain), make)

    def _batch_window(self, n: int, axes: tuple[str, ...], grain: int) -> tuple[Value, Value]:
        """Rows of this microbatch and rank, clipped to the samples there are; axes after the batch's split these rows."""
        batch = tuple(a for a in axes if a in ("micro", "data"))
        rest = axes[len(batch) :]
        if axes[: len(batch)] != batch or n % self.batch:
            raise DmlcError(f"a dim of {n} elements split by {', '.join(axes)} does not hold the {self.batch} samples")
        width = self.mesh.local_size(n, batch, grain)
        index = self.index(batch[0])
        for a in batch[1:]:
            index = self._sum(self._scaled(index, self.mesh.sizes[a]), self.index(a))
        start = self._scaled(index, width)
        valid = self._clipped(self._samples(n), start, width)
        for_rest = self.window(width, rest, grain) if rest else None
        if for_rest is None:
            return start, valid
        return self._sum(start, for_rest[0]), self._clipped(valid, for_rest[0], self.mesh.local_size(width, rest, grain))

    def valid_count(self, n: int, axes: Sequence[str], grain: int = 1) -> Value:
        """Valid elements over all ranks of the axes: of one microbatch if they hold the microbatches, else all n."""
        if not self.is_batch(axes):
            return self.constant(n)
        width = self.mesh.local_size(n, axes, grain) * self.mesh.extent(self.mesh.devices_of(axes))
        return self._once(("count", n, width), lambda: self._clipped(self._samples(n), self._scaled(self.index(axes[0]), width), width))

    def filled_microbatches(self) -> Value:
        """How many microbatches hold at least one sample."""
        batch = tuple(a for a in ("micro", "data") if a in self.mesh.sizes)
        rows = self.mesh.local_size(self.batch, batch) * self.mesh.extent(self.mesh.devices_of(batch))

        def make() -> Value:
            more = self._sum(self.size, self.constant(rows - 1))
            return self._emit("dmlc.div", (more, self.constant(rows)), {"rounding": "floor"}, [INDEX])[0]

        return self._once(("filled",), make)

    def _samples(self, n: int) -> Value:
        return self._scaled(self.size, n // self.batch)

    def _scaled(self, value: Value, by: int) -> Value:
        return value if by == 1 else self._once(("mul", value, by), lambda: self._emit("dmlc.mul", (value, self.constant(by)), {}, [INDEX])[0])

    def _sum(self, a: Value, b: Value) -> Value:
        return self._emit("dmlc.add", (a, b), {}, [INDEX])[0]

    def _clipped(self, total: Value, start: Value, width: int) -> Value:
        """min(max(total - start, 0), width)."""
        left = self._emit("dmlc.sub", (total, start), {}, [INDEX])[0]
        return self._emit("dmlc.clamp", (left,), {"min": 0, "max": width}, [INDEX])[0]

    def _emit(self, name: str, operands: Sequence[Value], attrs: dict[str, Any], types: list[TensorType]) -> tuple[Value, ...]:
        attrs["dmlc.id"] = self.ids.fresh("rank." + name.split(".")[-1])
        return tuple(self.b.op(name, operands, attrs, types).results)

    def _once(self, key: Any, make: Any) -> Any:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


class Environment:
    """What a strategy's `emit` sees: the builder, its axes, windows over them, collectives over them, the results' local types.

    The axes may hold the microbatches besides ranks: windows are then of this rank's rows of this microbatch, collectives are over the ranks.
    """

    def __init__(self, b: Builder, values: RankValues, axes: tuple[str, ...], local_types: list[TensorType]):
        self.b, self._values, self.axes, self.local_types = b, values, axes, local_types
        self.mesh = values.mesh
        self.devices = self.mesh.devices_of(axes)
        self.ranks = self.mesh.extent(self.devices)

    def window(self, n: int, grain: int = 1) -> tuple[Value, Value]:
        """Global start and number of valid elements of this rank's (and microbatch's) part of a dim of n."""
        return self._values.window(n, self.axes, grain)

    def count(self, n: int, grain: int = 1) -> Value:
        """Valid elements of a dim of n over all ranks of the axes; of this microbatch, if it is among them."""
        return self._values.valid_count(n, self.axes, grain)

    @property
    def micro_index(self) -> Value | None:
        """Number of this microbatch, None where they are not among the axes."""
        return self._values.index(self.mesh.axes.sequential[0]) if len(self.devices) < len(self.axes) else None

    @property
    def micro_count(self) -> Value | None:
        """How many microbatches the step has."""
        return self._values.count if len(self.devices) < len(self.axes) else None

    def filled_microbatches(self) -> Value:
        """How many microbatches hold at least one sample."""
        return self._values.filled_microbatches()

    def all_reduce(self, value: Value, combiner: str = "sum") -> Value:
        """Over the ranks of the axes."""
        if not self.devices:
            return value
        return self.b.emit("comm.all_reduce", value, types=[value.type], tag="ar", axes=self.devices, combiner=combiner)

    def all_gather(self, value: Value, dim: int, n: int, grain: int = 1) -> Value:
        attrs = {"axes": self.axes, "dims": (dim,), "sizes": (n,), "grains": (grain,)}
        return self.b.op("comm.all_gather", [value], attrs, delivered_types("comm.all_gather", attrs, [value.tensor], self.mesh), tag="ag").result
