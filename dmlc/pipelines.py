"""The named pipelines: ordered lists of passes, with a comment at each surprising place.

A name may stand in any pipeline text (`dmlc opt --passes 'simplify,plan'`).
"""

from __future__ import annotations

SIMPLIFY = (
    "canonicalize",
    "cse",
    "dce",
    "fold",
    "canonicalize",  # folded tables leave reshapes and casts of constants behind
    "cse",
    "dce",
)

INFERENCE = (
    *SIMPLIFY,
    "fold-batch-norm",
    "raise-composites",  # before unflatten: its patterns end where exporters flatten
    "unflatten",
    "unfuse-projections",
    "canonicalize",  # raised and unflattened ops leave pairs of transposes and reshapes
    "cse",
    "dce",
    "mixed-precision",  # nothing to do under fp32
    "fold",  # casts of weights become recipes that the loader evaluates once
    "dce",  # the weights as they were are arguments no longer, or plan would place them too
    "plan",
    "partition",
    "mask-elim",
    "canonicalize",
    "cse",
    "dce",
    "overlap-split",
    "layout",
    "fuse",
    "tensor-fusion",
    "tensor-partition",
    "schedule",  # after the buckets, since it orders their starts
    "plan-memory",
    "outline-kernels",  # last: the passes above look into fused regions
)

PIPELINES = {name: ",".join(passes) for name, passes in {"simplify": SIMPLIFY, "inference": INFERENCE}.items()}
