"""Numbers in `fold`: stored scalars become `dmlc.full`, and elementwise arithmetic on such constants gives another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import BlockArgument, Function, Op, Value
from dmlc.ir.registry import lookup
from dmlc.ir.types import FLOATS, TensorType
from dmlc.ir.weights import NUMPY, WeightStore
from dmlc.ops.pointwise import Pointwise
from dmlc.passes._canonical import uniform


def inline_scalars(main: Function, weights: WeightStore) -> bool:
    """A stored constant of one element becomes a `dmlc.full` where the bytes are at hand and Python can say the number."""
    found = [(a, _stored_number(a, weights)) for a in main.args if a.uses]
    found = [(a, number) for a, number in found if number is not None]
    b = Builder(main.body, main.body.first, IdPool(main))
    for arg, number in found:
        name = {"dmlc.name": arg.attrs["dmlc.name"]} if "dmlc.name" in arg.attrs else {}
        arg.replace_uses(b.op("dmlc.full", (), {"value": number, **name}, [arg.type]).result)
    return bool(found)


def _stored_number(arg: BlockArgument, weights: WeightStore) -> Any:
    stored = arg.attrs.get("dmlc.value")
    if arg.attrs.get("dmlc.role") != "const" or arg.attrs.get("dmlc.overridable") or stored is None or stored.key not in weights:
        return None
    if not arg.tensor.is_static or arg.tensor.numel != 1 or arg.dtype not in ("f64", "f32", "f16", "i64", "i32", "i16", "i8", "ui8", "i1"):
        return None
    return weights.get(stored.key).reshape(-1)[0].item()


def fold_uniform(main: Function) -> bool:
    """Pointwise ops whose operands are all single numbers, where numpy gives the same bits as the program."""
    ids = IdPool(main)
    folded = [_fold_op(op, ids) for op in main.ops()]
    return any(folded)


def _fold_op(op: Op, ids: IdPool) -> bool:
    definition = lookup(op.name)
    if definition is None or not issubclass(definition, Pointwise) or definition.fold is None or len(op.results) != 1:
        return False
    numbers = [uniform(v) for v in op.operands]
    if not numbers or None in numbers:
        return False
    number = _evaluate(op, numbers)
    if number is None:
        return False
    annotations = {k: v for k, v in op.attrs.items() if "." in k}
    full = Builder.before(op, ids).op("dmlc.full", (), {"value": number, **annotations}, [op.result.type])
    op.replace(full.results)
    return True


def _evaluate(op: Op, numbers: list[Any]) -> Any:
    """The number that the op gives, or None when it does not fold, or rounds: the program's own rounding is left to the program."""
    if any(v.dtype in ("bf16", "f8E4M3FN", "f8E5M2") for v in [*op.operands, op.result]):
        return None
    typed, wide = _evaluate_as(op, numbers, lambda dtype: dtype), _evaluate_as(op, numbers, lambda dtype: "f64" if dtype in FLOATS else dtype)
    return typed if typed is not None and typed == wide else None


def _evaluate_as(op: Op, numbers: list[Any], dtype: Callable[[str], str]) -> Any:
    """The number that a rank-0 copy of the op gives in other dtypes."""
    import numpy

    operands = [Value(TensorType((), dtype(v.dtype))) for v in op.operands]
    arrays = [numpy.asarray(n, NUMPY[v.dtype]) for n, v in zip(numbers, operands)]
    scalar = Op(op.name, operands, [TensorType((), dtype(op.result.dtype))], {k: v for k, v in op.attrs.items() if "." not in k})
    result = lookup(op.name).fold(scalar, arrays)
    return None if result is None else result[0].item()
