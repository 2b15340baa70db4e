"""Collectives between ranks, named by mesh axes; each has an asynchronous form whose future one `comm.wait` consumes."""

from __future__ import annotations

from dmlc.ir.core import Op
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import FutureType, TensorType
from dmlc.ops.base import REQUIRED, OpDef
from dmlc.ops.structural import COMBINERS, INDEX


class Comm(OpDef):
    """Base of all communication: effects `comm`, so nothing reorders, merges or drops it without a decision."""

    effects = "comm"
    same_dtype = False
    given = True
    cost = "free"
    no_vjp = "made after autodiff"


class AxisIndex(Comm):
    """This rank's index along mesh axis `axis` (i64, rank 0)."""

    name = "comm.axis_index"
    effects = ""
    attributes = {"axis": REQUIRED}

    @classmethod
    def check(cls, op: Op) -> None:
        if [r.type for r in op.results] != [INDEX]:
            raise DmlcError("'comm.axis_index' gives a tensor<i64>", op.loc)
        _check_axes(op, (op.attrs["axis"],))


def result_types_of(op: Op) -> tuple:
    """Types a collective delivers: its results, or what its future carries."""
    types = tuple(r.type for r in op.results)
    return types[0].types if len(types) == 1 and isinstance(types[0], FutureType) else types


def base_name(op: Op) -> str:
    """`comm.all_reduce` for `comm.all_reduce_start`."""
    return op.name.removesuffix("_start")


COLLECTIVES = ("comm.all_reduce", "comm.all_gather", "comm.reduce_scatter", "comm.all_to_all")


def is_collective(op: Op) -> bool:
    return base_name(op) in COLLECTIVES


def is_start(op: Op) -> bool:
    return op.name.endswith("_start") and op.dialect == "comm"


def _check_axes(op: Op, axes) -> Mesh:
    mesh = Mesh.around(op)
    for a in axes:
        if a not in mesh.sizes:
            raise DmlcError(f"'{op.name}' names the axis \"{a}\", but the mesh has {list(mesh.sizes)}", op.loc)
        if a not in mesh.device_axes:
            raise DmlcError(f"'{op.name}' names the axis \"{a}\", which runs in time: no ranks lie along it", op.loc)
    return mesh


class Collective(Comm):
    """Variadic: operand i becomes result i, all over the same axes."""

    @classmethod
    def check(cls, op: Op) -> None:
        mesh = _check_axes(op, op.attrs["axes"])
        for key in ("dims", "sizes", "grains", "split_dims", "split_sizes", "split_grains"):
            if len(op.attrs.get(key, op.operands)) != len(op.operands):
                raise DmlcError(f"'{op.name}' has {len(op.operands)} operands but {len(op.attrs[key])} {key}", op.loc)
        for i, v in enumerate(op.operands):
            cls.check_operand(op, i, v.tensor, mesh)
        expected = tuple(cls.delivered(op, i, v.tensor, mesh) for i, v in enumerate(op.operands))
        if op.attrs.get("combiner", "sum") not in COMBINERS:
            raise DmlcError(f"unknown combiner \"{op.attrs['combiner']}\"; it is one of {', '.join(COMBINERS)}", op.loc)
        if result_types_of(op) != expected:
            raise DmlcError(f"'{op.name}' delivers ({', '.join(map(str, expected))})", op.loc)
        if len({v.dtype for v in op.operands}) > 1:
            raise DmlcError(f"operands of '{op.name}' have different dtypes; a bucket holds one", op.loc)

    @staticmethod
    def check_operand(op: Op, index: int, operand: TensorType, mesh: Mesh) -> None:
        """Raise when operand `index` has another size than the attributes say."""

    @staticmethod
    def delivered(op: Op, index: int, operand: TensorType, mesh: Mesh) -> TensorType:
        """Type of result `index`."""
        raise AssertionError(op.name)


def _check_size(op: Op, operand: TensorType, dim: int, size: int) -> None:
    if operand.shape[dim] != size:
        raise DmlcError(f"'{op.name}' takes {size} elements along dim {dim}, but an operand is {operand}", op.loc)


def _check_part(op: Op, index: int, operand: TensorType, mesh: Mesh) -> None:
    """A gathered dim comes in parts of its size after the gather."""
    size = mesh.local_size(op.attrs["sizes"][index], op.attrs["axes"], op.attrs["grains"][index])
    _check_size(op, operand, op.attrs["dims"][index], size)


def delivered_types(op_name: str, attrs: dict, operands, mesh: Mesh) -> list[TensorType]:
    """Types a collective with these attributes gives: what builders pass as result types."""
    probe = Op(op_name, (), (), attrs)
    family = {"comm.all_reduce": AllReduce, "comm.all_gather": AllGather, "comm.reduce_scatter": ReduceScatter, "comm.all_to_all": AllToAll}[op_name.removesuffix("_start")]
    return [family.delivered(probe, i, t, mesh) for i, t in enumerate(operands)]


def _resized(operand: TensorType, dim: int, size: int) -> TensorType:
    shape = list(operand.shape)
    shape[dim] = size
    return operand.with_shape(shape)


