"""The pattern driver: fixpoints, order, what it revisits, its bound; and structural equality, which these tests lean on."""

from __future__ import annotations

import time

import pytest

from dmlc.ir.core import Op
from dmlc.ir.equality import structurally_equal
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.ir.rewriter import Pattern, Rewriter, apply_patterns, pattern
from dmlc.ir.verifier import verify

F = "tensor<f32>"


def module_of(*lines: str, returned: str = "%x"):
    return parse_module(f"func.func @main(%x: {F}) -> {F} {{\n" + "\n".join(lines) + f"\nfunc.return {returned} : {F}\n}}")


def unary(result: str, name: str, operand: str, attrs: str = "") -> str:
    return f"{result} = test.{name} {operand} {attrs}: ({F}) -> {F}"


@pattern("test.neg")
def double_negation(op: Op, rewriter: Rewriter) -> bool:
    inner = op.operands[0].op
    if inner is None or inner.name != "test.neg":
        return False
    rewriter.replace(op, [inner.operands[0]])
    return True


class Unused(Pattern):
    name = "unused"

    def rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        if not op.results or not op.unused:
            return False
        rewriter.erase(op)
        return True


def names(module) -> list[str]:
    return [op.name for op in module.main.ops()]


def test_rewrites_to_a_fixpoint():
    lines = [unary(f"%v{i}", "neg", f"%v{i - 1}" if i else "%x") for i in range(7)]
    module = module_of(*lines, returned="%v6")
    assert apply_patterns(module, [double_negation, Unused()])
    verify(module)
    assert names(module) == ["test.neg", "func.return"]
    assert not apply_patterns(module, [double_negation, Unused()])


def test_an_erased_user_frees_its_producers():
    module = module_of(unary("%a", "one", "%x"), unary("%b", "two", "%a"), unary("%c", "three", "%b"))
    assert apply_patterns(module.main, [Unused()])
    assert names(module) == ["func.return"]


def test_a_value_of_another_type_is_no_replacement():
    @pattern("dmlc.cast")
    def drop_cast(op: Op, rewriter: Rewriter) -> bool:
        rewriter.replace(op, [op.operands[0]])
        return True

    module = parse_module("func.func @main(%x: tensor<4xf32>) -> tensor<4xbf16> {\n"
        '  %a = dmlc.cast %x {to = "bf16"} : (tensor<4xf32>) -> tensor<4xbf16>\n  func.return %a : tensor<4xbf16>\n}')  # fmt: skip
    with pytest.raises(DmlcError, match="'dmlc.cast' makes tensor<4xbf16> and cannot be replaced by a value of type tensor<4xf32>"):
        apply_patterns(module, [drop_cast])


def test_works_inside_regions_and_drops_them():
    region = f"%r = test.loop %a {{k = 1 : i64}} {{\n{unary('%b', 'neg', '%a')}\n{unary('%c', 'neg', '%b')}\ndmlc.yield %c : ({F}) -> ()\n}} : ({F}) -> {F}"
    module = module_of(unary("%a", "one", "%x"), region, returned="%r")
    apply_patterns(module, [double_negation, Unused()])
    verify(module)
    assert names(module) == ["test.one", "test.loop", "dmlc.yield", "func.return"]
    module.main.return_op.set_operand(0, module.main.args[0])
    apply_patterns(module, [Unused()])
    assert names(module) == ["func.return"]


def test_patterns_are_tried_in_order_on_ops_in_order():
    seen = []

    @pattern("test.a", "test.b")
    def first(op: Op, rewriter: Rewriter) -> bool:
        seen.append(("first", op.name))
        return False

    @pattern()
    def second(op: Op, rewriter: Rewriter) -> bool:
        seen.append(("second", op.name))
        return False

    module = module_of(unary("%a", "a", "%x"), unary("%c", "c", "%a"), unary("%b", "b", "%c"), returned="%b")
    assert not apply_patterns(module.main, [first, second])
    assert seen == [("first", "test.a"), ("second", "test.a"), ("second", "test.c"), ("first", "test.b"), ("second", "test.b"), ("second", "func.return")]


