"""The models of the whole-model tests: each is imported once a session and compiled once a plan."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from dmlc import driver
from dmlc.cli._check import inputs_for
from dmlc.codegen.folder import write_folder
from dmlc.codegen.triton_source import emit_kernels
from dmlc.interpret.run import run
from dmlc.passmanager.check import relative_error

TRANSFORMERS = ("gpt2", "llama", "bert", "vit")
PLANS = ("auto", "dp=8", "tp=8", "dp=2,tp=4")


@functools.cache
def loaded(source: str, shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()) -> driver.Loaded:
    """A model as `dmlc compile` names it, imported with its sizes chosen for 8 devices."""
    return driver.load(source, driver.Options(devices=8, shapes=dict(shapes)))


def compile_copy(model: driver.Loaded, **options: Any) -> driver.Compiled:
    """Compile a copy, so that the imported module stays as it is."""
    return driver.compile_model(replace(model, module=model.module.clone()), driver.Options(**{"devices": 8, **options}))


def inputs_of(model: driver.Loaded, compiled: driver.Compiled, seed: int = 0) -> dict[str, Any]:
    """The builder's example, else seeded values that fit."""
    return dict(model.examples) or inputs_for(compiled, seed)


def emit(compiled: driver.Compiled, out: Path) -> Path:
    """The output folder, without the kernels' report."""
    kernels = emit_kernels(compiled.module) if any(op.name == "kernel.call" for op in compiled.module.main.ops()) else None
    write_folder(compiled.module, out, driver.final_weights(compiled), driver.plan_record(compiled), compiled.loaded.source, kernels)
    return out


def in_double(module: Any, weights: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """All ranks interpreted with every float as float64."""
    return run(module, inputs, promote="f64", weights=weights)


def difference(expected: dict[str, Any], actual: dict[str, Any]) -> float:
    """The largest difference over the outputs, in parts of each output's scale."""
    assert list(expected) == list(actual)
    return max(relative_error(want, actual[name]) for name, want in expected.items())
