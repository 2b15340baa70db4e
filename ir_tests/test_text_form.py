"""The text form: both forms of the agreed sample, round trips of random modules, damaged text, messages with carets, other readers."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_modules import damaged, random_attribute, random_module, random_type

from dmlc.ir.attribute_printer import attribute_text, type_text
from dmlc.ir.attributes import AttrDict, Axes, DenseResource, Sharding, SymbolRef
from dmlc.ir.dims import symbol
from dmlc.ir.equality import same_attribute, structurally_equal
from dmlc.ir.lexer import Source, escape_key, unescape_key
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.parser import annotate, parse_attribute, parse_module, parse_type, split_input
from dmlc.ir.printer import print_module, print_op
from dmlc.ir.types import FunctionType, FutureType, TensorType

X = 'tensor<?x8xf32, #dmlc.dims<["batch", 8]>>'
Y = 'tensor<?x64xf32, #dmlc.dims<["batch ceildiv 2", 64]>>'
W = "tensor<8x64xf32>"
INT = "tensor<i64>"
WEIGHT = '{dmlc.role = "param", dmlc.names = ["a.w", "b.w"], dmlc.value = dense_resource<w0> : tensor<8x64xf32>, dmlc.storage = #dmlc.sharding<@mesh, [{}, {"model"}]>}'
PLACE = 'dmlc.name = "encoder.0.query", dmlc.place = {i = ["data"], k = ["model"]}, dmlc.group = 3 : i64'
START = 'axes = ["model"], combiner = "sum", dmlc.bucket = 1 : i64, dmlc.id = "2.ar"'

SHORT = f"""builtin.module {{
  dmlc.mesh {{sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=4]>}} : () -> ()
  func.func @main(%x: {X} {{dmlc.role = "input"}}, %w: {W} {WEIGHT}, %n: {INT} {{dmlc.role = "size"}}) -> {Y} {{
    %r = comm.axis_index {{axis = "data"}} : () -> {INT}
    %start, %valid = dmlc.window %n, %r {{counts = array<i64: 2>, grain = 1 : i64}} : ({INT}, {INT}) -> ({INT}, {INT})
    %y = dmlc.matmul %x, %w {{{PLACE}}} : ({X}, {W}) -> {Y}
    %f = comm.all_reduce_start %y, %w {{{START}}} : ({Y}, {W}) -> !comm.future<{Y}, {W}>
    %a, %b = comm.wait %f {{dmlc.id = "2.ar.wait"}} : (!comm.future<{Y}, {W}>) -> ({Y}, {W})
    %g = dmlc.microbatch %n {{count = 2 : i64, dmlc.id = "9"}} {{
    ^bb1(%i: {INT}):
      %s, %k = dmlc.window %n, %r, %i {{counts = array<i64: 2, 2>, grain = 1 : i64, dmlc.id = "10"}} : ({INT}, {INT}, {INT}) -> ({INT}, {INT})
      dmlc.yield %k : ({INT}) -> ()
    }} : ({INT}) -> {INT}
    func.return %a : {Y}
  }}
}}
"""

GENERIC = f""""builtin.module"() ({{
  "dmlc.mesh"() {{sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=4]>}} : () -> ()
  "func.func"() <{{sym_name = "main", function_type = ({X}, {W}, {INT}) -> {Y}, arg_attrs = [{{dmlc.role = "input"}}, {WEIGHT}, {{dmlc.role = "size"}}]}}> ({{
  ^bb0(%x: {X}, %w: {W}, %n: {INT}):
    %r = "comm.axis_index"() {{axis = "data", dmlc.id = "0"}} : () -> {INT}
    %start, %valid = "dmlc.window"(%n, %r) {{counts = array<i64: 2>, grain = 1 : i64, dmlc.id = "1"}} : ({INT}, {INT}) -> ({INT}, {INT})
    %y = "dmlc.matmul"(%x, %w) {{dmlc.id = "2", {PLACE}}} : ({X}, {W}) -> {Y}
    %f = "comm.all_reduce_start"(%y, %w) {{{START}}} : ({Y}, {W}) -> !comm.future<{Y}, {W}>
    %a, %b = "comm.wait"(%f) {{dmlc.id = "2.ar.wait"}} : (!comm.future<{Y}, {W}>) -> ({Y}, {W})
    %g = "dmlc.microbatch"(%n) ({{
    ^bb1(%i: {INT}):
      %s, %k = "dmlc.window"(%n, %r, %i) {{counts = array<i64: 2, 2>, grain = 1 : i64, dmlc.id = "10"}} : ({INT}, {INT}, {INT}) -> ({INT}, {INT})
      "dmlc.yield"(%k) : ({INT}) -> ()
    }}) {{count = 2 : i64, dmlc.id = "9"}} : ({INT}) -> {INT}
    "func.return"(%a) : ({Y}) -> ()
  }}) : () -> ()
}}) : () -> ()
"""


def renamed(text: str) -> str:
    """The text with SSA names numbered in order of appearance: names carry no meaning."""
    numbers: dict[str, str] = {}
    return re.sub(r"%[A-Za-z0-9_$.]+", lambda m: numbers.setdefault(m[0], f"%{len(numbers)}"), text)


@pytest.mark.parametrize("text, generic", [(SHORT, False), (GENERIC, True)])
def test_the_sample_prints_as_it_was_written(text, generic):
    assert renamed(print_module(parse_module(text), generic)) == renamed(text)


def test_both_forms_of_the_sample_are_one_module():
    short, generic = parse_module(SHORT), parse_module(GENERIC)
    assert structurally_equal(short, generic) is None
    assert print_module(short) == print_module(generic)
    assert print_module(short, True) == print_module(generic, True)


def test_samples_read_right():
    main = parse_module(SHORT).main
    matmul = next(op for op in main.ops() if op.name == "dmlc.matmul")
    assert main.args[0].type == TensorType((symbol("batch"), 8), "f32")
    assert matmul.result.type == TensorType((symbol("batch").ceildiv(2), 64), "f32")
    assert matmul.id == "2" and matmul.attrs["dmlc.place"] == AttrDict(i=("data",), k=("model",))
    assert main.arg("w").attrs["dmlc.value"] == DenseResource("w0", TensorType((8, 64), "f32"))
    assert [op.id for op in main.ops()][5:7] == ["9", "10"]


# ---------------------------------------------------------------- single values


@pytest.mark.parametrize(
    "value, text",
    [
        (3, "3 : i64"), (-3, "-3 : i64"), (1e-5, "1.0e-05 : f64"), (1e16, "1.0e+16 : f64"), (-0.0, "-0.0 : f64"), (0.1, "0.1 : f64"),
        (float("inf"), "0x7FF0000000000000 : f64"), (float("-inf"), "0xFFF0000000000000 : f64"), (float("nan"), "0x7FF8000000000000 : f64"),
        (1 << 63, "9223372036854775808 : i128"), ("a\"b\\\n\t\x00é", '"a\\"b\\\\\\n\\t\\00é"'), (True, "true"), (None, "unit"), ((), "[]"),
        ((2, 4), "array<i64: 2, 4>"), (("a", 1), '["a", 1 : i64]'), ((True, False), "[true, false]"), ((0.5,), "[0.5 : f64]"),
        (((1,), ()), "[array<i64: 1>, []]"), ((symbol("batch"), 8), '#dmlc.dims<["batch", 8]>'), (symbol("n") % 4, '#dmlc.dim<"n mod 4">'),
        (AttrDict(i=("data",)), '{i = ["data"]}'), (AttrDict(), "{}"), (AttrDict({"a-b": None, "x.y": 1}), '{"a-b" = unit, x.y = 1 : i64}'),
        (SymbolRef("main"), "@main"), (SymbolRef("a b"), '@"a b"'), (DenseResource("w.0", TensorType((2,), "bf16")), "dense_resource<w.0> : tensor<2xbf16>"),
        (Axes((("data", 2), ("micro", 4)), ("micro",)), '#dmlc.axes<["data"=2, "micro"=4:sequential]>'),
        (Sharding("mesh", (("data", "model"), ()), (("x", "sum"),), (64, 1)), '#dmlc.sharding<@mesh, [{"data", "model"}, {}], unreduced={"x": "sum"}, grains=[64, 1]>'),
        (TensorType((), "i1"), "tensor<i1>"), (TensorType((0, 8), "f8E4M3FN"), "tensor<0x8xf8E4M3FN>"),
        (FunctionType((), (FunctionType((), ()),)), "() -> (() -> ())"), (FutureType((TensorType((), "f32"),)), "!comm.future<tensor<f32>>"),
    ],
)  # fmt: skip
def test_values_and_their_text(value, text):
    assert attribute_text(value) == text
    assert same_attribute(parse_attribute(text), value)


@pytest.mark.parametrize(
    "text, value",
    [
        ("3", 3), ("3 : i32", 3), ("0x10 : i64", 16), ("0.5 : f32", 0.5), ("1 : f32", 1.0), ("0x7F800000 : f32", float("inf")), ("0xFF80 : bf16", float("-inf")),
        ("0x7C00 : f16", float("inf")), ("array<i64>", ()), ("array<i1: true, false>", (True, False)), ("array<f32: 1.5, -2.0>", (1.5, -2.0)),
        ("[1, 2 : i64]", (1, 2)), ("{a, b = 2}", AttrDict(a=None, b=2)), ('"\\C3\\A9\\0A"', "é\n"), ("3 : index", 3), ('#dmlc.dims<[2, "n floordiv 1"]>', (2, symbol("n"))),
    ],
)  # fmt: skip
def test_other_spellings(text, value):
    assert same_attribute(parse_attribute(text), value)


def test_any_attribute_comes_back():
    rng = random.Random(1)
    for _ in range(2000):
        value = random_attribute(rng)
        assert same_attribute(parse_attribute(attribute_text(value)), value), value


def test_any_type_comes_back():
    rng = random.Random(2)
    for _ in range(1000):
        type_ = random_type(rng)
        assert parse_type(type_text(type_)) == type_


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_come_back_to_the_bit(value):
    text = attribute_text(value)
    assert "." in text.split("e")[0]
    assert struct.pack("<d", parse_attribute(text)) == struct.pack("<d", value)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_keys_of_resources_are_identifiers(key):
    assert unescape_key(escape_key(key)) == key
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_$.]*", escape_key(key))


# ---------------------------------------------------------------- modules

def test_round_trip():
    for seed in range(120):
        module = random_module(seed)
        for generic in (False, True):
            text = print_module(module, generic)
            again = parse_module(text)
            assert structurally_equal(module, again) is None, seed
            assert print_module(again, generic) == text, seed
            assert print_module(again, not generic) == print_module(module, not generic), seed


def xdsl_module(text: str):
    """Parse with xDSL, unregistered ops allowed, and verify."""
    from xdsl.context import Context
    from xdsl.dialects.builtin import Builtin
    from xdsl.dialects.func import Func
    from xdsl.parser import Parser

    context = Context(allow_unregistered=True)
    context.load_dialect(Builtin)
    context.load_dialect(Func)
    module = Parser(context, text).parse_module()
    module.verify()
    return module


RICH = """builtin.module attributes {dmlc.target = "h100", dmlc.e = {}, dmlc.l = []} {
  func.func private @f(%x: tensor<0x8xf32>, %y: tensor<i1>) -> (tensor<0x8xf32> {dmlc.updates = "a"}, tensor<i1>) attributes {dmlc.k = unit} {
    %a, %b:2 = test.three %x {a = -0x1 : i64, b = 0x7FF0000000000000 : f64, d = [true, false], e = "\\"q\\" \\\\ \\t", "f-g" = unit, h = @"a b"} : (tensor<0x8xf32>) -> (tensor<f32>, tensor<i1>, tensor<i1>) loc("a.py":3:4)
    %c = test.region {} {
    } : () -> tensor<f32> loc("node \\"x\\"")
    %d = test.two {x = 1 : i64, y = {}, z = dense_resource<"onnx::MatMul_1/0.w"> : tensor<?xbf16, #dmlc.dims<["n mod 4"]>>} {
      %q = test.y %a {} : (tensor<f32>) -> tensor<f32>
    }, {
    ^bb(%z: tensor<f32>):
      %inner = test.deep %z {
        test.x %q : (tensor<f32>) -> ()
      } : (tensor<f32>) -> !comm.future<tensor<f32>>
      dmlc.yield %z : (tensor<f32>) -> ()
    } : () -> tensor<f32> loc(unknown)
    func.return {q = 1 : i64} %x, %b#1 : tensor<0x8xf32>, tensor<i1> loc("r")
  } loc("f")
} loc("file":1:2)
""".replace("test.x %q", "test.x %z")


@pytest.mark.parametrize("text", [SHORT, GENERIC, RICH])
def test_xdsl_reads_the_generic_form_and_we_read_xdsls(text):
    module = parse_module(text)
    theirs = re.sub(r"(dense_resource<\w+?)_\d+>", r"\1>", str(xdsl_module(print_module(module, generic=True))))  # it renames keys it has seen in this process
    back = parse_module(theirs)
    for op in module.walk():  # xDSL does not print locations
        op.loc = Loc()
    assert structurally_equal(module, back) is None


def plain(text: str) -> bool:
    """Whether no string mixes escapes with characters beyond ASCII: to xDSL such strings are bytes and cannot be names."""
    return not any(("\\" in s and not s.isascii()) or re.search(r"\\[89A-F]", s) for s in re.findall(r'"(?:[^"\\\n]|\\.)*"', text))


def test_xdsl_reads_random_modules():
    texts = [t for seed in range(100) if plain(t := print_module(random_module(seed), generic=True))]
    assert len(texts) > 40
    for text in texts:
        xdsl_module(text)


def test_names_depend_on_attributes_and_order_only():
    text = """func.func @f(%model.x: tensor<f32>) -> tensor<f32> {
  %zzz = test.a %model.x {dmlc.name = "enc/0 (q)"} : (tensor<f32>) -> tensor<f32>
  %b = test.a %zzz {dmlc.name = "enc/0 (q)"} : (tensor<f32>) -> tensor<f32>
  %c, %d = test.a %b {dmlc.id = "12#re"} : (tensor<f32>) -> (tensor<f32>, tensor<f32>)
  %e = test.a %d {dmlc.name = "7"} : (tensor<f32>) -> tensor<f32>
  func.return %e : tensor<f32>
}"""
    module = parse_module(text)
    names = re.findall(r"(%[\w.]+(?:, %[\w.]+)*) =", print_module(module))
    assert names == ["%enc_0__q_", "%enc_0__q__1", "%v12_re_0, %v12_re_1", "%_7"]
    last = next(op for op in module.main.ops() if op.id == "3")
    assert print_op(last) == '%_7 = test.a %v12_re_1 {dmlc.name = "7"} : (tensor<f32>) -> tensor<f32>'


def test_implied_ids_follow_the_order():
    module = parse_module("func.func @f() {\n  test.a : () -> ()\n  test.b : () -> ()\n  func.return\n}")
    a, b = list(module.main.ops())[:2]
    assert (a.id, b.id) == ("0", "1")
    module.main.body.reorder([b, a, module.main.return_op])
    text = print_module(module)
    assert 'test.b {dmlc.id = "1"}' in text and 'test.a {dmlc.id = "0"}' in text
    assert structurally_equal(parse_module(text), module) is None


def test_large_modules_are_quick():
    lines, previous = ["func.func @main(%x: tensor<8x64xf32>, %w: tensor<64x64xf32>) -> tensor<8x64xf32> {"], "%x"
    for i in range(3000):
        attrs = f'dmlc.name = "layer.{i}", dmlc.place = {{i = ["data"], k = ["model"]}}, alpha = 1.0e-05 : f64'
        lines.append(f'  %y{i} = dmlc.matmul {previous}, %w {{{attrs}}} : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32> loc("model.py":{i + 1}:3)')
        previous = f"%y{i}"
    text = "\n".join([*lines, f"  func.return {previous} : tensor<8x64xf32>", "}"])
    best = min(_seconds(text) for _ in range(2))
    assert best < 1.0, f"{best:.2f} s"


def _seconds(text: str) -> float:
    start = time.process_time()
    print_module(parse_module(text))
    return time.process_time() - start


def test_reading_text_loads_no_numerics():
    code = "import sys, dmlc.ir.parser, dmlc.ir.printer, dmlc.ir.verifier; print([m for m in ('numpy', 'torch', 'onnx', 'difflib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_split_input_keeps_line_numbers():
    pieces = split_input("a\nb\n// -----\nc\n// ----- second\nd")
    assert [(t.strip(), line) for t, line in pieces] == [("a\nb", 1), ("c", 3), ("d", 5)]
    text, line = split_input("func.func @f() {\n  func.return\n}\n// -----\n\ntest.a %x : () -> ()")[1]
    with pytest.raises(DmlcError) as error:
        parse_module(text, "f.mlir", line)
    assert error.value.loc == Loc("f.mlir", 6, 8)


# ---------------------------------------------------------------- errors

FUNCTION = "func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {{\n  {}\n  func.return %x : tensor<8xf32>\n}}"

ERRORS = {
    "%y = test.a %z : (tensor<8xf32>) -> tensor<8xf32>": "%z is not defined before its use",
    "%x = test.a : () -> tensor<8xf32>": "%x is already defined, on line 1",
    "%y = test.a %x : (tensor<4xf32>) -> tensor<8xf32>": "%x is a tensor<8xf32>, not a tensor<4xf32>",
    "%y = test.a %x : (tensor<8xf32>) -> tensor<8xfloat32>": "unknown element type 'float32'; did you mean 'f32'?",
    "%y = test.a %x : (tensor<8xf32>) -> tensor<8xf33>": "unknown element type 'f33'; did you mean 'f32'?",
    "%y = test.a %x : (tensor<8xf32>) -> tensor<Bx8xf32>": "'B' is not a size; a symbolic size is written '?'",
    "%y = test.a %x : (tensor<8xf32>) -> tensor<?xf32>": "a size '?' needs #dmlc.dims",
    '%y = test.a %x : (tensor<8xf32>) -> tensor<?xf32, #dmlc.dims<["n +"]>>': "a name or a number is missing in the dim 'n +'",
    '%y = test.a %x : (tensor<8xf32>) -> tensor<?xf32, #dmlc.dims<["n", 2]>>': "#dmlc.dims does not agree with the sizes before it",
    "%y = test.a %x, %x : (tensor<8xf32>) -> f32": "'f32' is not a type of values; a scalar is 'tensor<f32>'",
    "%y, %q = test.a %x : (tensor<8xf32>) -> tensor<f32>": "'test.a' has 1 results but 2 names",
    "%y = test.a %x, %x : (tensor<8xf32>) -> tensor<f32>": "2 operands but 1 operand types",
    "test.a {a = 1e-05} : () -> ()": "'1e…' is not a number; a decimal number has a point, such as 1.0e-05",
    'test.a {a = "open} : () -> ()': "this string has no end on its line",
    'test.a {a = "\\q"} : () -> ()': "'\\q' is not an escape",
    "test.a {a = 1, a = 2} : () -> ()": "attribute 'a' is given twice",
    "test.a {a = #dmlc.shardin<@m, []>} : () -> ()": "unknown attribute #dmlc.shardin; did you mean '#dmlc.sharding'?",
    'test.a {a = #dmlc.sharding<@m, [], unreduced={"x": "summ"}>} : () -> ()': "unknown combiner 'summ'; did you mean 'sum'?",
    "test.a {a = 300 : i8} : () -> ()": "300 does not fit in i8",
    "test.a {a = f32} : () -> ()": "expected an attribute value, found 'f32'; a data type is a string, \"f32\"",
    "test.a {a = 0.5 : i32} : () -> ()": "'0.5' is not an integer but its type is i32",
    "%y = test.a %x#3 : (tensor<8xf32>) -> ()": "%x has 1 values, there is no #3",
    "add %x : (tensor<8xf32>) -> ()": "'add' is not an operation's name",
    "return %x : tensor<8xf32>": "'return' is not an operation's name; did you mean 'func.return'?",
    "# a comment": "unexpected character '#'",
    "test.a : () -> () loc(3)": "expected a file or node name in quotes, or 'unknown', found '3'",
    "test.a () -> ()": "expected ':' before the types, found '('",
    "%y = test.a %x : (!comm.futur<tensor<f32>>) -> ()": "unknown type '!comm.futur'; did you mean '!comm.future'?",
}  # fmt: skip


@pytest.mark.parametrize("line", ERRORS)
def test_errors_show_the_line_and_carets(line):
    message = ERRORS[line]
    with pytest.raises(DmlcError) as error:
        parse_module(FUNCTION.format(line), "bad.mlir")
    e = error.value
    shown = str(e).splitlines()
    assert message in e.message
    assert shown[0].startswith("bad.mlir:2:")
    assert shown[1] == "  " + line
    assert re.fullmatch(r" *\^+", shown[2])
    assert shown[2].index("^") == e.loc.column - 1 and len(shown[2]) <= len(shown[1]) + 1


@pytest.mark.parametrize(
    "text, where, message",
    [
        ("func.func @f(%x: tensor<f32>) -> tensor<f32> {\n  test.a : () -> ()\n}", "1:1", "the body of @f does not end in func.return"),
        ("func.func @f(%x: tensor<f32>) -> tensor<i1> {\n  func.return %x : tensor<f32>\n}", "2:3", "@f is declared to return tensor<i1> but returns tensor<f32>"),
        ("func.func @f(%x: tensor<f32>, %x: tensor<f32>) {\n  func.return\n}", "1:31", "%x is already defined, on line 1"),
        ("func.func @f() {\n  func.return\n", "2:14", "expected '}' or an operation in a region, found the end of the text"),
        ("func.func f() {\n}", "1:11", "expected a function's name, such as @main, found 'f'"),
        ('"func.func"() ({\n}) : () -> ()', "1:1", "func.func needs sym_name, function_type and one region"),
        ("test.a {\n  %y = test.b : () -> tensor<f32>\n} : () -> ()\ntest.c %y : (tensor<f32>) -> ()", "4:8", "%y is not defined before its use"),
    ],
)
def test_errors_of_structure(text, where, message):
    with pytest.raises(DmlcError) as error:
        parse_module(text, "f")
    assert message in str(error.value) and str(error.value).startswith(f"f:{where}: error: ")


def test_a_later_error_at_a_text_location_gets_its_carets():
    text = "func.func @f() {\n  %a = test.a : () -> tensor<f32>\n  func.return\n}"
    op = next(iter(parse_module(text, "f").main.ops()))
    error = annotate(DmlcError("wrong", op.loc), Source(text, "f"))
    assert str(error) == "f:2:8: error: wrong\n  %a = test.a : () -> tensor<f32>\n       ^^^^^^"


@pytest.mark.parametrize("text", [SHORT, GENERIC, RICH], ids=["short", "generic", "rich"])
def test_damaged_text_never_ends_in_a_traceback(text):
    rng = random.Random(7)
    refused = 0
    for _ in range(500):
        bad = damaged(text, rng)
        if rng.random() < 0.3:
            bad = damaged(bad, rng)
        try:
            print_module(parse_module(bad))
        except DmlcError as e:
            refused += 1
            assert e.loc.line and e.source_line is not None and "^" in str(e)
    assert 250 < refused < 500
