"""Operators that give a tensor another shape or order of dims."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dmlc.frontend.onnx.emit import as_list, broadcast_shape
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import op
from dmlc.frontend.onnx.values import Tensor
from dmlc.frontend.onnx.versions import REFINED, checked_sizes
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import SizesDiffer


@op("Reshape", 5, 13, 14, 19, *REFINED)
def reshape(n: Node) -> Tensor:
    return n.reshape(n[0], _target_shape(n.shape(0), n.ints(1, "the target shape"), bool(n.attr("allowzero", 0))))


@op("Reshape", 1)
def reshape_attribute(n: Node) -> Tensor:
    return n.reshape(n[0], _target_shape(n.shape(0), n.attr("shape", ()), False))


def _target_shape(source: Sequence[int], wanted: Sequence[int], allow_zero: bool) -> tuple[int, ...]:
    """0 copies the input's size unless allowzero is set; one -1 takes the rest."""
    if wanted.count(-1) > 1 or any(s < -1 for s in wanted) or (allow_zero and -1 in wanted and 0 in wanted):
        raise DmlcError(f"the target shape {list(wanted)} is not valid")
    target = list(wanted)
    for d, size_ in enumerate(wanted):
        if size_ == 0 and not allow_zero:
            if d >= len(source):
                raise DmlcError(f"the target shape {list(wanted)} copies dim {d}, which a tensor of shape {list(source)} does not have")
            target[d] = source[d]
    if -1 in target:
        rest, total = math.prod(s for s in target if s != -1), math.prod(source)
        if rest != 0 and not isinstance(total % rest, int):
            raise SizesDiffer.between(total // rest * rest, total, f"a tensor of shape {as_list(source)} cannot take the shape {as_list(wanted)}")
        if rest == 0 or total % rest:
            raise DmlcError(f"a tensor of shape {list(source)} cannot take the shape {list(wanted)}")
        target[target.index(-1)] = total // rest
    return tuple(target)


@op("Flatten", 1, 9, 11, 13, *REFINED)
def flatten(n: Node) -> Tensor:
    shape_ = n.shape(0)
    axis = n.attr("axis", 1)
    if not -len(shape_) <= axis <= len(shape_):
        raise DmlcError(f"axis {axis} is out of range for rank {len(shape_)}")
    axis += len(shape_) if axis < 0 else 0
    return n.reshape(n[0], (math.prod(shape_[:axis]), math.prod(shape_[axis:])))


@op("Squeeze", 1, 11)
def squeeze_attribute(n: Node) -> Tensor:
    return _squeeze(n, n.attr("axes", None))


@op("Squeeze", 13, *REFINED)
def squeeze(n: Node) -> Tensor:
    return _squeeze(n, n.ints(1, "the axes") if n.has(1) else None)


def _squeeze(n: Node, axes: Sequence[int] | None) -> Tensor:
    shape_ = n.shape(0)
    gone = n.axes(axes, len(shape_)) if axes is not None else tuple(d for d, s in enumerate(shape_) if s == 1)
    if any(shape_[d] != 1 for d in gone):
        raise DmlcError(f"dims {list(gone)} of a tensor of shape {list(shape_)} are not all 1")
    return n.reshape(n[0], [s for d, s in enumerate(shape_) if d not in gone])


@op("Unsqueeze", 1, 11)
def unsqueeze_attribute(n: Node) -> Tensor:
    return _unsqueeze(n, n.attr("axes"))


@op("Unsqueeze", 13, *REFINED)
def unsqueeze(n: Node) -> Tensor:
    return _unsqueeze(n, n.ints(1, "the axes"))


def _unsqueeze(n: Node, axes: Sequence[int]) -> Tensor:
    rank = n.rank(0) + len(axes)
    new, rest = n.axes(axes, rank), iter(n.shape(0))
    return n.reshape(n[0], [1 if d in new else next(rest) for d in range(rank)])


@op("Transpose", 1, 13, *REFINED)
def transpose(n: Node) -> Tensor:
    rank = n.rank(0)
    perm = n.attr("perm", tuple(reversed(range(rank))))
    if sorted(perm) != list(range(rank)):
        raise DmlcError(f"perm {list(perm)} is not a permutation of {rank} dims")
    return n.transpose(n[0], perm)


@op("Expand", 8, 13)
def expand(n: Node) -> Tensor:
    return n.broadcast(n[0], broadcast_shape([n.shape(0), checked_sizes(n.ints(1, "the shape"))]))


@op("Tile", 6, 13)
def tile(n: Node) -> Tensor:
    """Each repeated dim d becomes (r, d): a view, a broadcast and a view."""
    repeats, shape_ = checked_sizes(n.ints(1, "the repeats")), n.shape(0)
    if len(repeats) != len(shape_):
        raise DmlcError(f"{len(repeats)} repeats for a tensor of rank {len(shape_)}")
    split = [s for r, d in zip(repeats, shape_) for s in ((1, d) if r != 1 else (d,))]
    wide = [s for r, d in zip(repeats, shape_) for s in ((r, d) if r != 1 else (d,))]
    return n.reshape(n.broadcast(n.reshape(n[0], split), wide), [r * d for r, d in zip(repeats, shape_)])


@op("DepthToSpace", 1, 11, 13, 28)
def depth_to_space(n: Node) -> Tensor:
    b, c, h, w = n.shape(0)
    block = n.attr("blocksize")
    if block < 1 or c % (block * block):
        raise DmlcError(f"{c} channels do not split by a block of {block}")
    rest = c // (block * block)
    if n.attr("mode", "DCR") == "DCR":
        x = n.transpose(n.reshape(n[0], (b, block, block, rest, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        x = n.transpose(n.reshape(n[0], (b, rest, block, block, h, w)), (0, 1, 4, 2, 5, 3))
    return n.reshape(x, (b, rest, h * block, w * block))


@op("SpaceToDepth", 1, 13, 28)
def space_to_depth(n: Node) -> Tensor:
    b, c, h, w = n.shape(0)
    block = n.attr("blocksize")
    if block < 1 or h % block or w % block:
        raise DmlcError(f"{h} x {w} does not split by a block of {block}")
    x = n.transpose(n.reshape(n[0], (b, c, h // block, block, w // block, block)), (0, 3, 5, 1, 2, 4) if n.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4))
    return n.reshape(x, (b, c * block * block, h // block, w // block))