class AllReduce(Collective):
    """Elementwise combination over the group."""

    name = "comm.all_reduce"
    attributes = {"axes": REQUIRED, "combiner": "sum"}

    @staticmethod
    def delivered(op: Op, index: int, operand: TensorType, mesh: Mesh) -> TensorType:
        return operand


class AllGather(Collective):
    """Parts of dim `dims[i]` joined in group order; `sizes[i]` elements remain of the joined dim (its padding is dropped)."""

    name = "comm.all_gather"
    attributes = {"axes": REQUIRED, "dims": REQUIRED, "sizes": REQUIRED, "grains": REQUIRED}
    check_operand = staticmethod(_check_part)

    @staticmethod
    def delivered(op: Op, index: int, operand: TensorType, mesh: Mesh) -> TensorType:
        return _resized(operand, op.attrs["dims"][index], op.attrs["sizes"][index])


class ReduceScatter(Collective):
    """Combined over the group; each rank keeps its part of dim `dims[i]`, which has `sizes[i]` elements before."""

    name = "comm.reduce_scatter"
    attributes = {"axes": REQUIRED, "combiner": "sum", "dims": REQUIRED, "sizes": REQUIRED, "grains": REQUIRED}

    @staticmethod
    def check_operand(op: Op, index: int, operand: TensorType, mesh: Mesh) -> None:
        _check_size(op, operand, op.attrs["dims"][index], op.attrs["sizes"][index])

    @staticmethod
    def delivered(op: Op, index: int, operand: TensorType, mesh: Mesh) -> TensorType:
        size = mesh.local_size(op.attrs["sizes"][index], op.attrs["axes"], op.attrs["grains"][index])
        return _resized(operand, op.attrs["dims"][index], size)


class AllToAll(Collective):
    """Splits dim `split_dims[i]` (of `split_sizes[i]` elements) over the group and joins dim `dims[i]` (to `sizes[i]` elements)."""

    name = "comm.all_to_all"
    attributes = {"axes": REQUIRED, "split_dims": REQUIRED, "split_sizes": REQUIRED, "split_grains": REQUIRED, "dims": REQUIRED, "sizes": REQUIRED, "grains": REQUIRED}

    @staticmethod
    def check_operand(op: Op, index: int, operand: TensorType, mesh: Mesh) -> None:
        _check_size(op, operand, op.attrs["split_dims"][index], op.attrs["split_sizes"][index])
        _check_part(op, index, operand, mesh)

    @staticmethod
    def delivered(op: Op, index: int, operand: TensorType, mesh: Mesh) -> TensorType:
        part = mesh.local_size(op.attrs["split_sizes"][index], op.attrs["axes"], op.attrs["split_grains"][index])
        return _resized(_resized(operand, op.attrs["split_dims"][index], part), op.attrs["dims"][index], op.attrs["sizes"][index])


def _asynchronous(base: type[Collective]) -> type[Collective]:
    """The `_start` form: same operands and attributes, one result that is a future of the delivered types."""
    return type(base.__name__ + "Start", (base,), {"name": base.name + "_start", "__doc__": f"Starts `{base.name}`.", "__module__": __name__})


AllReduceStart, AllGatherStart, ReduceScatterStart, AllToAllStart = map(_asynchronous, (AllReduce, AllGather, ReduceScatter, AllToAll))


class Wait(Comm):
    """What a future carries. Every future is waited for exactly once on every path."""

    name = "comm.wait"

    @classmethod
    def check(cls, op: Op) -> None:
        future = op.operands[0].type
        if not isinstance(future, FutureType) or tuple(r.type for r in op.results) != future.types:
            raise DmlcError("'comm.wait' takes a future and gives what it carries", op.loc)


class Send(Comm):
    """Sends the operand to the rank whose coordinate on `axis` is `to`; messages between two ranks with one `tag` keep their order."""

    name = "comm.send"
    results = 0
    attributes = {"axis": REQUIRED, "to": REQUIRED, "tag": 0}

    @classmethod
    def check(cls, op: Op) -> None:
        if len(op.operands) != 1 or op.results:
            raise DmlcError("'comm.send' takes one tensor and gives nothing", op.loc)
        _check_peer(op, "to")


class Recv(Comm):
    """Receives a tensor of the result's type from the rank whose coordinate on `axis` is `source`."""

    name = "comm.recv"
    attributes = {"axis": REQUIRED, "source": REQUIRED, "tag": 0}

    @classmethod
    def check(cls, op: Op) -> None:
        if op.operands or len(op.results) != 1:
            raise DmlcError("'comm.recv' takes nothing and gives one tensor", op.loc)
        _check_peer(op, "source")


def _check_peer(op: Op, key: str) -> None:
    """The other rank's coordinate lies on the axis."""
    size = _check_axes(op, (op.attrs["axis"],)).sizes[op.attrs["axis"]]
    if not 0 <= op.attrs[key] < size:
        raise DmlcError(f"'{op.name}' names coordinate {op.attrs[key]} of axis \"{op.attrs['axis']}\", which has {size}", op.loc)
