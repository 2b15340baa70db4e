"""Programs whose results take the memory of what ends give what programs give that never do, and touch nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dmlc.ops  # noqa: F401
from dmlc.codegen import pytorch
from dmlc.codegen.in_place import Reuse, reuse
from dmlc.codegen.pytorch import emit_model
from dmlc.codegen.triton_source import emit_kernels
from dmlc.interpret.evaluate import HELPERS
from dmlc.ir.builder import Builder
from dmlc.ir.core import Module, Value
from dmlc.ir.parser import parse_module
from dmlc.ir.types import FutureType, TensorType
from dmlc.ir.verifier import verify

SQUARE = TensorType((4, 4), "f32")
MESH = 'dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=1]>} : () -> ()'


class Started:
    """A collective of one rank in flight: what it was given is read when it is waited for."""

    def __init__(self, tensors: tuple[torch.Tensor, ...]):
        self.tensors = tensors

    def wait(self) -> tuple[torch.Tensor, ...]:
        return tuple(t + 0 for t in self.tensors)


class Alone:
    def __init__(self, mesh: Any):
        pass

    def all_reduce_start(self, tensors: tuple[torch.Tensor, ...], axes: Any, combiner: str) -> Started:
        return Started(tensors)


def ran(text: str, weights: dict[str, Any], inputs: dict[str, Any], kernels: Any = None) -> list[torch.Tensor]:
    """The results of an emitted program, in this process."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith(("from prelude", "from runtime", "import kernels")))
    space: dict[str, Any] = {**HELPERS, "F": F, "Collectives": Alone, "keep_freed_memory": lambda: None, "kernels": kernels}
    exec(compile(body, "model.py", "exec"), space)
    with torch.no_grad():
        return space["Program"](None, torch.device("cpu"))(weights, inputs)


def random_program(seed: int, length: int = 16) -> Module:
    """Elementwise ops, activations, products, views, sums, collectives in flight; the last value replaces the argument w."""
    draw = random.Random(seed)
    module = parse_module(f"builtin.module {{\n  {MESH}\n}}")
    function = module.add_function("main", [SQUARE, SQUARE], ["x", "w"])
    function.args[1].attrs["dmlc.role"] = "param"
    b = Builder.at_end(function.body)
    values: list[Value] = list(function.args)
    flying: list[Value] = []
    for _ in range(length):
        values.append(step(b, draw, values[-5:], flying))
    values += [b.op("comm.wait", [f], {}, list(f.type.types)).result for f in flying]  # type: ignore[attr-defined]
    new = b.emit(draw.choice(("dmlc.add", "dmlc.sub", "dmlc.mul")), function.args[1], values[-1])
    b.op("func.return", [values[-2], new], {}, [])
    function.result_attrs[:] = [{"dmlc.name": "y"}, {"dmlc.name": "w", "dmlc.updates": "w"}]
    verify(module)
    return module


def step(b: Builder, draw: random.Random, near: list[Value], flying: list[Value]) -> Value:
    kind = draw.choice(("add", "sub", "mul", "relu", "tanh", "relu_grad", "matmul", "linear", "transpose", "reshape", "permuted", "start", "wait", "barrier"))
    x, y = draw.choice(near), draw.choice(near)
    if kind == "start":
        flying.append(b.op("comm.all_reduce_start", [x], {"axes": ("data",), "combiner": "sum"}, [FutureType((SQUARE,))]).result)
        return b.emit("dmlc.relu", x)
    if kind == "wait":
        return b.op("comm.wait", [flying.pop(0)], {}, [SQUARE]).result if flying else b.emit("dmlc.add", x, y)
    if kind == "transpose":
        return b.emit("dmlc.transpose", x, perm=(1, 0))
    if kind == "permuted":
        return b.emit("dmlc.contract", x, equation="ij->ji")
    if kind == "reshape":
        return b.emit("dmlc.reshape", b.emit("dmlc.reshape", x, types=[TensorType((16,), "f32")]), types=[SQUARE])
    if kind == "barrier":
        return b.emit("dmlc.barrier", x, y)
    return b.emit(f"dmlc.{kind}", *([x] if kind in ("relu", "tanh") else [x, y]))


