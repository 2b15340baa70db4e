"""What kind of work an op is: by which a report sums up a step's time."""

from __future__ import annotations

from dmlc.ir.core import Op
from dmlc.ops.comm import base_name
from dmlc.simulate.categories import is_update
from dmlc.simulate.rows import is_traffic

# A kernel of several ops is of the first of these kinds that one of them is of.
COPIES = "copies around collectives"  # what calling, packing and unpacking takes of a rank
COMPUTATION = ("update", "attention", "convolution", "matmul", "reduction", "pointwise", "data movement", COPIES)
OF_FAMILY = {
    "matmul": ("contract", "linear", "matmul"),
    "convolution": ("conv",),
    "attention": ("attention",),
    "reduction": (
        *("reduce", "softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm", "batch_norm", "group_norm", "lrn", "cross_entropy"),
        *("argmax", "argmin", "cumsum", "cumprod", "sort", "topk", "max_pool", "avg_pool", "adaptive_avg_pool"),
    ),
    "data movement": (
        *("copy", "relayout", "reshape", "transpose", "broadcast", "concat", "slice", "flip", "roll", "pad", "resize", "shard_slice"),
        *("embedding", "index", "take", "scatter"),
    ),
}


def _family(name: str) -> str:
    """`conv_weight_grad` -> `conv`, `reduce_sum` -> `reduce`: the longest known beginning, else the name."""
    return max((f for families in OF_FAMILY.values() for f in families if name == f or name.startswith(f + "_")), key=len, default=name)


def kind_of(op: Op) -> str:
    """One of `COMPUTATION`; for traffic the collective ("all_reduce", "send"), also for what only waits for it ("wait")."""
    if op.name == "comm.wait":
        return "wait"
    if is_traffic(op):
        return base_name(op).removeprefix("comm.")
    if is_update(op):
        return "update"
    if op.name in ("kernel.fused", "kernel.call"):
        found = {kind_of(o) for o in body_of(op)}
        return next((kind for kind in COMPUTATION if kind in found), "pointwise")
    return _kind_of_name(op.name)


_KINDS: dict[str, str] = {}  # by op name


def _kind_of_name(name: str) -> str:
    if name not in _KINDS:
        family = _family(name.split(".", 1)[-1])
        _KINDS[name] = next((kind for kind, families in OF_FAMILY.items() if family in families), "pointwise")
    return _KINDS[name]


def body_of(op: Op) -> list[Op]:
    """The ops of a fused region, or of the function that a `kernel.call` names."""
    from dmlc.ops.kernel import find_kernel

    owner = op if op.regions else find_kernel(op)
    return [o for o in owner.region.block if o.name != "kernel.yield" and o.name != "func.return"]
