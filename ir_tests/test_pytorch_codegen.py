"""The emitted PyTorch program of hand-written per-rank modules, run on ranks, gives what the interpreter gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_pool import shared_pool

import dmlc.ops  # noqa: F401
from dmlc.codegen.copied import prelude_text
from dmlc.codegen.folder import write_folder
from dmlc.codegen.pytorch import emit_model
from dmlc.interpret.arguments import Arguments, global_type
from dmlc.interpret.run import run
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module, split_input
from dmlc.ir.verifier import verify
from dmlc.ir.weights import WeightStore

torch.set_num_threads(1)
STRUCTURAL = Path(__file__).parent / "structural"


def parsed(text: str) -> Module:
    module = parse_module(text)
    verify(module)
    return module


def agrees(module: Module, inputs: dict[str, Any], folder: Path) -> None:
    """Emit, run on the module's ranks, compare with the interpreter. Arguments that are no inputs go through the weights' file."""
    values = Arguments(module, inputs)
    weights = WeightStore()
    for a in module.main.args:
        if a.attrs.get("dmlc.role", "input") != "input":
            weights.add(a.name, values.array(a), global_type(a.tensor, a.attrs))
    write_folder(module, folder / "out", weights, {}, "test")
    given = {name: x for name, x in inputs.items() if name not in weights}
    wanted, actual = run(module, inputs), shared_pool().run(folder / "out", given).results
    assert list(actual) == list(wanted)
    for name, value in wanted.items():
        assert actual[name].dtype == value.dtype
        np.testing.assert_allclose(actual[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


def structural(file: str, function: str) -> Module:
    modules = [parse_module(piece, file, line) for piece, line in split_input((STRUCTURAL / f"{file}.mlir").read_text())]
    return next(m for m in modules if m.main.name == function)


# ---------------------------------------------------------------- regions


def test_branches_loops_and_barriers(tmp_path):
    agrees(structural("regions", "regions"), {"x": np.array([0.5, -0.25, 0.75, 0.1, -0.2, 0.3])}, tmp_path)


def test_a_pipeline_of_two_stages(tmp_path):
    draw = np.random.default_rng(0).standard_normal
    agrees(structural("pipeline", "stages"), {"x": draw((7, 5)), "w0": draw((5, 6)), "w1": draw((6, 3))}, tmp_path)


@pytest.mark.parametrize("function", ["split", "thirds"])
def test_microbatches(function, tmp_path):
    draw = np.random.default_rng(0)
    x, w, m = draw.standard_normal((7, 6)), draw.standard_normal((6, 5)), draw.standard_normal((6, 5))
    agrees(structural("microbatch", function), {"x": x, "t": draw.integers(0, 5, 7), "n": 7, "w": w, "m": m, "lr": 0.1}, tmp_path)


def test_a_value_outlives_the_barrier_it_goes_through_and_the_other_way_round(tmp_path):
    text = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %a = dmlc.exp %x : (tensor<3xf32>) -> tensor<3xf32>
      %b = dmlc.barrier %a, %x : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
      %c = dmlc.neg %b : (tensor<3xf32>) -> tensor<3xf32>
      %d = dmlc.add %c, %a : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
      %e = dmlc.sin %x : (tensor<3xf32>) -> tensor<3xf32>
      %f = dmlc.barrier %e, %d : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
      %g = dmlc.mul %d, %f : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
      func.return %g : tensor<3xf32>
    }"""
    agrees(parsed(text), {"x": np.array([0.5, -1, 2], np.float32)}, tmp_path)


# ---------------------------------------------------------------- collectives

SHARDED = "{dmlc.sharding = #dmlc.sharding<@mesh, [%s]>, dmlc.global = array<i64: %s>}"


def collective(op: str, attrs: str, given: str, made: str, start: bool) -> str:
    """Two operands in one bucket on a 2 x 2 mesh; every rank's operand is its part of a sharded input."""
    local, whole, axes = given
    made_local, made_whole, made_axes = made
    types = f"(tensor<{local}>, tensor<{local}>)"
    results = f"(tensor<{made_local}>, tensor<{made_local}>)"
    futures = f"!comm.future<tensor<{made_local}>, tensor<{made_local}>>"
    body = f"%r, %s = comm.{op} %x, %y {{{attrs}}} : {types} -> {results}"
    if start:
        body = f"%f = comm.{op}_start %x, %y {{{attrs}}} : {types} -> {futures}\n    %r, %s = comm.wait %f : ({futures}) -> {results}"
    signature = ", ".join(f"%{n}: tensor<{local}> {SHARDED % (axes, whole)}" for n in "xy")
    result = ", ".join(f"tensor<{made_local}> {SHARDED % (made_axes, made_whole)}" for _ in "xy")
    return f"""builtin.module attributes {{dmlc.spmd}} {{
  dmlc.mesh {{sym_name = "mesh", axes = #dmlc.axes<["a"=2, "b"=2]>}} : () -> ()
  func.func @main({signature}) -> ({result}) {{
    {body}
    func.return %r, %s : tensor<{made_local}>, tensor<{made_local}>
  }}
}}"""


