"""Does a pass keep the program's meaning? Both programs are interpreted on the same seeded inputs and compared.

Exact and reordered passes: every float promoted to float64, agreement within 1e-9 of the output's scale. Passes that lower the precision:
the program as typed stays within twice the error that PyTorch's autocast makes on the program before, both against float64.
"""

from __future__ import annotations

from typing import Any, cast

from dmlc.interpret.run import run
from dmlc.ir.core import BlockArgument, Module, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.registry import lookup
from dmlc.ir.weights import NUMPY, WeightStore
from dmlc.ops.base import index_of

TOLERANCE = 1e-9
Arrays = dict[str, Any]


def compare(before: Module, after: Module, numerics: str, weights: WeightStore | None = None, seed: int = 0, only_common: bool = False) -> str:
    """One line on how the outputs agree. Raises `DmlcError` naming the first output that does not.

    `only_common`: outputs may come and go, and the program may have new inputs; what both give is compared.
    """
    inputs = seeded_inputs(before, seed)
    expected = run(before, inputs, seed, "f64", weights)
    if numerics == "lower-precision":
        return _compare_lower(before, after, inputs, expected, weights, seed)
    actual = run(after, {**seeded_inputs(after, seed), **inputs} if only_common else inputs, seed, "f64", weights)
    if only_common:
        expected = {name: value for name, value in expected.items() if name in actual}
        if not expected:
            return "the program returns nothing that it returned before"
    else:
        _same_names(expected, actual)
    worst = 0.0
    for name, reference in expected.items():
        error = relative_error(reference, actual[name])
        if error > TOLERANCE:
            raise DmlcError(f"the output '{name}' changed by {error:.3g} of its scale", after.main.op.loc)
        worst = max(worst, error)
    return f"{len(expected)} outputs agree to {worst:.1e} of scale"


def _compare_lower(before: Module, after: Module, inputs: Arrays, expected: Arrays, weights: WeightStore | None, seed: int) -> str:
    import torch

    with torch.autocast("cpu", torch.bfloat16):
        autocast = run(before, inputs, seed, None, weights)
    actual = run(after, inputs, seed, None, weights)
    _same_names(expected, actual)
    worst = 0.0
    for name, reference in expected.items():
        error, allowed = relative_error(reference, actual[name]), 2 * relative_error(reference, autocast[name])
        if error > max(allowed, 1e-6):
            raise DmlcError(f"the output '{name}' is off by {error:.3g} of its scale, more than twice autocast's {allowed / 2:.3g}", after.main.op.loc)
        worst = max(worst, error)
    return f"{len(expected)} outputs within twice autocast's error, at most {worst:.1e} of scale"


def _same_names(expected: Arrays, actual: Arrays) -> None:
    if list(expected) != list(actual):
        raise DmlcError(f"the outputs were {', '.join(expected)} and are now {', '.join(actual)}")


def relative_error(reference: Any, actual: Any) -> float:
    """Largest difference over the largest finite magnitude of the reference (infinite when shapes or non-finite values differ)."""
    import numpy

    reference, actual = numpy.asarray(reference), numpy.asarray(actual)
    if reference.shape != actual.shape:
        return float("inf")
    if reference.size == 0:
        return 0.0
    if reference.dtype.kind != "f" and actual.dtype.kind != "f":
        return 0.0 if numpy.array_equal(reference, actual) else float("inf")
    reference, actual = reference.astype(numpy.float64), actual.astype(numpy.float64)
    finite = numpy.isfinite(reference)
    if not numpy.array_equal(reference[~finite], actual[~finite], equal_nan=True) or not numpy.isfinite(actual[finite]).all():
        return float("inf")
    scale = numpy.abs(reference[finite]).max(initial=0.0)
    worst = numpy.abs(reference[finite] - actual[finite]).max(initial=0.0)
    return float(worst / scale) if scale else float(worst)


# ---------------------------------------------------------------- inputs


def seeded_inputs(module: Module, seed: int = 0) -> Arrays:
    """A reproducible array for every input of the program: normal floats, integers that stay inside what they index."""
    import numpy

    generator = numpy.random.default_rng(seed)
    return {a.name: _seeded(a, generator) for a in module.main.args if a.attrs.get("dmlc.role", "input") == "input" and "dmlc.derived" not in a.attrs}


def _seeded(arg: BlockArgument, generator: Any) -> Any:
    shape = _global_shape(arg)
    if not all(isinstance(n, int) for n in shape):
        raise DmlcError(f"sizes of %{arg.name} are not known; bind them before checking")
    if arg.tensor.is_float:
        return generator.standard_normal(shape)
    if arg.dtype == "i1":
        return generator.random(shape) < 0.5
    low, high = arg.attrs.get("dmlc.range", (0, _index_bound(arg)))
    return generator.integers(low, max(high, low + 1), shape).astype(NUMPY[arg.dtype])


def _global_shape(arg: BlockArgument) -> tuple[Any, ...]:
    return tuple(arg.attrs.get("dmlc.global", arg.shape))


def _index_bound(arg: BlockArgument) -> int:
    """The smallest dim that the values of an integer argument index, here or through other ops (16 when they index nothing)."""
    bound, seen = 16, {cast(Value, arg): None}
    todo: list[Value] = [arg]
    while todo:
        value = todo.pop()
        for op, position in list(value.uses):
            if lookup(op.name) is not None and position in index_of(op):
                bound = min([bound, *_indexed_sizes(op.operands[0])])
            for result in op.results:
                if result not in seen and getattr(result.type, "dtype", "").startswith("i"):
                    seen[result] = None
                    todo.append(result)
    return bound


def _indexed_sizes(table: Value) -> list[int]:
    return [n for n in table.shape if isinstance(n, int) and n > 1]
