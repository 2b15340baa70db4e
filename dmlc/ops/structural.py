"""Ops that give a program its structure: functions, regions, windows of sharded dims, barriers."""

from __future__ import annotations

from typing import Any

from dmlc.ir.core import Op
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample
from dmlc.ir.attributes import AttrDict

INDEX = TensorType((), "i64")
COMBINERS = ("sum", "prod", "max", "min", "and", "or")


class Structural(OpDef):
    """No tensor computation of its own: no factor rule, interpreted and emitted by a function each."""

    same_dtype = False
    cost = "free"
    no_vjp = "structural"


class BuiltinModule(Structural):
    name = "builtin.module"
    results = 0
    given = True


class Func(Structural):
    name = "func.func"
    results = 0
    given = True
    attributes = {"sym_name": REQUIRED, "sym_visibility": None, "res_attrs": (), "arg_attrs": (), "function_type": None}


class Return(Structural):
    name = "func.return"
    results = 0
    given = True


class Yield(Structural):
    """Ends a region; its operands are what the region gives."""

    name = "dmlc.yield"
    results = 0
    given = True


class MeshOp(Structural):
    """Names the device axes. `axes` lists them with sizes, first axis slowest."""

    name = "dmlc.mesh"
    results = 0
    given = True
    attributes = {"sym_name": REQUIRED, "axes": REQUIRED}


class Barrier(Structural):
    """`x`, not before `trigger` is there. cse, fold, fuse and schedule do not see through it."""

    name = "dmlc.barrier"
    torch = "{0}"
    effects = "order"
    no_vjp = "made after autodiff"

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return [types[0]]


class Reshard(Structural):
    """`x` in another sharding: an identity on the global program, replaced by collectives in `partition`."""

    name = "dmlc.reshard"
    rule = "... -> ..."
    linear = [{0}]
    torch = "{0}"
    attributes = {"to": REQUIRED}
    view = 0
    no_vjp = "made after autodiff"


class Window(Structural):
    """Global start and number of valid elements of this rank's part of a dim of `n` elements.

    Operands: n, then one index a nesting level (mesh axes, then the microbatch). `counts` holds the number of parts at each level.
    See `dmlc.ir.sharding.window`.
    """

    name = "dmlc.window"
    results = 2
    torch = "window({*}, counts={counts}, grain={grain})"
    attributes = {"counts": REQUIRED, "grain": 1}

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) != len(attrs["counts"]) + 1:
            raise InferError(f"'dmlc.window' has {len(types) - 1} indices but {len(attrs['counts'])} counts")
        return [INDEX, INDEX]


class ShardSlice(Structural):
    """`size` elements of dim `dim` of x from `start` on; what lies past the end is zero. No traffic."""

    name = "dmlc.shard_slice"
    torch = "shard_slice({0}, {1}, {dim}, {size})"
    attributes = {"dim": REQUIRED, "size": REQUIRED}

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        shape = list(types[0].shape)
        shape[attrs["dim"]] = attrs["size"]
        return [types[0].with_shape(shape)]


class MaskPad(Structural):
    """x with everything from `valid` on along `dim` set to `identity`: a combiner's name (its identity) or a number."""

    name = "dmlc.mask_pad"
    torch = "mask_pad({0}, {1}, {dim}, {identity})"
    attributes = {"dim": REQUIRED, "identity": REQUIRED}
    cost = "bytes"

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return [types[0]]


class RegionOp(Structural):
    """An op with regions; `interpret` and `codegen` have one function each for it."""

    given = True


class Microbatch(RegionOp):
    """`count` iterations of the region, whose argument is the iteration's index (i64); results are the sums of what it yields.

    `acc` names the dtype each result is accumulated in (the result's own when left out). Values from outside are captured.
    """

    name = "dmlc.microbatch"
    attributes = {"count": REQUIRED, "acc": (), "storage": ()}

    @classmethod
    def check(cls, op: Op) -> None:
        block = op.region.block
        if op.attrs["count"] < 1:
            raise DmlcError("'dmlc.microbatch' needs a count of at least 1", op.loc)
        if [a.type for a in block.args] != [INDEX]:
            raise DmlcError("the region of 'dmlc.microbatch' takes one tensor<i64>, the iteration's index", op.loc)
        _check_yield(op, block, len(op.results))


class Cond(RegionOp):
    """The first region when operand 0 (i1, rank 0) is true, else the second."""

    name = "dmlc.cond"

    @classmethod
    def check(cls, op: Op) -> None:
        if len(op.regions) != 2 or op.operands[0].type != TensorType((), "i1"):
            raise DmlcError("'dmlc.cond' takes a tensor<i1> and two regions", op.loc)
        for region in op.regions:
            _check_yield(op, region.block, len(op.results))


class Scan(RegionOp):
    """A loop of fixed length: region (index, carried...) -> carried...; operands are the carried values' starts."""

    name = "dmlc.scan"
    attributes = {"count": REQUIRED}

    @classmethod
    def check(cls, op: Op) -> None:
        block = op.region.block
        if [a.type for a in block.args] != [INDEX, *(v.type for v in op.operands)]:
            raise DmlcError("the region of 'dmlc.scan' takes the index and the carried values", op.loc)
        _check_yield(op, block, len(op.results))


class PipeSchedule(RegionOp):
    """One region a stage, in issue order; a rank runs the region of its coordinate on mesh axis `axis`."""

    name = "pipe.schedule"
    attributes = {"axis": REQUIRED}

    @classmethod
    def check(cls, op: Op) -> None:
        for region in op.regions:
            _check_yield(op, region.block, len(op.results))


def _check_yield(op: Op, block: Any, count: int) -> None:
    last = block.last
    if last is None or last.name != "dmlc.yield" or len(last.operands) != count:
        raise DmlcError(f"a region of '{op.name}' must end in a dmlc.yield of {count} values", op.loc)


def window_samples() -> list[Sample]:
    return [Sample((INDEX, INDEX), AttrDict(counts=(2,), grain=1), values=AttrDict({"0": lambda r, s, d: 7, "1": lambda r, s, d: 1}))]