REDUCE = 'axes = ["b"], combiner = "{}"'
GATHER = 'axes = ["a", "b"], dims = array<i64: 0, 0>, sizes = array<i64: 7, 7>, grains = array<i64: 1, 1>'
SCATTER = 'axes = ["a", "b"], combiner = "{}", dims = array<i64: 0, 0>, sizes = array<i64: 7, 7>, grains = array<i64: 2, 2>'
EXCHANGE = (
    'axes = ["b"], split_dims = array<i64: 1, 1>, split_sizes = array<i64: 5, 5>, split_grains = array<i64: 1, 1>, '
    "dims = array<i64: 0, 0>, sizes = array<i64: 7, 7>, grains = array<i64: 1, 1>"
)
COLLECTIVES = {
    "all_reduce": (REDUCE, ("2x3x{}", "7, 3", '{"a", "b"}, {}'), ("2x3x{}", "7, 3", '{"a", "b"}, {}')),
    "all_gather": (GATHER, ("2x3x{}", "7, 3", '{"a", "b"}, {}'), ("7x3x{}", "7, 3", "{}, {}")),
    "reduce_scatter": (SCATTER, ("7x3x{}", "7, 3", "{}, {}"), ("2x3x{}", "7, 3", '{"a", "b"}, {}')),
    "all_to_all": (EXCHANGE, ("4x5x{}", "7, 5", '{"b"}, {}'), ("7x3x{}", "7, 5", '{}, {"b"}')),
}


@pytest.mark.parametrize("start", [False, True], ids=["at once", "started"])
@pytest.mark.parametrize(("op", "combiner", "dtype"), [
    *((op, "sum", dtype) for op in COLLECTIVES for dtype in ("f32", "bf16", "i64")),
    *((op, c, "f64") for op in ("all_reduce", "reduce_scatter") for c in ("prod", "max", "min")),
    *((op, c, "i1") for op in ("all_reduce", "reduce_scatter") for c in ("and", "or")),
    *((op, "", dtype) for op in ("all_gather", "all_to_all") for dtype in ("i1", "i16", "ui8")),
])  # fmt: skip
def test_collectives(op, combiner, dtype, start, tmp_path):
    attrs, given, made = COLLECTIVES[op]
    fill = tuple((t.format(dtype), whole, axes) for t, whole, axes in (given, made))
    module = parsed(collective(op, attrs.replace("{}", combiner), *fill, start))
    shape = module.main.args[0].attrs["dmlc.global"]
    draw = np.random.default_rng(0)
    values = [draw.integers(0, 2, shape) if dtype == "i1" else draw.integers(-3, 4, shape) for _ in "xy"]
    kind = {"f32": np.float32, "bf16": np.float32, "f64": np.float64, "i64": np.int64, "i16": np.int16, "ui8": np.uint8, "i1": np.bool_}[dtype]
    agrees(module, {n: v.astype(kind) for n, v in zip("xy", values)}, tmp_path)


# ---------------------------------------------------------------- names, errors


def test_names_of_a_model_do_not_hide_what_the_program_calls(tmp_path):
    """A model may call its tensors like anything, a helper of the prelude among them."""
    names = ["torch", "F", "math", "lambda", "comm", "mesh", "weights", "print", "iota", "window", "kernels", "é", "1st", "a/b", "_"]
    lines, last = [], "x"
    for i, name in enumerate(names):
        lines.append(f'%v{i} = dmlc.neg %{last} {{dmlc.name = "{name}"}} : (tensor<3xi64>) -> tensor<3xi64>')
        last = f"v{i}"
    body = "\n      ".join(lines)
    text = f"""func.func @main(%x: tensor<3xi64>) -> tensor<3xi64> {{
      {body}
      %s = dmlc.iota {{dmlc.name = "range"}} : () -> tensor<3xi64>
      %r = dmlc.add %s, %{last} : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi64>
      func.return %r : tensor<3xi64>
    }}"""
    agrees(parsed(text), {"x": np.array([1, 2, 3])}, tmp_path)


def test_a_fused_region_has_to_be_outlined_first():
    text = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %y = kernel.fused %x {
      ^bb0(%a: tensor<3xf32>):
        %b = dmlc.neg %a : (tensor<3xf32>) -> tensor<3xf32>
        kernel.yield %b : (tensor<3xf32>) -> ()
      } : (tensor<3xf32>) -> tensor<3xf32>
      func.return %y : tensor<3xf32>
    }"""
    with pytest.raises(DmlcError, match="outline-kernels"):
        emit_model(parsed(text), "")


def test_the_prelude_needs_torch_alone():
    names: dict[str, Any] = {}
    exec(prelude_text(), names)
    assert {"window", "iota", "resize", "philox", "attention"} <= set(names["__all__"])
