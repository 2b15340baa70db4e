"""One rank as a generator: it runs ops in order and yields at every communication."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from dmlc.interpret.arguments import Promote, poison
from dmlc.interpret.evaluate import DTYPES, Evaluator
from dmlc.interpret.prelude_shards import pad_to
from dmlc.ir.core import Block, Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType
from dmlc.ops.base import attribute
from dmlc.ops.comm import is_start
from dmlc.ops.control import parts

Tensors = list[torch.Tensor]
Env = dict[Value, Any]


@dataclass
class Posted:
    """A collective or message that a rank has started: filled in by the exchange once everybody is there."""

    op: Op
    rank: int
    operands: Tensors
    results: Tensors | None = None
    waits: int = 0
    taken: bool = False
    waiter: Op | None = None


Step = Generator[Posted, None, Tensors]


class Rank:
    """Runs blocks for one rank. A yielded `Posted` whose `results` are still None on resumption is yielded again by whoever waits for it."""

    def __init__(
        self,
        module: Module,
        mesh: Mesh,
        rank: int,
        promote: Promote = lambda d: d,
        poison_pads: bool = False,
        watch: Callable[[Op, Tensors], None] | None = None,
        known: dict[Op, Evaluator] | None = None,
    ):
        """`known` keeps what evaluates an op, for other ranks and later runs of the same unchanged module."""
        self.module, self.mesh, self.rank, self.promote, self.poison_pads, self.watch = module, mesh, rank, promote, poison_pads, watch
        self.known = {} if known is None else known
        self.coordinates = mesh.coordinates(rank)
        self.functions = {f.name: f for f in module.functions}

    def block(self, block: Block, args: Iterable[Any], env: Env) -> Step:
        """Run a block; gives the operands of its terminator."""
        env.update(zip(block.args, args))
        for op in block:
            operands = [env[v] for v in op.operands]
            if op is block.last and op.name in ("func.return", "dmlc.yield", "kernel.yield"):
                return operands
            evaluator = self.known.get(op)
            results = (yield from self.op(op, operands, env)) if evaluator is None else evaluator(operands)
            self._check(op, results, evaluator)
            env.update(zip(op.results, results))
        raise DmlcError("a block has no terminator")

    def op(self, op: Op, operands: Tensors, env: Env) -> Step:
        if op.name in REGION_OPS:
            return (yield from REGION_OPS[op.name](self, op, operands, env))
        if op.name == "comm.axis_index":
            return [torch.tensor(self.coordinates[op.attrs["axis"]])]
        if op.name == "comm.wait":
            return (yield from self._wait(operands[0], op))
        if op.dialect == "comm":
            posted = Posted(op, self.rank, operands)
            yield posted
            if is_start(op):
                return [posted]  # type: ignore[list-item]
            return (yield from self._wait(posted, op))
        if op.name == "dmlc.shard_slice" and self.poison_pads and "dmlc.pad" not in op.attrs:
            return [self._poisoned_slice(op, *operands)]
        self.known[op] = Evaluator(op, self.promote)
        return self.known[op](operands)

    def _wait(self, posted: Posted, op: Op) -> Step:
        posted.waits += 1
        posted.waiter = op
        while posted.results is None:
            yield posted
        return posted.results

    def _poisoned_slice(self, op: Op, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        dim, size = op.attrs["dim"], op.attrs["size"]
        begin = min(int(start), x.shape[dim])
        return pad_to(x.narrow(dim, begin, min(size, x.shape[dim] - begin)), dim, size, poison(x.dtype))

    def _check(self, op: Op, results: Tensors, evaluator: Evaluator | None) -> None:
        """The types in the text are those of the values."""
        if self.watch is not None:
            self.watch(op, results)
        if torch.is_autocast_enabled("cpu"):
            return  # autocast changes dtypes on purpose
        types = (
            evaluator.types
            if evaluator is not None
            else [(tuple(v.shape), DTYPES[self.promote(v.dtype)]) if isinstance(v.type, TensorType) else None for v in op.results]
        )
        for value, wanted, got in zip(op.results, types, results, strict=True):
            if wanted is not None and (got.shape != wanted[0] or got.dtype != wanted[1]):
                raise DmlcError(f"'{op.name}' gave {tuple(got.shape)} {got.dtype} where the program says {value.type} (rank {self.rank})", op.loc)


def _microbatch(rank: Rank, op: Op, operands: Tensors, env: Env) -> Step:
    """Sums what the region yields over its iterations, in the accumulators' dtypes."""
    totals: list[Any] = [None] * len(op.results)
    acc = op.attrs.get("acc", ())
    for i in range(int(operands[0]) if operands else op.attrs["count"]):
        yielded = yield from rank.block(op.region.block, [torch.tensor(i)], env)
        for j, y in enumerate(yielded):
            y = y.to(DTYPES[rank.promote(acc[j])]) if acc else y
            totals[j] = y if totals[j] is None else totals[j] + y
    return [torch.zeros(r.shape, dtype=DTYPES[rank.promote(r.dtype)]) if t is None else t.to(DTYPES[rank.promote(r.dtype)]) for t, r in zip(totals, op.results)]


def _cond(rank: Rank, op: Op, operands: Tensors, env: Env) -> Step:
    return (yield from rank.block(op.regions[0 if bool(operands[0]) else 1].block, operands[1:], env))


def _scan(rank: Rank, op: Op, operands: Tensors, env: Env) -> Step:
    count = op.attrs["count"]
    carried, scanned, shared = parts(op, operands)
    stacks: list[Tensors] = [[] for _ in op.results[len(carried) :]]
    for i in reversed(range(count)) if attribute(op, "reverse") else range(count):
        given = yield from rank.block(op.region.block, [torch.tensor(i), *carried, *(x[i] for x in scanned), *shared], env)
        carried = given[: len(carried)]
        for rows, row in zip(stacks, given[len(carried) :]):
            rows.append(row)
    if attribute(op, "reverse"):
        stacks = [rows[::-1] for rows in stacks]
    return carried + [_stacked(rank, rows, r.tensor) for rows, r in zip(stacks, op.results[len(carried) :])]


def _stacked(rank: Rank, rows: Tensors, type_: TensorType) -> torch.Tensor:
    return torch.stack(rows) if rows else torch.zeros(type_.shape, dtype=DTYPES[rank.promote(type_.dtype)])


def _while(rank: Rank, op: Op, operands: Tensors, env: Env) -> Step:
    condition, body = (region.block for region in op.regions)
    carried, _, shared = parts(op, operands)
    while bool((yield from rank.block(condition, [*carried, *shared], env))[0]):
        carried = yield from rank.block(body, [*carried, *shared], env)
    return carried


def _fused(rank: Rank, op: Op, operands: Tensors, env: Env) -> Step:
    return (yield from rank.block(op.region.block, operands, env))


def _call(rank: Rank, op: Op, operands: Tensors, env: Env) -> Step:
    return (yield from rank.block(rank.functions[op.attrs["kernel"]].body, operands, {}))


def _pipe(rank: Rank, op: Op, operands: Tensors, env: Env) -> Step:
    stage = rank.coordinates[op.attrs["axis"]]
    return (yield from rank.block(op.regions[stage].block, [], env))


REGION_OPS: dict[str, Callable[..., Step]] = {
    "dmlc.microbatch": _microbatch,
    "dmlc.cond": _cond,
    "dmlc.scan": _scan,
    "dmlc.while": _while,
    "kernel.fused": _fused,
    "kernel.call": _call,
    "pipe.schedule": _pipe,
}
