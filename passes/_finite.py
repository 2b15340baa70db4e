"""Which ops give finite numbers from finite ones, and the sign of what they give.

Signs: 0 unknown, 1 none is negative, 2 all are above some positive number. Overflow is left out of account: padding holds samples, or
what ops make of zeros, so it is as far from overflow as the valid elements are. What counts is a division by zero, a root or a
logarithm of a negative number: an op that could do that is in the lists only where the signs exclude it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dmlc.ir.core import Op


def _dmlc(names: str) -> frozenset[str]:
    return frozenset(f"dmlc.{name}" for name in names.split())


SAFE = _dmlc(
    "add sub mul neg abs relu gelu silu tanh sigmoid erf sin cos atan asinh sinh cosh exp exp2 expm1 softplus hardswish hardsigmoid mish elu leaky_relu clamp "
    "maximum minimum select cast floor ceil round trunc sign matmul linear contract conv conv_input_grad conv_weight_grad conv_transpose reshape transpose "
    "broadcast slice concat flip roll copy tril triu embedding take take_along index index_add reduce_sum reduce_prod reduce_max reduce_min cumsum softmax "
    "log_softmax logsumexp layer_norm layer_norm_grad layer_norm_weight_grad rms_norm group_norm batch_norm cross_entropy cross_entropy_grad gelu_grad silu_grad attention attention_grad attention_mask_grad dropout max_pool_grad max_pool_index_grad "
    "avg_pool avg_pool_grad max_pool resize relu_grad square_sum channel_moments batch_norm_sums batch_norm_rank_grad rank_moments mean_over_ranks running_part adaptive_avg_pool gradient barrier relayout iota dropout_mask random_uniform random_normal"
)  # fmt: skip
MOVES = _dmlc("reshape transpose broadcast slice flip roll copy barrier")
AS_OPERAND = _dmlc("cast reduce_sum reduce_prod reduce_max reduce_min cumsum floor")
NOT_NEGATIVE = _dmlc("abs relu exp exp2 sigmoid softplus hardsigmoid softmax cosh dropout_mask random_uniform")
LEAST = {"dmlc.sqrt": 1, "dmlc.rsqrt": 2, "dmlc.reciprocal": 2, "dmlc.log": 2, "dmlc.log2": 2, "dmlc.log1p": 1}  # signs that exclude what is not finite


def finite_sign(op: Op, signs: Sequence[int], nonzero: Sequence[bool]) -> int | None:
    """The sign of what `op` makes of finite operands with the given signs; None where it might not be finite. `nonzero[i]` says that operand i
    is a number other than zero, or one that valid elements are divided by too."""
    if op.name == "dmlc.div":
        return min(*signs, 1) if signs[1] == 2 or nonzero[1] else None
    if op.name == "dmlc.pad":
        return 0 if abs(op.attrs.get("value", 0)) < float("inf") else None
    if op.name in LEAST:
        return (0 if "log" in op.name else 1) if signs[0] >= LEAST[op.name] else None
    return _sign(op, signs) if op.name in SAFE else None


def _sign(op: Op, signs: Sequence[int]) -> int:
    if op.name in NOT_NEGATIVE:
        return 1
    if op.name == "dmlc.mul":
        return 1 if op.operands[0] is op.operands[1] or min(signs) >= 1 else 0
    if op.name == "dmlc.add":
        return max(signs) if min(signs) >= 1 else 0
    if op.name == "dmlc.maximum":
        return max(signs)
    if op.name == "dmlc.select":
        return min(signs[1:])
    return signs[0] if op.name in MOVES else min(signs[0], 1) if op.name in AS_OPERAND else 0
