"""The named pipelines: ordered lists of passes, with a comment at each surprising place.

A name may stand in any pipeline text (`dmlc opt --passes 'simplify,plan'`).
"""

from __future__ import annotations

SIMPLIFY = (
    "canonicalize",
    "cse",
    "dce",
    "hoist",  # what a loop makes of weights alone can be folded then
    "fold",
    "canonicalize",  # folded tables leave reshapes and casts of constants behind
    "cse",
    "dce",
)

PASSES = (
    "fuse",
    "tensor-fusion",
    "tensor-partition",
    "schedule",  # after the buckets, since it orders their starts
)

JOINT = (
    "joint",  # decides what the four would; they carry it out
    "fuse{given}",
    "tensor-fusion{given}",
    "tensor-partition{given}",  # for chunks that somebody writes into a dump: joint's own are made
    "schedule{given}",
)

PER_RANK = (
    "mask-elim",
    "canonicalize",
    "cse",
    "dce",
    "sparse-gradients",
    "overlap-split",
    "layout",
    *PASSES,
    "plan-memory",
    "outline-kernels",  # last: the passes above look into fused regions
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
    "hoist",  # casts of weights leave the loops
    "fold",  # casts of weights become recipes that the loader evaluates once
    "dce",  # the weights as they were are arguments no longer, or plan would place them too
    "isolate",  # or plan would not see what loops and branches read
    "plan",
    "partition",
    *PER_RANK,
)

GLOBAL = (
    *SIMPLIFY,  # under training, fold reads constants only: parameters change
    "raise-composites",
    "unflatten",
    "unfuse-projections",  # the parts are trained, and put together again when weights are exported
    "canonicalize",
    "cse",
    "dce",
    "loss",
)

TRAINING = (
    *GLOBAL,
    "autodiff",
    "optimizer",
    "canonicalize",  # gradients leave broadcasts of ones and sums over dims of size 1
    "cse",
    "dce",
    "mixed-precision",
    "hoist",
    "isolate",
    "plan",
    "decouple",  # only with --decouple
    "recompute",  # on the whole program, where a segment is a stretch of ops; partition places a clone as it places the op
    "partition",  # makes the loop over microbatches too
    *PER_RANK,
)

EVALUATION = (
    *GLOBAL,
    "canonicalize",
    "cse",
    "dce",
    "mixed-precision",
    "hoist",
    "isolate",
    "plan",
    "partition",
    *PER_RANK,
)  # weights lie where the training program has them

# What is decided per rank, one decision more in each line: for `dmlc compile --ablation` and tools/bench_joint.py.
ABLATION = {
    "none": (),  # every collective where the program has it, waited for at once
    "buckets": ("tensor-fusion",),
    "+ partition": ("tensor-fusion", "tensor-partition"),
    "+ order": ("tensor-fusion", "tensor-partition", "schedule"),
    "+ fusion": PASSES,
    "joint": JOINT,
}


def deciding(pipeline: tuple[str, ...], by: tuple[str, ...]) -> str:
    """A pipeline's text with `by` in place of the passes that decide groups, buckets, chunks and order one after another."""
    at = pipeline.index(PASSES[0])
    return ",".join((*pipeline[:at], *by, *pipeline[at + len(PASSES) :]))


USUAL = {"inference": INFERENCE, "training": TRAINING, "evaluation": EVALUATION}

PIPELINES = {"simplify": ",".join(SIMPLIFY)} | {name: ",".join(passes) for name, passes in USUAL.items()}
PIPELINES |= {f"{name}-joint": deciding(passes, JOINT) for name, passes in USUAL.items()}
