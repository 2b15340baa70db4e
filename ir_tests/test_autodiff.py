"""Reverse mode where whole models do not reach: regions, several uses, parameters without a gradient, what is not computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dmlc.ops  # noqa: F401
from dmlc.interpret.run import run
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.ops.base import flops_of
from dmlc.passmanager import Context, PassManager, parse_pipeline

VECTOR = "tensor<3xf32>"


def passed(module: Module, text: str = "autodiff", context: Context | None = None) -> Module:
    PassManager(parse_pipeline(text), verify=True).run(module, context or Context())
    return module


def program(body: str, args: str, loss: str = "%l", module: str = "") -> Module:
    attributes = f" attributes {{{module}}}" if module else ""
    return parse_module(
        f'builtin.module{attributes} {{\nfunc.func @main({args}) -> (tensor<f32> {{dmlc.name = "loss"}}) {{\n{body}\nfunc.return {loss} : tensor<f32>\n}}\n}}',
        "text",
    )


def param(name: str, type_: str = VECTOR) -> str:
    return f'%{name}: {type_} {{dmlc.role = "param"}}'


def given(name: str, type_: str = VECTOR) -> str:
    return f'%{name}: {type_} {{dmlc.role = "input"}}'


def check_slopes(module: Module, values: dict[str, Any], step: float = 1e-6) -> dict[str, np.ndarray]:
    """Each gradient against central differences of the loss in float64. Gives the gradients."""
    found = run(module, values, promote="f64")
    gradients = {k.removesuffix(".grad"): v for k, v in found.items() if k.endswith(".grad")}
    for name, gradient in gradients.items():
        for i in np.ndindex(gradient.shape):
            losses = []
            for sign in (1, -1):
                moved = np.array(values[name], np.float64)
                moved[i] += sign * step
                losses.append(float(run(module, {**values, name: moved}, promote="f64")["loss"]))
            assert gradient[i] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-6, abs=1e-7), f"{name}{i}"
    return gradients


def draws(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


SUM = f"%l = dmlc.reduce_sum %y {{dims = array<i64: 0>}} : ({VECTOR}) -> tensor<f32>"

# ---------------------------------------------------------------- several uses


def test_a_weight_used_twice() -> None:
    """y = sum(x W W), whose gradients are known (the case of pytorch/pytorch#180952)."""
    body = """%a = dmlc.matmul %x, %w : (tensor<1x2xf32>, tensor<2x2xf32>) -> tensor<1x2xf32>
    %b = dmlc.matmul %a, %w : (tensor<1x2xf32>, tensor<2x2xf32>) -> tensor<1x2xf32>
    %l = dmlc.reduce_sum %b {dims = array<i64: 0, 1>} : (tensor<1x2xf32>) -> tensor<f32>"""
    module = passed(program(body, f"{param('x', 'tensor<1x2xf32>')}, {param('w', 'tensor<2x2xf32>')}"))
    found = run(module, {"x": np.array([[1.1, -0.7]]), "w": np.array([[0.4, -0.2], [0.7, 0.3]])}, promote="f64")
    np.testing.assert_allclose(found["x.grad"], [[-0.12, 0.44]], rtol=1e-12)
    np.testing.assert_allclose(found["w.grad"], [[0.17, 1.05], [-0.57, -1.13]], rtol=1e-12)


def test_contributions_are_added_in_the_order_of_the_sweep() -> None:
    body = f"""%a = dmlc.exp %w : ({VECTOR}) -> {VECTOR}
    %b = dmlc.mul %a, %w : ({VECTOR}, {VECTOR}) -> {VECTOR}
    %y = dmlc.mul %b, %w : ({VECTOR}, {VECTOR}) -> {VECTOR}
    {SUM}"""
    texts = [print_module(passed(program(body, param("w")))) for _ in range(2)]
    assert texts[0] == texts[1]
    adds = [op for op in passed(program(body, param("w"))).main.ops() if op.name == "dmlc.add"]
    assert [op.attrs["dmlc.of"] for op in adds] == ["1", "0"], "a running sum, last use first"
    check_slopes(passed(program(body, param("w"))), draws(w=(3,)))


def test_a_dump_goes_on_as_the_run_does() -> None:
    """The pass reads nothing but the text."""
    body = f"%a = dmlc.exp %w : ({VECTOR}) -> {VECTOR}\n%y = dmlc.mul %a, %a : ({VECTOR}, {VECTOR}) -> {VECTOR}\n{SUM}"
    first = program(body, param("w"), module='dmlc.mode = "train"')
    second = parse_module(print_module(first), "again")
    assert print_module(passed(first, "autodiff,optimizer")) == print_module(
        passed(parse_module(print_module(passed(second, "autodiff")), "again"), "optimizer")
    )


# ---------------------------------------------------------------- regions

COND = f"""%y = dmlc.cond %p {{
    %e = dmlc.exp %w : ({VECTOR}) -> {VECTOR}
    %s = dmlc.tanh %h : ({VECTOR}) -> {VECTOR}
    %m = dmlc.mul %e, %s : ({VECTOR}, {VECTOR}) -> {VECTOR}
    dmlc.yield %m : ({VECTOR}) -> ()
  }}, {{
    dmlc.yield %h : ({VECTOR}) -> ()
  }} : (tensor<i1>) -> {VECTOR}"""


@pytest.mark.parametrize("taken", [True, False])
def test_condition(taken: bool) -> None:
    body = f"%h = dmlc.mul %x, %v : ({VECTOR}, {VECTOR}) -> {VECTOR}\n{COND}\n{SUM}"
    module = passed(program(body, ", ".join([given("p", "tensor<i1>"), given("x"), param("v"), param("w")])))
    found = check_slopes(module, {"p": taken, **draws(x=(3,), v=(3,), w=(3,))})
    assert bool(np.any(found["w"])) == taken and np.any(found["v"])


def loop(count: int, body: str, start: str = "%h", more: str = "") -> str:
    return f"""%y{", %z" if more else ""} = dmlc.scan {start}{more} {{count = {count} : i64}} {{
  ^bb0(%i: tensor<i64>, %c: {VECTOR}{f", %d: {VECTOR}" if more else ""}):
    {body}
  }} : ({VECTOR}{f", {VECTOR}" if more else ""}) -> {f"({VECTOR}, {VECTOR})" if more else VECTOR}"""


@pytest.mark.parametrize("count", [0, 1, 4])
def test_loop(count: int) -> None:
    """What is carried, what is read from outside, and the loop's index all matter."""
    step = f"""%n = dmlc.cast %i {{to = "f32"}} : (tensor<i64>) -> tensor<f32>
    %t = dmlc.tanh %c : ({VECTOR}) -> {VECTOR}
    %m = dmlc.mul %t, %w : ({VECTOR}, {VECTOR}) -> {VECTOR}
    %a = dmlc.add %m, %n : ({VECTOR}, tensor<f32>) -> {VECTOR}
    dmlc.yield %a : ({VECTOR}) -> ()"""
    body = f"%h = dmlc.mul %x, %v : ({VECTOR}, {VECTOR}) -> {VECTOR}\n{loop(count, step)}\n{SUM}"
    module = passed(program(body, ", ".join([given("x"), param("v"), param("w")])))
    found = check_slopes(module, draws(x=(3,), v=(3,), w=(3,)))
    assert bool(np.any(found["w"])) == bool(count)


def test_loop_that_carries_two_values_of_which_one_becomes_active_inside() -> None:
    """d begins as an input, and depends on w only from the second iteration on; both are swapped each time."""
    step = f"""%m = dmlc.mul %c, %w : ({VECTOR}, {VECTOR}) -> {VECTOR}
    %s = dmlc.sin %m : ({VECTOR}) -> {VECTOR}
    dmlc.yield %d, %s : ({VECTOR}, {VECTOR}) -> ()"""
    body = f"{loop(5, step, '%x', ', %u')}\n%q = dmlc.mul %y, %z : ({VECTOR}, {VECTOR}) -> {VECTOR}\n{SUM.replace('%y', '%q')}"
    check_slopes(passed(program(body, ", ".join([given("x"), given("u"), param("w")]))), draws(x=(3,), u=(3,), w=(3,)))


def test_loop_in_a_loop_and_a_condition_in_it() -> None:
    inner = f"""%k = dmlc.scan %c {{count = 3 : i64}} {{
    ^bb1(%j: tensor<i64>, %e: {VECTOR}):
      %g = dmlc.mul %e, %w : ({VECTOR}, {VECTOR}) -> {VECTOR}
      %f = dmlc.tanh %g : ({VECTOR}) -> {VECTOR}
      dmlc.yield %f : ({VECTOR}) -> ()
    }} : ({VECTOR}) -> {VECTOR}
    %one = dmlc.full {{value = 1 : i64}} : () -> tensor<i64>
    %odd = dmlc.eq %i, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
    %o = dmlc.cond %odd {{
      %p = dmlc.mul %k, %k : ({VECTOR}, {VECTOR}) -> {VECTOR}
      dmlc.yield %p : ({VECTOR}) -> ()
    }}, {{
      dmlc.yield %k : ({VECTOR}) -> ()
    }} : (tensor<i1>) -> {VECTOR}
    dmlc.yield %o : ({VECTOR}) -> ()"""
    body = f"{loop(3, inner, '%x')}\n{SUM}"
    module = passed(program(body, f"{param('x')}, {param('w')}"))
    check_slopes(module, draws(x=(3,), w=(3,)))


STATE, ROW, STACK = "tensor<2x5xf32>", "tensor<2x3xf32>", "tensor<4x2x5xf32>"


def recurrent(attributes: str = "", kept: str = "%u") -> str:
    """A recurrent layer: a state, rows of x, weights from outside and a shared bias; both the last state and the rows count."""
    return f"""%last, %rows = dmlc.scan %h, %x, %b {{count = 4 : i64, scanned = 1 : i64, shared = 1 : i64{attributes}}} {{
  ^bb0(%i: tensor<i64>, %s: {STATE}, %r: {ROW}, %c: tensor<5xf32>):
    %p = dmlc.linear %r, %v : ({ROW}, tensor<5x3xf32>) -> {STATE}
    %q = dmlc.linear %s, %w : ({STATE}, tensor<5x5xf32>) -> {STATE}
    %a = dmlc.add %p, %q : ({STATE}, {STATE}) -> {STATE}
    %d = dmlc.add %a, %c : ({STATE}, tensor<5xf32>) -> {STATE}
    %u = dmlc.tanh %d : ({STATE}) -> {STATE}
    dmlc.yield %u, {kept} : ({STATE}, {STATE}) -> ()
  }} : ({STATE}, tensor<4x2x3xf32>, tensor<5xf32>) -> ({STATE}, {STACK})
  %t = dmlc.mul %rows, %g : ({STACK}, tensor<5xf32>) -> {STACK}
  %n = dmlc.reduce_sum %t {{dims = array<i64: 0>}} : ({STACK}) -> {STATE}
  %y = dmlc.add %n, %last : ({STATE}, {STATE}) -> {STATE}
  %l = dmlc.reduce_sum %y {{dims = array<i64: 0, 1>}} : ({STATE}) -> tensor<f32>"""


RECURRENT = ", ".join([param("x", "tensor<4x2x3xf32>"), param("h", STATE), param("v", "tensor<5x3xf32>"), param("w", "tensor<5x5xf32>"), param("b", "tensor<5xf32>"), param("g", "tensor<5xf32>")])


@pytest.mark.parametrize("kept", ["%u", "%s", "%q"])
@pytest.mark.parametrize("attributes", ["", ", reverse = true"])
def test_recurrent_layer(attributes: str, kept: str) -> None:
    module = passed(program(recurrent(attributes, kept), RECURRENT))
    check_slopes(module, draws(x=(4, 2, 3), h=(2, 5), v=(5, 3), w=(5, 5), b=(5,), g=(5,)))


def test_weights_of_a_loop_get_one_product_behind_it() -> None:
    """The backward loop carries nothing but the state's gradient, and multiplies only for that; products of the forward loop are saved."""
    module = passed(program(recurrent(), RECURRENT.replace(param("x", "tensor<4x2x3xf32>"), given("x", "tensor<4x2x3xf32>"))), "autodiff,canonicalize,cse,dce")
    forward, backward = (op for op in module.main.ops() if op.name == "dmlc.scan")
    assert len(backward.operands) - backward.attrs["scanned"] == 1
    assert sum(flops_of(op) > 0 for op in backward.region.block if op.results) == 1 and len(forward.results) > 2
    assert sum(op.name == "dmlc.contract" and op.block is module.main.body for op in module.main.ops()) == 2


def test_a_loop_over_the_rows_of_a_loop() -> None:
    inner = f"""%k, %m = dmlc.scan %c, %r {{count = 3 : i64, scanned = 1 : i64}} {{
    ^bb1(%j: tensor<i64>, %e: tensor<f32>, %f: tensor<f32>):
      %o = dmlc.mul %e, %f : (tensor<f32>, tensor<f32>) -> tensor<f32>
      %p = dmlc.sin %o : (tensor<f32>) -> tensor<f32>
      %q = dmlc.mul %p, %f : (tensor<f32>, tensor<f32>) -> tensor<f32>
      dmlc.yield %p, %q : (tensor<f32>, tensor<f32>) -> ()
    }} : (tensor<f32>, {VECTOR}) -> (tensor<f32>, {VECTOR})"""
    body = f"""%s, %y = dmlc.scan %h, %x {{count = 4 : i64, scanned = 1 : i64}} {{
    ^bb0(%i: tensor<i64>, %c: tensor<f32>, %r: {VECTOR}):
      {inner}
      %n = dmlc.mul %m, %w : ({VECTOR}, {VECTOR}) -> {VECTOR}
      dmlc.yield %k, %n : (tensor<f32>, {VECTOR}) -> ()
    }} : (tensor<f32>, tensor<4x3xf32>) -> (tensor<f32>, tensor<4x3xf32>)
    %t = dmlc.reduce_sum %y {{dims = array<i64: 0, 1>}} : (tensor<4x3xf32>) -> tensor<f32>
    %l = dmlc.add %t, %s : (tensor<f32>, tensor<f32>) -> tensor<f32>"""
    module = passed(program(body, f"{param('x', 'tensor<4x3xf32>')}, {param('h', 'tensor<f32>')}, {param('w')}"))
    check_slopes(module, draws(x=(4, 3), h=(), w=(3,)))


def test_condition_with_operands() -> None:
    body = COND.replace("dmlc.cond %p {", f"dmlc.cond %p, %h {{\n^bb0(%k: {VECTOR}):").replace("}, {", f"}}, {{\n^bb1(%k: {VECTOR}):").replace("(tensor<i1>)", f"(tensor<i1>, {VECTOR})").replace("dmlc.tanh %h", "dmlc.tanh %k")
    text = f"%h = dmlc.mul %x, %v : ({VECTOR}, {VECTOR}) -> {VECTOR}\n{body}\n{SUM}"
    module = passed(program(text, ", ".join([given("p", "tensor<i1>"), given("x"), param("v"), param("w")])))
    check_slopes(module, {"p": True, **draws(x=(3,), v=(3,), w=(3,))})


def test_a_loop_of_unknown_length_has_no_gradient() -> None:
    body = f"""%y = dmlc.while %w {{
    ^bb0(%c: {VECTOR}):
      dmlc.yield %p : (tensor<i1>) -> ()
    }}, {{
    ^bb1(%c: {VECTOR}):
      dmlc.yield %c : ({VECTOR}) -> ()
    }} : ({VECTOR}) -> {VECTOR}
    {SUM}"""
    with pytest.raises(DmlcError, match="'dmlc.while' has no gradient \\(the number of its iterations depends on the data"):
        passed(program(body, f"{given('p', 'tensor<i1>')}, {param('w')}"))


def test_a_loop_saves_only_what_its_gradient_reads() -> None:
    linear = f"%a = dmlc.add %c, %w : ({VECTOR}, {VECTOR}) -> {VECTOR}\ndmlc.yield %a : ({VECTOR}) -> ()"
    module = passed(program(f"{loop(4, linear, '%x')}\n{SUM}", f"{given('x')}, {param('w')}"))
    first = next(op for op in module.main.ops() if op.name == "dmlc.scan")
    assert len(first.results) == 1 and not [op for op in module.main.ops() if op.name == "dmlc.index_put"]


# ---------------------------------------------------------------- what gets no gradient


def test_parameters_without_gradient_are_named() -> None:
    body = f"%s = dmlc.floor %stepped : ({VECTOR}) -> {VECTOR}\n%a = dmlc.mul %w, %s : ({VECTOR}, {VECTOR}) -> {VECTOR}\n%y = dmlc.mul %a, %still : ({VECTOR}, {VECTOR}) -> {VECTOR}\n{SUM}"
    frozen = param("still").replace("}", ", dmlc.frozen}")
    context = Context()
    module = passed(program(body, ", ".join([param("w"), param("stepped"), param("unused"), frozen])), context=context)
    texts = [r.text for r in context.remarks]
    assert texts == ["no gradient reaches stepped, unused; the optimizer leaves what has none as it is", "frozen: still"]
    assert [op.attrs["param"] for op in module.main.ops() if op.name == "dmlc.gradient"] == ["w"]


def test_nothing_is_computed_for_inputs_and_integers() -> None:
    """The first layer needs no gradient of x: one contraction for it, two for the second."""
    body = """%h = dmlc.linear %x, %w : (tensor<4x3xf32>, tensor<5x3xf32>) -> tensor<4x5xf32>
    %t = dmlc.tanh %h : (tensor<4x5xf32>) -> tensor<4x5xf32>
    %o = dmlc.linear %t, %v : (tensor<4x5xf32>, tensor<2x5xf32>) -> tensor<4x2xf32>
    %best = dmlc.argmax %o {dim = 1 : i64} : (tensor<4x2xf32>) -> tensor<4xi64>
    %n = dmlc.cast %best {to = "f32"} : (tensor<4xi64>) -> tensor<4xf32>
    %s = dmlc.reduce_sum %o {dims = array<i64: 1>} : (tensor<4x2xf32>) -> tensor<4xf32>
    %y = dmlc.mul %s, %n : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %l = dmlc.reduce_sum %y {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>"""
    module = passed(program(body, ", ".join([given("x", "tensor<4x3xf32>"), param("w", "tensor<5x3xf32>"), param("v", "tensor<2x5xf32>")])))
    products = [op.attrs["dmlc.of"] for op in module.main.ops() if op.name in ("dmlc.matmul", "dmlc.contract", "dmlc.linear") and "dmlc.of" in op.attrs]
    assert sorted(products) == ["0", "2", "2"]
    assert not [op for op in module.main.ops() if "dmlc.of" in op.attrs and op.unused]
