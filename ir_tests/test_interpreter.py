"""The interpreter's ranks: windows, collectives on uneven parts, and the diagnosis of programs that would hang on a cluster."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch

import dmlc.ops  # noqa: F401
from dmlc.interpret.arguments import cut, join, poison
from dmlc.interpret.prelude_shards import part_of
from dmlc.interpret.run import run
from dmlc.ir.attributes import Axes, Sharding
from dmlc.ir.builder import Builder
from dmlc.ir.core import Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType
from dmlc.ir.verifier import verify
from dmlc.ops.comm import delivered_types

torch.set_num_threads(1)
MESHES = [Mesh.make(a=2), Mesh.make(a=3), Mesh.make(a=2, b=3), Mesh.make(a=3, b=2), Mesh.make(a=2, b=2, c=2)]


class Program:
    """A program of ranks under construction: arguments and results by their global shape and sharding."""

    def __init__(self, mesh: Mesh):
        self.mesh, self.module = mesh, Module()
        self.module.attrs["dmlc.spmd"] = None
        self.module.body.append(Op("dmlc.mesh", attrs={"sym_name": mesh.name, "axes": mesh.axes}))
        self.function = self.module.add_function("main")
        self.b = Builder.at_end(self.function.body)
        self.results: list[tuple[Value, str, tuple[int, ...], Sharding]] = []

    def argument(self, name: str, shape: tuple[int, ...], sharding: Sharding, dtype: str = "f64") -> Value:
        local = self.mesh.local_type(TensorType(shape, dtype), sharding)
        return self.function.body.add_arg(local, name, {"dmlc.sharding": sharding, "dmlc.global": shape})

    def collective(self, kind: str, *operands: Value, **attrs: Any) -> Op:
        types = delivered_types(f"comm.{kind}", attrs, [v.tensor for v in operands], self.mesh)
        return self.b.op(f"comm.{kind}", operands, attrs, types)

    def gives(self, value: Value, shape: tuple[int, ...], sharding: Sharding, name: str = "y") -> None:
        self.results.append((value, name, shape, sharding))

    def run(self, **inputs: Any) -> dict[str, Any]:
        self.b.op("func.return", [v for v, *_ in self.results], result_types=())
        for attrs, (_, name, shape, sharding) in zip(self.function.result_attrs, self.results):
            attrs.update({"dmlc.name": name, "dmlc.global": shape, "dmlc.sharding": sharding})
        verify(self.module)
        return run(self.module, inputs, poison_pads=True)


def seeded(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def split(mesh: Mesh, *dims: tuple[str, ...], grains: tuple[int, ...] = ()) -> Sharding:
    return Sharding(mesh.name, dims, (), grains)


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize(
    ("n", "counts", "grain", "windows"),
    [
        (7, (2, 3), 1, [(0, 2), (2, 2), (4, 0), (4, 2), (6, 1), (8, 0)]),
        (7, (3, 2), 1, [(0, 2), (2, 1), (3, 2), (5, 1), (6, 1), (8, 0)]),
        (3, (2, 2), 1, [(0, 1), (1, 1), (2, 1), (3, 0)]),
        (21, (2, 3), 3, [(0, 6), (6, 6), (12, 0), (12, 6), (18, 3), (24, 0)]),
        (1, (2, 2), 1, [(0, 1), (1, 0), (1, 0), (2, 0)]),
        (0, (2, 2), 1, [(0, 0)] * 4),
    ],
    ids=str,
)
def test_windows_nest(n: int, counts: tuple[int, int], grain: int, windows: list[tuple[int, int]]) -> None:
    """Each level splits the capacity of the level before; starts may lie past the end, where nothing is valid."""
    mesh = Mesh.make(a=counts[0], b=counts[1])
    program = Program(mesh)
    i64 = TensorType((), "i64")
    size = program.b.emit("dmlc.full", types=[i64], value=n)
    indices = [program.b.emit("comm.axis_index", types=[i64], axis=a) for a in ("a", "b")]
    window = program.b.op("dmlc.window", [size, *indices], {"counts": counts, "grain": grain})
    everyone = split(mesh, ("a", "b"))
    for value, name in zip(window.results, ("start", "valid")):
        program.gives(program.b.emit("dmlc.reshape", value, types=[TensorType((1,), "i64")]), (mesh.devices,), everyone, name)
    found = program.run()
    for rank, (start, valid) in enumerate(windows):
        assert found["valid"][rank] == valid
        assert found["start"][rank] == start or valid == 0
        assert mesh.window(n, ("a", "b"), mesh.coordinates(rank), grain) == (found["start"][rank], valid)


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "x".join(map(str, m.sizes.values())))
@pytest.mark.parametrize("grain", [1, 2, 3])
def test_parts_cover_each_element_once(mesh: Mesh, grain: int) -> None:
    """Whatever the size, fewer elements than ranks too; all ranks' parts have the common local size."""
    for n, axes in itertools.product(range(0, 20), [mesh.order, mesh.order[:1], mesh.order[::-1]]):
        if n % grain:
            continue
        sharding = split(mesh, axes, grains=(grain,))
        x = torch.arange(float(n))
        parts = [cut(x, mesh, sharding, mesh.coordinates(r), poison(x.dtype)) for r in range(mesh.devices)]
        assert {tuple(p.shape) for p in parts} == {(mesh.local_size(n, axes, grain),)}
        valid = torch.cat([p[~p.isnan()] for p in parts])
        assert sorted(valid.tolist()) == sorted(x.tolist() * (mesh.devices // mesh.extent(axes)))
        assert torch.equal(join(dict(enumerate(parts)), mesh, sharding, (n,)), x)


def test_one_level_is_what_emitted_programs_slice() -> None:
    mesh = Mesh.make(a=3)
    for n, grain in itertools.product(range(0, 13), (1, 2)):
        x = torch.arange(n * grain)
        for r in range(3):
            ours = cut(x, mesh, split(mesh, ("a",), grains=(grain,)), {"a": r})
            assert torch.equal(ours, part_of(x, 0, n * grain, grain, r, 3))


# ---------------------------------------------------------------- collectives

SIZES = [(12, 1), (7, 1), (5, 1), (2, 1), (1, 1), (0, 1), (21, 3), (10, 2), (24, 4)]
both = pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "x".join(map(str, m.sizes.values())))
sizes = pytest.mark.parametrize(("n", "grain"), SIZES)


@both
@sizes
def test_all_gather(mesh: Mesh, n: int, grain: int) -> None:
    """The whole dim at once, or its inner levels only; on either dim."""
    x = seeded(n, 3)
    for keep, dim in itertools.product(range(len(mesh.order)), (0, 1)):
        axes, outer = mesh.order[keep:], mesh.order[:keep]
        shape, value = ((n, 3), x) if dim == 0 else ((3, n), x.T)
        dims: list[tuple[str, ...]] = [(), ()]
        dims[dim] = mesh.order
        before = split(mesh, *dims, grains=tuple(grain if d == dim else 1 for d in (0, 1)))
        dims[dim] = outer
        after = split(mesh, *dims, grains=before.grains)
        program = Program(mesh)
        arg = program.argument("x", shape, before)
        y = program.collective("all_gather", arg, axes=axes, dims=(dim,), sizes=(mesh.local_size(n, outer, grain),), grains=(grain,))
        program.gives(y.result, shape, after)
        np.testing.assert_array_equal(program.run(x=value)["y"], value)


@both
@sizes
def test_reduce_scatter(mesh: Mesh, n: int, grain: int) -> None:
    """Every rank brings its own [n, 3]; the sum's parts join to the sum."""
    x = seeded(mesh.devices, n, 3)
    program = Program(mesh)
    arg = program.argument("x", x.shape, split(mesh, mesh.order, (), ()))
    mine = program.b.emit("dmlc.reshape", arg, types=[TensorType((n, 3), "f64")])
    y = program.collective("reduce_scatter", mine, axes=mesh.order, combiner="sum", dims=(0,), sizes=(n,), grains=(grain,))
    program.gives(y.result, (n, 3), split(mesh, mesh.order, (), grains=(grain, 1)))
    np.testing.assert_allclose(program.run(x=x)["y"], x.sum(0), rtol=1e-13, atol=1e-13)


@both
@sizes
def test_all_to_all(mesh: Mesh, n: int, grain: int) -> None:
    """From one dim to the other: the innermost axis alone, then all axes."""
    x = seeded(n, 5)
    for keep in range(len(mesh.order)):
        axes, outer = mesh.order[keep:], mesh.order[:keep]
        program = Program(mesh)
        arg = program.argument("x", x.shape, split(mesh, mesh.order, (), grains=(grain, 1)))
        size = mesh.local_size(n, outer, grain)
        y = program.collective("all_to_all", arg, axes=axes, split_dims=(1,), split_sizes=(5,), split_grains=(1,), dims=(0,), sizes=(size,), grains=(grain,))
        program.gives(y.result, x.shape, split(mesh, outer, axes, grains=(grain, 1)))
        np.testing.assert_array_equal(program.run(x=x)["y"], x)


@pytest.mark.parametrize(
    ("combiner", "dtype", "meant"),
    [("sum", "f64", np.add), ("prod", "f64", np.multiply), ("max", "f64", np.maximum), ("min", "i64", np.minimum), ("and", "i1", np.logical_and), ("or", "i1", np.logical_or)],
)
def test_combiners(combiner: str, dtype: str, meant: Any) -> None:
    mesh = Mesh.make(a=3)
    x = seeded(3, 8)
    x = x > 0 if dtype == "i1" else (x * 10).astype(np.int64) if dtype == "i64" else x
    program = Program(mesh)
    arg = program.argument("x", x.shape, split(mesh, ("a",), ()), dtype)
    program.gives(program.collective("all_reduce", arg, axes=("a",), combiner=combiner).result, (1, 8), split(mesh, (), ()))
    np.testing.assert_allclose(program.run(x=x)["y"], meant.reduce(x, 0, keepdims=True))


def test_maximum_keeps_nan() -> None:
    mesh = Mesh.make(a=2)
    program = Program(mesh)
    arg = program.argument("x", (2,), split(mesh, ("a",)))
    program.gives(program.collective("all_reduce", arg, axes=("a",), combiner="max").result, (1,), split(mesh, ()))
    assert np.isnan(program.run(x=np.array([np.nan, 1.0]))["y"]).all()


def test_a_bucket_is_its_members() -> None:
    """Three operands of other shapes, dims and grains in one collective; groups of two in a mesh of six."""
    mesh = Mesh.make(a=3, b=2)
    x, y, z = seeded(3, 7, 2), seeded(3, 2, 6), seeded(3, 5)
    program = Program(mesh)
    shardings = [split(mesh, ("a",), ("b",), ()), split(mesh, ("a",), (), ("b",), grains=(1, 1, 3)), split(mesh, ("a",), ("b",))]
    args = [program.argument(n, v.shape, s) for n, v, s in zip("xyz", (x, y, z), shardings)]
    bucket = program.collective("all_gather", *args, axes=("b",), dims=(1, 2, 1), sizes=(7, 6, 5), grains=(1, 3, 1))
    for name, value, result in zip("xyz", (x, y, z), bucket.results):
        program.gives(result, value.shape, split(mesh, ("a",), *((),) * (value.ndim - 1)), name)
    found = program.run(x=x, y=y, z=z)
    for name, value in zip("xyz", (x, y, z)):
        np.testing.assert_array_equal(found[name], value)


# ---------------------------------------------------------------- deadlocks

HEAD = """builtin.module attributes {dmlc.spmd} {
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["a"=2, "b"=2]>} : () -> ()
func.func @main(%x: tensor<4xf64>) -> tensor<4xf64> {
%r = comm.axis_index {axis = "a"} : () -> tensor<i64>
%one = dmlc.full {value = 1 : i64} : () -> tensor<i64>
%p = dmlc.eq %r, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
%q = comm.axis_index {axis = "b"} : () -> tensor<i64>
%diagonal = dmlc.eq %r, %q : (tensor<i64>, tensor<i64>) -> tensor<i1>
"""
TAIL = "func.return %y : tensor<4xf64>\n}\n}\n"
TYPE = "(tensor<4xf64>) -> tensor<4xf64>"


def reduced(name: str, axis: str = "a", operand: str = "%x") -> str:
    return f'%{name} = comm.all_reduce {operand} {{axes = ["{axis}"]}} : {TYPE}'


SEND = 'comm.send %x {{axis = "a", to = {}, tag = {}}} : (tensor<4xf64>) -> ()'
RECV = '%{} = comm.recv {{axis = "a", source = {}, tag = {}}} : () -> tensor<4xf64>'


def branches(one: list[str], other: list[str], gives: tuple[str, str] = ("%x", "%x"), where: str = "%p") -> str:
    """A program whose ranks with a=1 (or `where`) take the first branch."""
    lines = [f"%y = dmlc.cond {where} {{", *one, f"dmlc.yield {gives[0]} : (tensor<4xf64>) -> ()", "}, {", *other, f"dmlc.yield {gives[1]} : (tensor<4xf64>) -> ()", "} : (tensor<i1>) -> tensor<4xf64>"]
    return HEAD + "\n".join(lines) + "\n" + TAIL


def diagnosis(text: str) -> str:
    module = parse_module(text, "case.mlir")
    verify(module)
    with pytest.raises(DmlcError) as caught:
        run(module, {"x": np.ones(4)})
    return str(caught.value)


def lines_in(message: str) -> set[int]:
    return {int(n) for n in re.findall(r"case\.mlir:(\d+):", message)}


def line_of(text: str, piece: str, which: int = 0) -> int:
    return [i for i, line in enumerate(text.splitlines(), 1) if piece in line][which]


def test_two_collectives_swapped_on_some_ranks() -> None:
    """Of equal type and group they would silently give each other's values."""
    text = branches([reduced("u"), reduced("v")], [reduced("w"), reduced("t")])
    message = diagnosis(text)
    assert "issue different collectives at the same place" in message
    assert lines_in(message) == {line_of(text, "%u ="), line_of(text, "%w =")}


def test_two_groups_wait_in_a_circle() -> None:
    """Ranks on the diagonal reduce over a first, the others over b: each waits for a rank that waits for the next."""
    text = branches([reduced("u", "a"), reduced("v", "b")], [reduced("w", "b"), reduced("t", "a")], where="%diagonal")
    message = diagnosis(text)
    assert "deadlock" in message and message.count("waits in 'comm.all_reduce'") == 4
    assert lines_in(message) == {line_of(text, "%u ="), line_of(text, "%w =")}


def test_collectives_that_differ_in_kind_or_size() -> None:
    gather = '%v = comm.all_gather %x {axes = ["a"], dims = array<i64: 0>, sizes = array<i64: 8>, grains = array<i64: 1>} : (tensor<4xf64>) -> tensor<8xf64>'
    text = branches([reduced("u")], [gather])
    message = diagnosis(text)
    assert "different collectives" in message and lines_in(message) >= {line_of(text, "all_reduce"), line_of(text, "all_gather")}


def test_a_participant_is_missing() -> None:
    text = branches([reduced("u")], [])
    message = diagnosis(text)
    assert "deadlock" in message and "lacks ranks [0] (which have finished)" in message
    assert line_of(text, "all_reduce") in lines_in(message)


def test_a_participant_waits_elsewhere() -> None:
    text = branches([reduced("u")], [RECV.format("m", 1, 0)], ("%u", "%m"))
    message = diagnosis(text)
    assert "deadlock" in message and lines_in(message) >= {line_of(text, "all_reduce"), line_of(text, "comm.recv")}
    assert "rank 0 waits in 'comm.recv'" in message and "for a message of rank 2, which waits at" in message


def test_a_message_without_sender() -> None:
    text = branches([RECV.format("m", 0, 7)], [SEND.format(1, 6)], ("%m", "%x"))
    message = diagnosis(text)
    assert "rank 2 waits in 'comm.recv'" in message and "for a message of rank 0, which has finished" in message
    assert line_of(text, "comm.recv") in lines_in(message)


def test_a_message_without_receiver() -> None:
    text = branches([], [SEND.format(1, 7)])
    message = diagnosis(text)
    assert "rank 2 never receives a message that rank 0 sends with tag 7" in message and lines_in(message) == {line_of(text, "comm.send")}


def test_both_receive_before_they_send() -> None:
    text = branches([RECV.format("m", 0, 0), SEND.format(0, 1)], [RECV.format("n", 1, 1), SEND.format(1, 0)], ("%m", "%n"))
    message = diagnosis(text)
    assert "deadlock" in message and lines_in(message) >= {line_of(text, "comm.recv"), line_of(text, "comm.recv", 1)}


def test_messages_keep_their_order_and_tags_apart() -> None:
    """Sent in one order, received by tag in the other: a send does not wait for its receiver."""
    scaled = "%d = dmlc.add %x, %x : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xf64>"
    one = [RECV.format("m", 0, 1), RECV.format("n", 0, 0), "%k = dmlc.sub %m, %n : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xf64>"]
    text = branches(one, [scaled, SEND.format(1, 0), SEND.format(1, 1).replace("%x", "%d")], ("%k", "%x"))
    assert run(parse_module(text), {"x": np.full(4, 3.0)})["result0"].tolist() == [3.0] * 4  # 6 - 3 on ranks with a=1; rank 0 keeps x


def test_a_message_of_another_shape() -> None:
    text = branches([RECV.format("m", 0, 0).replace("tensor<4xf64>", "tensor<3xf64>")], [SEND.format(1, 0)])
    message = diagnosis(text)
    assert "'comm.recv' gave (4,)" in message and lines_in(message) == {line_of(text, "comm.recv")}


def test_starts_may_be_waited_for_in_another_order() -> None:
    """Ranks agree on the order of starts; each waits when it likes."""
    future = "!comm.future<tensor<4xf64>>"
    start = '%{0} = comm.all_reduce_start %x {{axes = ["a"]}} : (tensor<4xf64>) -> ' + future
    wait = "%{1} = comm.wait %{0} : (" + future + ") -> tensor<4xf64>"
    add = "%s = dmlc.add %u, %v : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xf64>"
    body = "\n".join([start.format("f"), start.format("g"), wait.format("g", "u"), wait.format("f", "v"), add, "func.return %s : tensor<4xf64>\n}\n}\n"])
    assert run(parse_module(HEAD + body), {"x": np.ones(4)})["result0"].tolist() == [4.0] * 4


def test_sequential_axes_take_no_ranks() -> None:
    mesh = Mesh(Axes((("data", 2), ("micro", 4)), ("micro",)))
    assert mesh.devices == 2 and mesh.coordinates(1) == {"data": 1} and mesh.group(0, ("data",)) == (0, 1)