def test_new_ops_are_visited_and_take_after_their_origin():
    @pattern("test.square")
    def expand(op: Op, rewriter: Rewriter) -> bool:
        rewriter.replace_op(op, "test.mul", [op.operands[0], op.operands[0]], {"fast": True}, [op.result.type])
        return True

    @pattern("test.mul")
    def lower(op: Op, rewriter: Rewriter) -> bool:
        b = rewriter.builder(op)
        x, y = op.operands
        rewriter.replace(op, [b.op("test.exp", [b.op("test.add", [x, y], {}, [x.type]).result], {}, [x.type]).result])
        return True

    module = module_of(unary("%a", "square", "%x", '{dmlc.name = "n", dmlc.stage = 2 : i64} '), returned="%a")
    apply_patterns(module, [expand])
    (mul, _) = module.main.ops()
    assert mul.attrs == {"fast": True, "dmlc.id": "0", "dmlc.name": "n", "dmlc.stage": 2}
    apply_patterns(module, [lower])
    verify(module)
    assert [(op.name, op.id) for op in module.main.ops()][:2] == [("test.add", "0.add"), ("test.exp", "0.exp")]


def test_same_input_same_output():
    lines = [unary(f"%v{i}", ["neg", "neg", "abs"][i % 3], f"%v{i - 1}" if i else "%x") for i in range(40)]
    texts = set()
    for _ in range(3):
        module = module_of(*lines, returned="%v39")
        apply_patterns(module, [Unused(), double_negation])
        texts.add(print_module(module))
    assert len(texts) == 1


def test_patterns_that_undo_one_another_are_an_error():
    def swap(a: str, b: str) -> Pattern:
        @pattern(a)
        def exchange(op: Op, rewriter: Rewriter) -> bool:
            rewriter.replace_op(op, b, op.operands, {}, [op.result.type])
            return True

        return exchange

    module = module_of(unary("%a", "ping", "%x"), returned="%a")
    with pytest.raises(DmlcError, match=r"no fixpoint after 50 rewrites; the last was 'exchange' on 'test\.p[io]ng'"):
        apply_patterns(module, [swap("test.ping", "test.pong"), swap("test.pong", "test.ping")], limit=50)


def test_attribute_changes_revisit_the_op():
    @pattern("test.a")
    def count(op: Op, rewriter: Rewriter) -> bool:
        if op.attrs["n"] == 5:
            return False
        rewriter.set_attribute(op, "n", op.attrs["n"] + 1)
        return True

    module = module_of(unary("%a", "a", "%x", "{n = 0 : i64} "), returned="%a")
    apply_patterns(module, [count])
    assert next(module.main.ops()).attrs["n"] == 5


def test_long_chains_are_quick():
    lines = [unary(f"%v{i}", "neg", f"%v{i - 1}" if i else "%x") for i in range(3000)]
    module = module_of(*lines, returned="%v2999")
    start = time.process_time()
    apply_patterns(module, [double_negation, Unused()])
    assert time.process_time() - start < 2
    assert names(module) == ["func.return"]


# ---------------------------------------------------------------- equality

BASE = f'func.func @main(%x: {F} {{dmlc.role = "input"}}, %y: {F}) -> ({F} {{dmlc.name = "o"}}) {{\n%a = test.f %x, %y {{k = 1 : i64, s = [0.5, {{b = true}}]}} : ({F}, {F}) -> {F} loc("n")\nfunc.return %a : {F}\n}}'


@pytest.mark.parametrize(
    "old, new, difference",
    [
        ("%x, %y {", "%y, %x {", "'test.f' 0: operand 0 is another value"), ("k = 1 :", "k = 2 :", "attribute 'k' is 1 : i64 against 2 : i64"),
        ("k = 1 : i64", "k = 1.0", "attribute 'k' is 1 : i64 against 1.0 : f64"), ("k = 1 : i64", "k = true", "attribute 'k' is 1 : i64 against true"),
        ("k = 1 : i64", "j = 1 : i64", "attribute 'k' is on one side only"), ("b = true", "b = 1", "attribute 's' is"), ("0.5", "-0.5", "attribute 's' is"),
        ("test.f", "test.g", "'test.f' 0: against 'test.g'"), ('"input"', '"param"', "argument %x: attribute 'dmlc.role'"), ("@main", "@other", "attribute 'sym_name'"),
        ('"o"', '"p"', "@main, result 0: attribute 'dmlc.name'"), ('loc("n")', "", "location n against unknown location"), ("%y: ", "%z: ", None),
        ("func.return", "test.h : () -> ()\nfunc.return", "'func.return': against 'test.h'"), ("%a", "%b", ""), (" loc(", "  loc(", ""), ("-> ({F} {{", "-> ({F} {{", ""),
    ],
)  # fmt: skip
def test_the_first_difference_is_named(old, new, difference):
    changed = BASE.replace(old, new)
    if difference is None:
        changed, difference = changed.replace("%x, %y", "%x, %z"), "argument %y against %z"
    found = structurally_equal(parse_module(BASE), parse_module(changed))
    assert (found is None) if not difference else (found is not None and difference in found), found
