"""Does a pass keep the program's meaning? Both programs are interpreted on the same seeded inputs and compared.

Exact and reordered passes: every float promoted to float64, agreement within 1e-9 of the output's scale. Passes that lower the precision:
the program as typed stays within twice the error that PyTorch's autocast makes on the program before, both against float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from dmlc.interpret.run import run
from dmlc.ir.core import BlockArgument, Module, Value
from dmlc.ir.dims import substitute
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import OpenSizes
from dmlc.ir.registry import lookup
from dmlc.ir.weights import NUMPY, WeightStore
from dmlc.ops.base import index_of

TOLERANCE = 1e-9
UNBOUNDED = 16  # integers that index nothing are drawn below this
Arrays = dict[str, Any]


def compare(before: Module, after: Module, numerics: str, weights: WeightStore | None = None, seed: int = 0, only_common: bool = False) -> str:
    """One line on how the outputs agree. Raises `DmlcError` naming the first output that does not.

    `only_common`: outputs may come and go, and the program may have new inputs; what both give is compared.
    """
    if other_statistics(before, after):
        return "not compared: its batch norms take the statistics of each microbatch or rank from here on"
    inputs = {**seeded_inputs(before, seed), **sizes_of(before)}
    expected = run(before, inputs, seed, "f64", weights)
    if numerics == "lower-precision":
        return _compare_lower(before, after, inputs, expected, weights, seed)
    actual = run(after, taken_by(after, {**seeded_inputs(after, seed), **inputs} if only_common else inputs), seed, "f64", weights)
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


def seeded_inputs(module: Module, seed: int = 0, numbers: Mapping[str, int] | None = None) -> Arrays:
    """A reproducible array for every input of the program: normal floats, integers that stay inside what they index. Open sizes are as `numbers`
    says, else the representative ones."""
    import numpy

    generator = numpy.random.default_rng(seed)
    usual = {name: size.like for name, size in OpenSizes.of(module).sizes.items()} | dict(numbers or {})
    return {a.name: _seeded(a, generator, usual) for a in module.main.args if a.attrs.get("dmlc.role", "input") == "input" and "dmlc.derived" not in a.attrs}


def other_statistics(before: Module, after: Module) -> bool:
    """Whether splitting a training step changes what its batch norms compute, which then depends on the split by definition."""
    if "dmlc.spmd" in before.attrs or "dmlc.spmd" not in after.attrs or not any(op.name == "dmlc.batch_norm_train" for op in before.main.ops()):
        return False
    return after.attrs.get("dmlc.train", {}).get("batch_norm") == "rank" or sizes_of(after).get("microbatches", 1) > 1


def sizes_of(module: Module) -> Arrays:
    """The run-time sizes of a training step that is split over microbatches: what it is planned for."""
    names = {a.name for a in module.main.args if a.attrs.get("dmlc.role") == "size"}
    batch = next((a for a in module.main.args if "dmlc.micro" in a.attrs), None)
    if batch is None:
        return {}
    shape = _global_shape(batch)
    sizes = {"batch_size": shape[0] * shape[batch.attrs.get("dmlc.batch_dim", 0) + 1], "microbatches": shape[0]}
    return {name: n for name, n in sizes.items() if name in names}


def taken_by(module: Module, inputs: Arrays) -> Arrays:
    """The inputs of a step as the module takes them: where it works by microbatches, [...] as [microbatches, rows of one, ...]."""
    import numpy

    found, sizes = dict(inputs), sizes_of(module)
    for arg in module.main.args:
        if "dmlc.micro" not in arg.attrs or numpy.ndim(inputs[arg.name]) == arg.tensor.rank:
            continue
        array, dim, shape = inputs[arg.name], arg.attrs.get("dmlc.batch_dim", 0), _global_shape(arg)
        count, rows = shape[0], shape[dim + 1]
        if "batch_size" in sizes:  # a batch whose samples meet is not cut, and always full
            sizes["batch_size"] = array.shape[dim]
        padded = numpy.zeros((*array.shape[:dim], count * rows, *array.shape[dim + 1 :]), array.dtype)
        padded[(slice(None),) * dim + (slice(array.shape[dim]),)] = array
        found[arg.name] = numpy.moveaxis(padded.reshape((*array.shape[:dim], count, rows, *array.shape[dim + 1 :])), dim, 0)
    return {**found, **sizes}


def _seeded(arg: BlockArgument, generator: Any, numbers: Mapping[str, int]) -> Any:
    shape = tuple(substitute(n, numbers) for n in _global_shape(arg))
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
    """What the values of an integer argument stay below so that they are valid wherever they index."""
    return indexed(arg) or UNBOUNDED


def indexed(arg: BlockArgument) -> int | None:
    """The smallest dim that the values of an integer argument index, classes among them; None when they index nothing."""
    sizes: list[int] = []
    seen = {cast(Value, arg): None}
    todo: list[Value] = [arg]
    while todo:
        value = todo.pop()
        for op, position in list(value.uses):
            if lookup(op.name) is not None and position in index_of(op):
                sizes += _indexed_sizes(op.operands[0])
            if op.name == "dmlc.cross_entropy" and position == 1:
                sizes += _indexed_sizes(op.operands[0])[-1:]
            for result in op.results:
                if result not in seen and getattr(result.type, "dtype", "").startswith("i"):
                    seen[result] = None
                    todo.append(result)
    return min(sizes, default=None)


def _indexed_sizes(table: Value) -> list[int]:
    return [n for n in table.shape if isinstance(n, int) and n > 1]
