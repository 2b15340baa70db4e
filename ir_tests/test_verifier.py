"""Each way a module can be wrong is found and named with its place; what is right passes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from random_modules import damaged

import dmlc.ops  # noqa: F401  (registers the op definitions)
from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, Module, Op, Region
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.types import TensorType
from dmlc.ir.verifier import verify

F = "tensor<4xf32>"
FUTURE = f"!comm.future<{F}>"
MESH = 'dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=4]>} : () -> ()\n'


def function(body: str, args: str = f"%x: {F}, %p: tensor<i1>", result: str = f" -> {F}", returned: str = f"%x : {F}") -> str:
    return f"{MESH}func.func @main({args}){result} {{\n{body}\nfunc.return {returned}\n}}"


def start(name: str) -> str:
    return f'{name} = comm.all_reduce_start %x {{axes = ["data"], combiner = "sum"}} : ({F}) -> {FUTURE}\n'


def wait(future: str, name: str) -> str:
    return f"{name} = comm.wait {future} : ({FUTURE}) -> {F}\n"


def error_of(text: str) -> DmlcError:
    module = parse_module(text, "f")
    with pytest.raises(DmlcError) as error:
        verify(module)
    assert error.value.loc.known, error.value
    return error.value


# ---------------------------------------------------------------- what is right

RIGHT = {
    "plain": f"%y = dmlc.add %x, %x : ({F}, {F}) -> {F}",
    "unregistered dialect": "%y = test.any {dmlc.x = 1 : i64} : () -> tensor<f32>",
    "waited": start("%f") + wait("%f", "%y"),
    "waited in both branches": start("%f") + f"%y = dmlc.cond %p {{\n{wait('%f', '%a')}dmlc.yield %a : ({F}) -> ()\n}}, {{\n{wait('%f', '%b')}dmlc.yield %b : ({F}) -> ()\n}} : (tensor<i1>) -> {F}",
    "carried by a loop": start("%f") + f"""%g = dmlc.scan %f {{count = 3 : i64}} {{
^bb1(%i: tensor<i64>, %c: {FUTURE}):
{wait('%c', '%a')}{start('%n').replace('%x', '%a')}dmlc.yield %n : ({FUTURE}) -> ()
}} : ({FUTURE}) -> {FUTURE}
""" + wait("%g", "%y"),
    "placed": f'%y = dmlc.exp %x {{dmlc.place = {{e0 = ["data", "model"]}}}} : ({F}) -> {F}',
    "strategy": f'%y = test.e %x {{dmlc.place = {{strategy = {{vocabulary = ["model"]}}, linear = {{data = 0 : i64}}, grains = {{e0 = 2 : i64}}}}}} : ({F}) -> {F}',
    "resharded": f'%y = dmlc.reshard %x {{to = #dmlc.sharding<@mesh, [{{"data"}}]>}} : ({F}) -> {F}',
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_modules_pass(name):
    verify(parse_module(function(RIGHT[name])))


def test_signature_shardings_pass():
    attrs = '{dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}], unreduced={"model": "sum"}, grains=[2]>}'
    verify(parse_module(function("", args=f"%x: {F} {attrs}", result=f" -> ({F} {attrs})")))


# ---------------------------------------------------------------- what is wrong, as text

WRONG = {
    "unknown op": (f"%y = dmlc.matmull %x, %x : ({F}, {F}) -> {F}", "unknown op 'dmlc.matmull'; did you mean 'dmlc.matmul'?"),
    "result type": (f"%y = dmlc.exp %x : ({F}) -> tensor<8xf32>", "'dmlc.exp' has result types (tensor<8xf32>) but its operands give (tensor<4xf32>)"),
    "unknown attribute": (f"%y = dmlc.exp %x {{fast = true}} : ({F}) -> {F}", "'dmlc.exp' has no attribute 'fast'"),
    "operands missing": ("%y = dmlc.matmul : () -> tensor<f32>", "dmlc.matmul"),
    "id twice": ('test.a {dmlc.id = "1"} : () -> ()\ntest.b : () -> ()', 'two ops have the dmlc.id "1"'),
    "yield in a function": ("dmlc.yield : () -> ()", "'func.return' stands after 'dmlc.yield'"),
    "no terminator": ("%y = dmlc.microbatch {count = 2 : i64} {\n^bb1(%i: tensor<i64>):\n  test.a : () -> ()\n} : () -> tensor<f32>", "does not end in a yield"),
    "return in a region": ("dmlc.microbatch {count = 2 : i64} {\n^bb1(%i: tensor<i64>):\n  func.return\n} : () -> ()", "does not end in a yield"),
    "two blocks": ("test.a {\n^bb1:\n  dmlc.yield : () -> ()\n^bb2:\n  dmlc.yield : () -> ()\n} : () -> ()", "has 2 blocks; it must have one"),
    "isolated": (f"%y = kernel.fused {{}} {{\n  %a = dmlc.exp %x : ({F}) -> {F}\n  kernel.yield %a : ({F}) -> ()\n}} : () -> {F}", "is not defined before its use"),
    "nested function": ("func.func @g() {\nfunc.return\n}", "a function stands inside another"),
    # futures
    "never waited": (start("%f"), "this future is never waited for"),
    "waited twice": (start("%f") + wait("%f", "%a") + wait("%f", "%b"), "this future is consumed 2 times"),
    "waited in one branch": (start("%f") + f"%y = dmlc.cond %p {{\n{wait('%f', '%a')}dmlc.yield %a : ({F}) -> ()\n}}, {{\ndmlc.yield %x : ({F}) -> ()\n}} : (tensor<i1>) -> {F}", "in some regions of 'dmlc.cond' only"),
    "waited in a loop": (start("%f") + f"%y = dmlc.microbatch {{count = 2 : i64}} {{\n^bb1(%i: tensor<i64>):\n{wait('%f', '%a')}dmlc.yield %a : ({F}) -> ()\n}} : () -> {F}", "may run any number of times"),
    "waited after and in a branch": (start("%f") + wait("%f", "%z") + f"%y = dmlc.cond %p {{\n{wait('%f', '%a')}dmlc.yield %a : ({F}) -> ()\n}}, {{\n{wait('%f', '%b')}dmlc.yield %b : ({F}) -> ()\n}} : (tensor<i1>) -> {F}", "consumed 2 times"),
    "carried but not waited in the body": (start("%f") + f"%g = dmlc.scan %f {{count = 3 : i64}} {{\n^bb1(%i: tensor<i64>, %c: {FUTURE}):\n{start('%n')}dmlc.yield %n : ({FUTURE}) -> ()\n}} : ({FUTURE}) -> {FUTURE}\n" + wait("%g", "%y"), "this future is never waited for"),
    "future to another op": (start("%f") + f"test.a %f : ({FUTURE}) -> ()", "a future is given to 'test.a'"),
    # meshes
    "axis of a place": (f'%y = dmlc.exp %x {{dmlc.place = {{e0 = ["dat"]}}}} : ({F}) -> {F}', "dmlc.place of 'dmlc.exp' names the axis \"dat\"; the mesh has data, model; did you mean 'data'?"),
    "axis twice in a place": (f'%y = dmlc.exp %x {{dmlc.place = {{e0 = ["data"], linear = {{data = 0 : i64}}}}}} : ({F}) -> {F}', 'uses the axis "data" twice'),
    "place of no axes": (f"%y = dmlc.exp %x {{dmlc.place = {{e0 = 3 : i64}}}} : ({F}) -> {F}", "gives no list of axis names"),
    "mesh of a sharding": ("test.a {s = #dmlc.sharding<@mash, []>} : () -> ()", "names the mesh @mash, which is not in the module; did you mean 'mesh'?"),
    "sharding deep inside": ('test.a {s = [{t = #dmlc.sharding<@mesh, [{"pipe"}]>}]} : () -> ()', "attribute 's' of 'test.a' names the axis \"pipe\""),
    "axis split twice": ('test.a {s = #dmlc.sharding<@mesh, [{"data"}, {"data"}]>} : () -> ()', 'uses the axis "data" twice'),
    "axis split and unreduced": ('test.a {s = #dmlc.sharding<@mesh, [{"data"}], unreduced={"data": "sum"}>} : () -> ()', 'uses the axis "data" twice'),
    "grains": ("test.a {s = #dmlc.sharding<@mesh, [{}, {}], grains=[2]>} : () -> ()", "needs one grain of at least 1 for each of its 2 dims"),
    "rank of a reshard": (f"%y = dmlc.reshard %x {{to = #dmlc.sharding<@mesh, [{{}}, {{}}]>}} : ({F}) -> {F}", "has 2 dims for a tensor of rank 1"),
    "collective's axis": (f'%y = comm.all_reduce %x {{axes = ["pipe"]}} : ({F}) -> {F}', "pipe"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_modules_are_refused(name):
    body, message = WRONG[name]
    assert message in str(error_of(function(body)))


@pytest.mark.parametrize(
    "text, message",
    [
        (MESH + MESH, "@mesh is defined twice"),
        ("func.func @f() {\nfunc.return\n}\nfunc.func @f() {\nfunc.return\n}", "@f is defined twice"),
        ('dmlc.mesh {sym_name = "mesh", axes = 3 : i64} : () -> ()', "needs axes"),
        ('dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["a"=2, "a"=2]>} : () -> ()', 'the mesh has two axes "a"'),
        ('dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["a"=0]>} : () -> ()', 'axis "a" has size 0'),
        (function("", args=f"%x: {F} {{dmlc.storage = #dmlc.sharding<@mesh, [{{}}, {{}}]>}}"), "dmlc.storage of %x has 2 dims for a tensor of rank 1"),
        (function("", result=f" -> ({F} {{dmlc.sharding = #dmlc.sharding<@mesh, []>}})"), "dmlc.sharding of result 0 has 0 dims for a tensor of rank 1"),
        (function("", args=f"%x-y: {F}", returned=f"%x-y : {F}"), "cannot name an argument"),
        (f"func.func @f(%x: {FUTURE}) -> {FUTURE} {{\nfunc.return %x : {FUTURE}\n}}", "a future is given to 'func.return'"),
    ],
)
def test_wrong_signatures_and_meshes_are_refused(text, message):
    assert message in str(error_of(text))


def test_the_error_names_the_ops_place():
    assert str(error_of(function("test.b : () -> ()\n%y = dmlc.ad %x : (tensor<4xf32>) -> tensor<4xf32>"))).startswith("f:4:6: error: ")


# ---------------------------------------------------------------- what text cannot say


def fresh() -> tuple[Module, Builder]:
    module = Module()
    f = module.add_function("main", [TensorType((4,), "f32")], ["x"])
    f.body.append(Op("func.return"))
    return module, Builder(f.body, f.return_op, IdPool(f))


def broken_use_list(module: Module, b: Builder) -> None:
    x = module.main.args[0]
    b.op("test.a", [x], {}, [])
    x.uses.clear()


def stale_use(module: Module, b: Builder) -> None:
    x = module.main.args[0]
    x.uses[b.op("test.a", [], {}, []), 0] = None


def used_outside(module: Module, b: Builder) -> None:
    Op("test.floating", [module.main.args[0]])


def used_before(module: Module, b: Builder) -> None:
    late = b.op("test.late", [], {}, [TensorType((), "f32")])
    b.op("test.early", [late.result], {}, [])
    module.main.body.reorder([*reversed(module.main.body.ops[:-1]), module.main.return_op])


def inner_value_outside(module: Module, b: Builder) -> None:
    block = Block([TensorType((), "i64")])
    block.append(Op("dmlc.yield"))
    b.op("test.region", [], {}, [], regions=[Region([block])])
    b.op("test.a", [block.args[0]], {}, [])


def other_function(module: Module, b: Builder) -> None:
    g = module.add_function("g", [TensorType((), "f32")], ["y"])
    g.body.append(Op("func.return"))
    b.op("test.a", [g.args[0]], {}, [])


def no_id(module: Module, b: Builder) -> None:
    del b.op("test.a", [], {}, []).attrs["dmlc.id"]


def foreign_attribute(module: Module, b: Builder) -> None:
    b.op("test.a", [], {"sizes": (1, [2])}, [])


def foreign_argument_attribute(module: Module, b: Builder) -> None:
    module.main.args[0].attrs["dmlc.role"] = AttrDict(a=object())


def same_argument_name(module: Module, b: Builder) -> None:
    module.main.body.add_arg(TensorType((), "f32"), "x")


def unnamed_argument(module: Module, b: Builder) -> None:
    module.main.args[0].name = ""


def too_many_result_attributes(module: Module, b: Builder) -> None:
    module.main.op.attrs["res_attrs"] = [{}, {}]


def no_return(module: Module, b: Builder) -> None:
    module.main.return_op.remove()


def block_argument_index(module: Module, b: Builder) -> None:
    module.main.args[0].index = 3


@pytest.mark.parametrize(
    "damage, message",
    [
        (broken_use_list, "operand 0 of 'test.a' does not know this use"), (stale_use, "argument %x lists a use by 'test.a' that is none"),
        (used_outside, "argument %x is used by 'test.floating', which is not in the module"), (used_before, "a result of 'test.late' 0, is not defined before its use"),
        (inner_value_outside, "block argument 0, is not defined before its use"), (other_function, "argument %y, is not defined before its use"),
        (no_id, "'test.a' has no dmlc.id"), (foreign_attribute, "attribute 'sizes' of 'test.a' holds a list"), (foreign_argument_attribute, "attribute 'dmlc.role' of argument %x holds a object"),
        (same_argument_name, "has two arguments %x"), (unnamed_argument, "cannot name an argument"), (too_many_result_attributes, "more entries than there are results"),
        (no_return, "does not end in func.return"), (block_argument_index, "out of step"),
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)  # fmt: skip
def test_damage_in_memory_is_found(damage: Callable, message):
    module, b = fresh()
    verify(module)
    damage(module, b)
    with pytest.raises(DmlcError) as error:
        verify(module)
    assert message in str(error.value)


def test_damaged_text_never_ends_in_a_traceback():
    """What still parses is verified or refused."""
    rng = random.Random(11)
    text = function(RIGHT["waited in both branches"] + "\n" + RIGHT["placed"].replace("%y", "%z") + f"\n%t, %u = dmlc.topk %x {{k = 2 : i64, dim = 0 : i64}} : ({F}) -> (tensor<2xf32>, tensor<2xi64>)")
    verify(parse_module(text))
    parsed = refused = 0
    for _ in range(500):
        try:
            module = parse_module(damaged(text, rng))
        except DmlcError:
            continue
        parsed += 1
        try:
            verify(module)
        except DmlcError:
            refused += 1
    assert parsed > 30 and refused > 10