def test_random_programs_give_the_same_in_place(monkeypatch):
    taken = 0
    for seed in range(150):
        module = random_program(seed)
        text = emit_model(module, "test")
        with monkeypatch.context() as patch:
            patch.setattr(pytorch, "reuse", lambda function: Reuse())
            plain = emit_model(module, "test")
        x, w = (torch.randn(4, 4, generator=torch.Generator().manual_seed(2 * seed + i), dtype=torch.float64) for i in range(2))
        given, kept = {"x": x.clone()}, {"w": w.clone()}
        wanted, found = ran(plain, {"w": w.clone()}, {"x": x.clone()}), ran(text, kept, given)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=0.0, equal_nan=True, msg=lambda m, text=text: f"{m}\n{text}")
        assert torch.equal(given["x"], x)
        assert kept["w"] is found[1]
        taken += len(reuse(module.main).taken)
    assert taken > 300


# ---------------------------------------------------------------- single cases


def module_of(body: str, signature: str, results: str) -> Module:
    module = parse_module(f"builtin.module {{\n  {MESH}\n  func.func @main({signature}) -> ({results}) {{\n{body}\n  }}\n}}")
    verify(module)
    return module


ADAM = """
    %p1, %m1, %v1 = dmlc.adam_update %p, %g, %m, %v, %s, %s, %s, %s {beta1 = 0.9, beta2 = 0.99, eps = 1.0e-8} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
"""
STATE = ", ".join(f'%{n}: tensor<4x4xf32> {{dmlc.role = "state"}}' for n in "pmv") + ", %g: tensor<4x4xf32>, %s: tensor<f32>"
NEW = ", ".join(f'tensor<4x4xf32> {{dmlc.updates = "{n}"}}' for n in "pmv")


def update(extra: str = "", results: str = NEW, returned: str = "%p1, %m1, %v1") -> Module:
    types = ", ".join(["tensor<4x4xf32>"] * (returned.count(",") + 1))
    return module_of(f"{ADAM}{extra}    func.return {returned} : {types}", STATE, results)


