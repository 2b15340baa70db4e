"""Learning rates by step: a linear warm-up, then constant, linear or cosine decay to a final rate."""

import math

SCHEDULES = ("constant", "linear", "cosine")


def learning_rate(step, base, schedule="constant", warmup=0, total=0, final=0.0):
    """The rate of step `step` (counted from 0). During the first `warmup` steps it grows linearly and reaches `base` in the last of them;
    then it falls from `base` to `base * final`, which step `total` would have."""
    if step < warmup:
        return base * (step + 1) / warmup
    if schedule == "constant":
        return base
    done = min((step - warmup) / max(total - warmup, 1), 1.0)
    left = 1.0 - done if schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2
    return base * (final + (1.0 - final) * left)
