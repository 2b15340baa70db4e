"""layout: convolutions run channels-last where that pays.

`dmlc.layout = order` on a convolution says that it computes on images whose dims lie in that order. Pointwise ops, pools and
normalisations hand the order on, so a chain of convolutions converts its image once, at the entry (`dmlc.relayout`), and its weights
once, when they are loaded (`dmlc.layout` on the argument). What leaves a chain for an op that needs rows converts back there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dmlc.cost import CostModel
from dmlc.cost.cost import transfer
from dmlc.cost.model import type_bytes
from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, BlockArgument, Module, Op, Value
from dmlc.ops.base import definition, rule_of
from dmlc.passmanager import Context, Pass
from dmlc.simulate import Choice, UnitGraph
from dmlc.simulate.choice import regions_of

CHANNELS_LAST = (0, 2, 3, 1)
KEY = "dmlc.layout"
HALF = ("f16", "bf16")
CPU_GAIN = 15  # percent of a convolution's time that oneDNN saves on a channels-last image and weight (ResNet shapes, one thread: 15 to 25)


@dataclass(frozen=True)
class Layout(Pass):
    """Decides chain by chain; `force` takes every chain of two-dimensional convolutions."""

    name = "layout"
    numerics = "reordered"

    force: bool = False

    def run(self, module: Module, context: Context) -> bool:
        cost, choice = CostModel.of(module), Choice.of(module, order=False)
        for _, block in regions_of(module.main):
            if not any(map(is_convolution, block)):
                continue
            graph = UnitGraph(block, cost)
            choice = decide(graph, choice, cost, self.force)
            for chain in chains(graph):
                if chain[0].id not in choice.layout:
                    context.remark(chain[0], f"{len(chain)} convolutions stay row-major: channels-last would save less than the conversions at their borders take")
        return apply(module, choice)


# ---------------------------------------------------------------- decision


def decide(graph: UnitGraph, choice: Choice, cost: CostModel, force: bool = False) -> Choice:
    """Adds the layout of the convolutions for which another one pays."""
    layout = dict(choice.layout)
    for chain in chains(graph):
        if force or sum(_gain(op, cost) for op in chain) > sum(_conversion(v, cost) for v in borders(chain, cost)):
            layout.update({op.id: CHANNELS_LAST for op in chain if op.id not in layout})
    return choice.with_(layout=layout)


def is_convolution(op: Op) -> bool:
    return op.name == "dmlc.conv" and len(op.operands[0].shape) == 4


def hands_on(op: Op) -> bool:
    """Whether the result lies in memory as the first operand does: same rank, batch and channels in the same dims, not a view."""
    if is_convolution(op) or op.name in ("dmlc.max_pool", "dmlc.avg_pool", "dmlc.batch_norm"):
        return True
    if op.dialect != "dmlc" or op.regions or not op.operands or len(op.results) != 1:
        return False
    if definition(op).rule is None or definition(op).view is not None or definition(op).cost != "bytes":
        return False
    rule = rule_of(op)
    return op.results[0].type == op.operands[0].type and rule.operands[0] == rule.results[0] and not rule.whole


def chains(graph: UnitGraph) -> list[list[Op]]:
    """Convolutions connected by ops that hand the layout on, in program order."""
    home: dict[Op, Op] = {}

    def find(op: Op) -> Op:
        while home.setdefault(op, op) is not op:
            op = home[op]
        return op

    ops = [n.op for n in graph.nodes if hands_on(n.op)]
    for op in ops:
        for v in op.operands:
            if v.op is not None and v.op.block is op.block and hands_on(v.op):
                home[find(op)] = find(v.op)
    found: dict[Op, list[Op]] = {}
    for op in ops:
        if is_convolution(op):
            found.setdefault(find(op), []).append(op)
    return list(found.values())


def _is_trained(op: Op) -> bool:
    """Whether gradients read the image or the weight: on a processor they are slower channels-last than what the convolution saves."""
    return any(u.name in ("dmlc.conv_input_grad", "dmlc.conv_weight_grad") for v in op.operands for u in v.users)


def _gain(op: Op, cost: CostModel) -> int:
    """Picoseconds saved: on a CPU a share of the time; on tensor cores, which read channels-last only, the conversion of image and result."""
    if cost.cluster.device.kind == "cpu":
        return 0 if _is_trained(op) else cost.op(op).time * CPU_GAIN // 100
    if op.operands[0].dtype not in HALF:
        return 0
    return _conversion(op.operands[0], cost) + _conversion(op.result, cost)


def _conversion(value: Value, cost: CostModel) -> int:
    return transfer(2 * type_bytes(value.type), cost.cluster.device.bandwidth) + cost.cluster.device.launch


def borders(chain: Sequence[Op], cost: CostModel) -> list[Value]:
    """Values converted at a chain's edges. On a GPU what is not a convolution or pool becomes part of a generated kernel, which reads rows."""
    cpu = cost.cluster.device.kind == "cpu"

    def inside(op: Op | None) -> bool:
        return op is not None and hands_on(op) and (cpu or is_convolution(op) or op.name.endswith("_pool"))

    values = [op.operands[0] for op in chain if not inside(op.operands[0].op)]
    values += [op.result for op in chain if not all(inside(u) for u in op.result.users)]
    return list(dict.fromkeys(values))


# ---------------------------------------------------------------- application


def apply(module: Module, choice: Choice) -> bool:
    """Annotates the convolutions and their weights, and converts each image that enters a chain, once a region."""
    ids = IdPool(module.main)
    return any([_apply_block(block, choice, ids) for _, block in regions_of(module.main)])


def _apply_block(block: Block, choice: Choice, ids: IdPool) -> bool:
    marked = [op for op in block if op.id in choice.layout]
    converted: dict[Value, Value] = {}
    changed = False
    for op in marked:
        order = choice.layout[op.id]
        changed |= op.attrs.get(KEY) != order
        op.attrs[KEY] = order
        _mark_weight(op.operands[1], order, choice.layout)
        image = op.operands[0]
        if not _has_layout(image, order, choice.layout):
            if image not in converted:
                converted[image] = Builder.before(op, ids).emit("dmlc.relayout", image, order=order)
            op.set_operand(0, converted[image])
            changed = True
    return changed


def _mark_weight(weight: Value, order: tuple[int, ...], layout: AttrDict) -> None:
    """A weight that only such convolutions read is laid out when it is loaded."""
    if isinstance(weight, BlockArgument) and all(layout.get(u.id) == order for u in weight.users):
        weight.attrs[KEY] = order


def _has_layout(value: Value, order: tuple[int, ...], layout: AttrDict) -> bool:
    """Whether the value comes out of a convolution with this layout, through ops that hand it on."""
    op = value.op
    while op is not None and op.name != "dmlc.relayout" and not is_convolution(op):
        op = op.operands[0].op if hands_on(op) else None
    if op is None:
        return False
    return (op.attrs.get("order") if op.name == "dmlc.relayout" else layout.get(op.id)) == order
