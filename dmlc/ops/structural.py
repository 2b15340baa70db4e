"""Ops that give a program its structure: functions, regions, windows of sharded dims, barriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Block, Op
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType, Type
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample

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
    view = 0
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

    An operand (i64, rank 0), if there is one, is the number of iterations at run time, from 0 on: `count` is then the one planned with. Sums
    over no iteration are zero. `acc` names the dtype each result is accumulated in (the result's own when left out). Values from
    outside are captured.
    """

    name = "dmlc.microbatch"
    attributes = {"count": REQUIRED, "acc": (), "storage": ()}

    @classmethod
    def check(cls, op: Op) -> None:
        block = op.region.block
        if op.attrs["count"] < (0 if op.operands else 1):
            raise DmlcError("'dmlc.microbatch' needs a count of at least 1", op.loc)
        if [v.type for v in op.operands] not in ([], [INDEX]):
            raise DmlcError("'dmlc.microbatch' takes no operand or the number of iterations, a tensor<i64>", op.loc)
        if [a.type for a in block.args] != [INDEX]:
            raise DmlcError("the region of 'dmlc.microbatch' takes one tensor<i64>, the iteration's index", op.loc)
        acc = op.attrs.get("acc", ())
        if acc and len(acc) != len(op.results):
            raise DmlcError(f"'dmlc.microbatch' has {len(op.results)} results but {len(acc)} accumulators", op.loc)
        check_yield(op, block, any_dtype=bool(acc))


class PipeSchedule(RegionOp):
    """One region a stage, in issue order; a rank runs the region of its coordinate on mesh axis `axis`."""

    name = "pipe.schedule"
    attributes = {"axis": REQUIRED}

    @classmethod
    def check(cls, op: Op) -> None:
        axis = op.attrs["axis"]
        stages = Mesh.around(op).sizes.get(axis)
        if stages is None:
            raise DmlcError(f"'pipe.schedule' names the axis \"{axis}\", which the mesh has not", op.loc)
        if len(op.regions) != stages:
            raise DmlcError(f"'pipe.schedule' has {len(op.regions)} regions for {stages} stages of axis \"{axis}\"", op.loc)
        for region in op.regions:
            check_yield(op, region.block)


def check_yield(op: Op, block: Block, any_dtype: bool = False, types: Sequence[Type] | None = None) -> None:
    """The region gives one value of each of `types`, the results' if not given (`any_dtype`: it is cast to the result's dtype)."""
    last = block.last
    wanted = [r.type for r in op.results] if types is None else types
    if last is None or last.name != "dmlc.yield" or len(last.operands) != len(wanted):
        raise DmlcError(f"a region of '{op.name}' must end in a dmlc.yield of {len(wanted)} values", op.loc)
    for given, type_ in zip(last.operands, wanted):
        if (given.shape != getattr(type_, "shape", None)) if any_dtype else (given.type != type_):
            raise DmlcError(f"a region of '{op.name}' yields {given.type} for a result of {type_}", last.loc if last.loc.known else op.loc)


def window_samples() -> list[Sample]:
    return [Sample((INDEX, INDEX), AttrDict(counts=(2,), grain=1), values=AttrDict({"0": lambda r, s, d: 7, "1": lambda r, s, d: 1}))]
