"""sparse-gradients: the sum over ranks of a table that few rows were added to becomes a gather of those rows.

Before: all_reduce(dense + index_add(rows, ids)).   After: all_reduce(dense) + index_add(all_gather(rows), all_gather(ids)).
The gradient of an embedding is such a table (Parallax, EuroSys 2019; Horovod's sparse gradients): a rank looked up only the tokens of its samples.
Where the table is also the output projection (tied weights), the other part of its gradient is ready when the backward pass begins and is
sent during it, while the whole would be ready at its end. Each table is decided alone, and kept where the simulated program gets shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dmlc.cost import CostModel
from dmlc.cost.model import bytes_of
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, Module, Op, Value
from dmlc.ir.sharding import Mesh
from dmlc.ops.comm import delivered_types
from dmlc.passes.overlap_split import copy_of
from dmlc.passmanager import Context, Pass
from dmlc.simulate import UnitGraph
from dmlc.simulate.choice import regions_of
from dmlc.simulate.ordering import price


@dataclass(frozen=True)
class SparseGradients(Pass):
    """`force` gathers rows wherever it can be done, even if the simulation sees no gain."""

    name = "sparse-gradients"
    numerics = "reordered"
    requires = ("partitioned",)

    force: bool = False

    def run(self, module: Module, context: Context) -> bool:
        cost = CostModel.of(module)
        changed = False
        for _, block in regions_of(module.main):
            for reduction in [op for op in block if rows_in(op) is not None]:
                if self.force or is_shorter(block, reduction, cost):
                    gather_rows(reduction)
                    changed = True
                else:
                    context.remark(reduction, "rows not gathered: the program would not get shorter")
        return changed


def rows_in(reduction: Op) -> Op | None:
    """The `index_add` that a sum over ranks adds to a table, through sums that nothing else reads; None when there is none."""
    if reduction.name != "comm.all_reduce" or len(reduction.operands) != 1 or reduction.attrs["combiner"] != "sum":
        return None
    return next(_terms(reduction.operands[0], reduction.block), None)


def _terms(value: Value, block: Block | None) -> Iterator[Op]:
    op = value.op
    if op is None or op.block is not block or len(value.uses) != 1:
        return
    if op.name == "dmlc.add":
        for operand in op.operands:
            if operand.type == value.type:
                yield from _terms(operand, block)
    elif op.name == "dmlc.index_add" and all(ids.shape and op.operands[0].shape[: len(ids.shape)] == ids.shape for ids in op.operands[1:]):
        yield op


def is_shorter(block: Block, reduction: Op, cost: CostModel) -> bool:
    """Whether the simulated program gets shorter, after a look at the bytes: a gather that takes as long as the reduction cannot help."""
    added, mesh, axes = rows_in(reduction), Mesh.around(reduction), reduction.attrs["axes"]
    assert added is not None
    gathers = sum(cost.collective("all_gather", bytes_of([v]) * mesh.extent(axes), axes, mesh).time for v in added.operands)
    if gathers >= cost.op(reduction).time:
        return False
    copy = copy_of(block)
    gather_rows(next(op for op in copy if op.id == reduction.id))
    return price(UnitGraph(copy, cost).units()) < price(UnitGraph(block, cost).units())


def gather_rows(reduction: Op) -> None:
    """Rewrites the reduction; its table's other parts are reduced as before."""
    added, axes = rows_in(reduction), reduction.attrs["axes"]
    assert added is not None
    b = Builder.after(added)
    gathered = [_gathered(b, value, axes) for value in added.operands]
    rows = b.emit("dmlc.index_add", *gathered, types=[added.result.tensor], tag="rows")
    b = Builder.after(reduction)
    if reduction.operands[0] is added.result:
        reduction.replace([rows])
    else:
        (addition,) = added.result.users
        addition.replace([next(v for v in addition.operands if v is not added.result)])
        total = reduction.results[0]
        whole = b.op("dmlc.add", [total, rows], tag="add")
        total.replace_uses(whole.result, lambda user: user is not whole)
    added.erase()


def _gathered(b: Builder, value: Value, axes: tuple[str, ...]) -> Value:
    """The ranks' values joined along the first dim, padding and all: a padded row was added on its own rank too."""
    mesh = Mesh.around(b.block.terminator)
    attrs = {"axes": axes, "dims": (0,), "sizes": (value.shape[0] * mesh.extent(axes),), "grains": (1,)}
    return b.op("comm.all_gather", [value], attrs, delivered_types("comm.all_gather", attrs, [value.tensor], mesh), tag="gather").result
