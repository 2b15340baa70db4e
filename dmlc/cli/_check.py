"""Comparing a compiled program with the original model on seeded inputs."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.open_sizes import OpenSizes
from dmlc.passmanager.check import relative_error, seeded_inputs

if TYPE_CHECKING:
    from dmlc.driver import Compiled


def compare_with_original(compiled: Compiled) -> dict[str, bytes]:
    """Interpret all ranks, compare with the original on two inputs, print spread and change; raise when they differ or nothing could."""
    from dmlc.codegen.pytorch import TOLERANCE

    reference = compiled.loaded.reference
    if reference is None:
        print("check: a text module has no original to compare with; the passes were compared with each other")
        return {}
    first, second = (inputs_for(compiled, seed) for seed in (0, 1))
    expected, other = reference(first), reference(second)
    refuse_vacuous(expected, other, compiled.loaded.source)
    worst = compared(compiled, first, expected, other)
    for numbers in other_sizes(compiled.module):
        first, second = (inputs_for(compiled, seed, numbers) for seed in (0, 1))
        print(f"check at {', '.join(f'{name} = {n}' for name, n in numbers.items())}:")
        worst = max(worst, compared(compiled, first, reference(first), reference(second)))
    allowed = TOLERANCE[compiled.module.attrs["dmlc.request"].get("precision", "fp32")]
    if not worst <= allowed:
        raise DmlcError(f"the compiled program differs from the original by {worst:.2e} of scale (allowed {allowed:.0e})", Loc(compiled.loaded.source))
    first = inputs_for(compiled, 0)
    return {"check_inputs.npz": _npz(first), "check_outputs.npz": _npz(expected)}


def compared(compiled: Compiled, inputs: dict[str, Any], expected: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of any output, of scale; a line for each."""
    from dmlc.interpret.run import run

    actual = run(compiled.module, inputs, weights=compiled.weights)
    worst = 0.0
    for name, want in expected.items():
        error = relative_error(want, actual[name])
        worst = max(worst, error)
        print(f"check: {name}: off by {error:.1e} of scale; {describe(want, other[name])}")
    return worst


def other_sizes(module: Module) -> list[dict[str, int]]:
    """Where sizes are open, two more choices of them: the least, and odd ones past the usual."""
    sizes = OpenSizes.of(module).sizes
    if not sizes:
        return []
    more = {name: min(s.like + 3 - s.like % 2, s.most if s.most is not None else s.like + 3) for name, s in sizes.items()}
    return [{name: s.least for name, s in sizes.items()}, more]


def inputs_for(compiled: Compiled, seed: int, numbers: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Seeded inputs that fit both the program and the original (integers stay inside what they index; floats are float32)."""
    import numpy

    arrays = seeded_inputs(compiled.module, seed, numbers)
    return {n: a.astype(numpy.float32) if a.dtype == numpy.float64 and compiled.module.main.arg(n).dtype != "f64" else a for n, a in arrays.items()}


def refuse_vacuous(first: dict[str, Any], second: dict[str, Any], source: str) -> None:
    """A comparison that cannot fail proves nothing: some output must depend on the input."""
    if all(relative_error(first[n], second[n]) < 1e-7 for n in first):
        raise DmlcError("the check would prove nothing: outputs don't depend on the input", Loc(source), ("give the model real weights, or leave --check out",))


def describe(want: Any, other: Any) -> str:
    import numpy

    spread = float(numpy.nanmax(want.astype(numpy.float64)) - numpy.nanmin(want.astype(numpy.float64))) if want.size else 0.0
    return f"spread {spread:.3g}, changes by {relative_error(want, other):.1e} of scale under another input"


def _npz(arrays: dict[str, Any]) -> bytes:
    """What numpy.savez writes, without the time of writing: the same arrays give the same bytes."""
    import zipfile

    import numpy

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                numpy.lib.format.write_array(file, numpy.asanyarray(array), allow_pickle=False)
    return buffer.getvalue()