def updated(module: Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The state before and after a step, the same tensor objects where the step is in place."""
    state = {n: torch.rand(4, 4) + 0.5 for n in "pmv"}
    before = dict(state)
    ran(emit_model(module, "test"), state, {"g": torch.randn(4, 4), "s": torch.tensor(0.5)})
    return before, state


def test_an_update_leaves_its_results_in_the_arguments_memory():
    before, after = updated(update())
    assert all(before[n] is after[n] for n in "pmv")


def test_an_argument_that_is_read_afterwards_keeps_its_memory():
    module = update("    %r = dmlc.exp %p : (tensor<4x4xf32>) -> tensor<4x4xf32>\n", f"{NEW}, tensor<4x4xf32>", "%p1, %m1, %v1, %r")
    before, after = updated(module)
    assert before["p"] is not after["p"]
    assert not reuse(module.main).taken


def test_an_argument_whose_view_is_returned_keeps_its_memory():
    module = update("    %r = dmlc.transpose %m {perm = [1, 0]} : (tensor<4x4xf32>) -> tensor<4x4xf32>\n", f"{NEW}, tensor<4x4xf32>", "%p1, %m1, %v1, %r")
    assert not reuse(module.main).taken


def test_a_table_takes_rows_in_place_and_a_bias_goes_into_the_product():
    body = """
    %y = dmlc.linear %x, %w : (tensor<3x4xf32>, tensor<5x4xf32>) -> tensor<3x5xf32>
    %z = dmlc.add %y, %b : (tensor<3x5xf32>, tensor<5xf32>) -> tensor<3x5xf32>
    %t = dmlc.contract %z, %x {equation = "bi,bj->ij"} : (tensor<3x5xf32>, tensor<3x4xf32>) -> tensor<5x4xf32>
    %r = dmlc.index_add %x, %i : (tensor<3x4xf32>, tensor<3xi64>) -> tensor<5x4xf32>
    %s = dmlc.add %r, %t : (tensor<5x4xf32>, tensor<5x4xf32>) -> tensor<5x4xf32>
    func.return %s, %z : tensor<5x4xf32>, tensor<3x5xf32>"""
    module = module_of(body, "%x: tensor<3x4xf32>, %w: tensor<5x4xf32>, %b: tensor<5xf32>, %i: tensor<3xi64>", "tensor<5x4xf32>, tensor<3x5xf32>")
    text = emit_model(module, "test")
    assert "F.linear(x, w, b)" in text and "add_rows(" in text and "index_add(" not in text
    x, w, b, i = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5), torch.tensor([4, 0, 4])
    table, z = ran(text, {}, {"x": x, "w": w, "b": b, "i": i})
    torch.testing.assert_close(z, F.linear(x, w, b))
    torch.testing.assert_close(table, (z.t() @ x).index_add(0, i, x))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_sum_of_a_loop_that_may_not_run(count):
    body = """
    %sum = dmlc.microbatch %n {count = 1 : i64} {
    ^bb0(%i: tensor<i64>):
      %p = dmlc.matmul %x, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      dmlc.yield %p : (tensor<4x4xf32>) -> ()
    } : (tensor<i64>) -> tensor<4x4xf32>
    %q = dmlc.matmul %x, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %s = dmlc.add %sum, %q : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    func.return %s : tensor<4x4xf32>"""
    module = module_of(body, "%x: tensor<4x4xf32>, %n: tensor<i64>", "tensor<4x4xf32>")
    text = emit_model(module, "test")
    assert "plus(" in text and "torch.zeros" not in text
    x = torch.randn(4, 4)
    (found,) = ran(text, {}, {"x": x, "n": torch.tensor(count)})
    torch.testing.assert_close(found, (count + 1) * (x @ x))


def test_kernels_write_only_where_they_are_told():
    """A pointwise op in a kernel never works in place: the caller may need the operand."""
    module = parse_module(f"""builtin.module {{
  {MESH}
  func.func private @fused(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {{
    %y = dmlc.relu %x : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %z = dmlc.exp %y : (tensor<4x4xf32>) -> tensor<4x4xf32>
    func.return %y, %z : tensor<4x4xf32>, tensor<4x4xf32>
  }}
  func.func @main(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {{
    %y, %z = kernel.call %x {{kernel = "fused"}} : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    func.return %y, %z : tensor<4x4xf32>, tensor<4x4xf32>
  }}
}}""")
    assert "torch.relu(x)" in emit_kernels(module) and "relu_(" not in emit_kernels(module)




def test_an_all_reduction_works_in_the_memory_of_what_nothing_else_reads():
    start = "comm.all_reduce_start {} {{axes = [\"data\"], combiner = \"sum\"}} : (tensor<4x4xf32>) -> !comm.future<tensor<4x4xf32>>"
    wait = "(!comm.future<tensor<4x4xf32>>) -> tensor<4x4xf32>"
    one = "(tensor<4x4xf32>) -> tensor<4x4xf32>"
    body = f"""
    %y = dmlc.exp %x : {one}
    %z = dmlc.tanh %x : {one}
    %f = {start.format("%y")}
    %g = {start.format("%z")}
    %h = {start.format("%x")}
    %a = comm.wait %f : {wait}
    %b = comm.wait %g : {wait}
    %c = comm.wait %h : {wait}
    %d = dmlc.add %z, %b : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    func.return %a, %c, %d : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>"""
    module = module_of(body, "%x: tensor<4x4xf32>", ", ".join(["tensor<4x4xf32>"] * 3))
    lines = [line for line in emit_model(module, "test").splitlines() if "all_reduce_start" in line]
    assert ["given=True" in line for line in lines] == [True, False, False]
