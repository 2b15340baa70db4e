"""The independent counter on hand-written programs, among them one that only pretends to be tensor parallel."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dmlc.tools import count_shares
from dmlc.tools.count_shares import HEAD, count, read, split, total_work

GLOBAL = """builtin.module attributes {dmlc.request = {devices = 4 : i64}} {
  func.func @main(%x: tensor<2x8x256xf32> {dmlc.role = "input"}, %h_0_up: tensor<256x512xf32> {dmlc.role = "param", dmlc.names = ["h.0.up"]}, %h_0_down: tensor<512x256xf32> {dmlc.role = "param", dmlc.names = ["h.0.down"]}, %norm: tensor<256xf32> {dmlc.role = "param"}) -> (tensor<2x8x256xf32> {dmlc.name = "y"}) {
    %a = dmlc.matmul %x, %h_0_up : (tensor<2x8x256xf32>, tensor<256x512xf32>) -> tensor<2x8x512xf32> loc("a (b) -> c")
    %b = dmlc.matmul %a, %h_0_down {dmlc.name = "b = c {d"} : (tensor<2x8x512xf32>, tensor<512x256xf32>) -> tensor<2x8x256xf32>
    %c = dmlc.mul %b, %norm : (tensor<2x8x256xf32>, tensor<256xf32>) -> tensor<2x8x256xf32>
    func.return %c : tensor<2x8x256xf32>
  }
}
"""

TENSOR_PARALLEL = """builtin.module attributes {dmlc.spmd = unit} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>} : () -> ()
  func.func @main(%x: tensor<2x8x256xf32> {dmlc.role = "input", dmlc.sharding = #dmlc.sharding<@mesh, [{}, {}, {}]>}, %h_0_up: tensor<256x128xf32> {dmlc.role = "param", dmlc.names = ["h.0.up"]}, %h_0_down: tensor<128x256xf32> {dmlc.role = "param", dmlc.names = ["h.0.down"]}, %norm: tensor<256xf32> {dmlc.role = "param"}) -> (tensor<2x8x256xf32> {dmlc.name = "y"}) {
    %a = dmlc.matmul %x, %h_0_up : (tensor<2x8x256xf32>, tensor<256x128xf32>) -> tensor<2x8x128xf32>
    %b = dmlc.matmul %a, %h_0_down : (tensor<2x8x128xf32>, tensor<128x256xf32>) -> tensor<2x8x256xf32>
    %s = comm.all_reduce_start %b {axes = ["model"], combiner = "sum"} : (tensor<2x8x256xf32>) -> !comm.future<tensor<2x8x256xf32>>
    %r = comm.wait %s : (!comm.future<tensor<2x8x256xf32>>) -> tensor<2x8x256xf32>
    %c = dmlc.mul %r, %norm : (tensor<2x8x256xf32>, tensor<256xf32>) -> tensor<2x8x256xf32>
    %m = comm.all_reduce %x {axes = ["model"], combiner = "max"} : (tensor<2x8x1xf32>) -> tensor<2x8x1xf32>
    func.return %c : tensor<2x8x256xf32>
  }
}
"""

ACTIVATION = (2, 8, 256)


def test_a_split_program_holds_and_does_its_part():
    shares = count(TENSOR_PARALLEL, GLOBAL, ACTIVATION)
    assert (shares.bytes, shares.work, shares.whole) == (0.25, 0.25, [])
    assert [(t.kind, t.elements, t.layer, t.full) for t in shares.traffic] == [("all_reduce", 4096, 0, 1.0), ("all_reduce", 16, -1, 0.0)]
    assert shares.full_a_layer() == {0: 1.0}


def test_replicating_everything_does_not_pass_for_tensor_parallel():
    """The annotations claim a split; the types tell the truth."""
    shares = count(GLOBAL.replace('dmlc.role = "param"', 'dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{"model"}, {}]>'), GLOBAL, ACTIVATION)
    assert (shares.bytes, shares.work) == (1.0, 1.0)
    assert shares.whole == ["%h_0_up", "%h_0_down"]


def test_split_weights_gathered_before_use_save_no_work():
    gathered = TENSOR_PARALLEL.replace(
        "%a = dmlc.matmul %x, %h_0_up : (tensor<2x8x256xf32>, tensor<256x128xf32>) -> tensor<2x8x128xf32>",
        "%g = comm.all_gather %h_0_up : (tensor<256x128xf32>) -> tensor<256x512xf32>\n"
        "%a = dmlc.matmul %x, %g : (tensor<2x8x256xf32>, tensor<256x512xf32>) -> tensor<2x8x512xf32>",
    )
    shares = count(gathered, GLOBAL, ACTIVATION)
    assert (shares.bytes, shares.work) == (0.25, 0.625)
    assert shares.full_a_layer() == {0: 1.0 + 0.5 * 32}


def test_a_weight_only_the_rank_knows_counts_as_held():
    more = TENSOR_PARALLEL.replace("%x: tensor<2x8x256xf32>", '%copy: tensor<512x256xf32> {dmlc.role = "const"}, %x: tensor<2x8x256xf32>')
    shares = count(more, GLOBAL)
    assert (shares.bytes, shares.whole) == (0.75, ["%copy"])


def test_chunks_of_an_activation_add_up():
    half = "(tensor<2x4x256xf32>) -> tensor<2x4x256xf32>"
    chunks = "\n".join(f'    %k{i} = comm.all_reduce %b {{axes = ["model"]}} : {half}' for i in range(2))
    line = next(line for line in TENSOR_PARALLEL.splitlines() if "all_reduce_start" in line)
    assert count(TENSOR_PARALLEL.replace(line, chunks), GLOBAL, ACTIVATION).full_a_layer() == {0: 1.0}


def test_a_pair_of_gather_and_scatter_counts_as_one_and_the_head_apart():
    pair = """    %s = comm.reduce_scatter %b : (tensor<2x8x256xf32>) -> tensor<2x2x256xf32>
    %n = dmlc.mul %s, %norm : (tensor<2x2x256xf32>, tensor<256xf32>) -> tensor<2x2x256xf32>
    %g = comm.all_gather %n : (tensor<2x2x256xf32>) -> tensor<2x8x256xf32>
    %u = dmlc.matmul %g, %h_0_down : (tensor<2x8x128xf32>, tensor<128x256xf32>) -> tensor<2x8x256xf32>"""
    line = next(line for line in TENSOR_PARALLEL.splitlines() if "all_reduce_start" in line)
    shares = count(TENSOR_PARALLEL.replace(line, pair), GLOBAL, ACTIVATION)
    assert [(t.kind, t.layer, t.full) for t in shares.traffic][:2] == [("reduce_scatter", 0, 1.0), ("all_gather", HEAD, 1.0)]
    assert shares.full_a_layer() == {0: 0.5}


@pytest.mark.parametrize(
    ("op", "work"),
    [
        ("dmlc.linear %a, %b : (tensor<5x3xf32>, tensor<7x3xf32>) -> tensor<5x7xf32>", 2 * 5 * 7 * 3),
        ('dmlc.contract %a, %b {equation = "abk,akc->cb"} : (tensor<2x3x5xf32>, tensor<2x5x7xf32>) -> tensor<7x3xf32>', 2 * 2 * 3 * 5 * 7),
        ("dmlc.conv %a, %b : (tensor<2x6x9x9xf32>, tensor<8x3x3x3xf32>) -> tensor<2x8x7x7xf32>", 2 * 2 * 8 * 49 * 27),
        ("dmlc.conv_transpose %a, %b : (tensor<2x6x4x4xf32>, tensor<6x5x2x2xf32>) -> tensor<2x5x8x8xf32>", 2 * 2 * 6 * 16 * 20),
        ("dmlc.attention %a, %b, %c : (tensor<1x4x8x16xf32>, tensor<1x2x9x16xf32>, tensor<1x2x9x32xf32>) -> tensor<1x4x8x32xf32>", 2 * 32 * 9 * 48),
        ("dmlc.add %a, %b : (tensor<5x3xf32>, tensor<5x3xf32>) -> tensor<5x3xf32>", 0),
    ],
)
def test_work_of_an_op(op, work):
    assert total_work(read(f"func.func @main(%a: tensor<1xf32>) {{\n  %y = {op}\n}}")) == work


def test_loops_and_kernels_multiply():
    text = """func.func @main(%a: tensor<4x4xf32>) {
  %y = dmlc.scan %a {count = 3 : i64} {
  ^bb0(%i: tensor<i64>, %c: tensor<4x4xf32>):
    %m = kernel.call %c {kernel = "two"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    dmlc.yield %m : (tensor<4x4xf32>) -> ()
  } : (tensor<4x4xf32>) -> tensor<4x4xf32>
}
func.func private @two(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %m = dmlc.matmul %a, %a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %n = dmlc.matmul %m, %a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %n : tensor<4x4xf32>
}"""
    assert total_work(read(text)) == 3 * 2 * 128


def test_open_sizes_are_refused():
    with pytest.raises(ValueError, match="open"):
        read('func.func @main(%a: tensor<?x8xf32, #dmlc.dims<["batch", 8]>>) {\n}')


def test_commas_inside_brackets_and_quotes_do_not_split():
    assert split('%a: tensor<2xf32> {x = [1, 2], s = "a, {"}, %b: (i64) -> i64') == ['%a: tensor<2xf32> {x = [1, 2], s = "a, {"}', "%b: (i64) -> i64"]


def test_it_shares_no_code_with_dmlc():
    tree = ast.parse(Path(count_shares.__file__).read_text())
    modules = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)] + [
        a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names
    ]
    assert not [m for m in modules if m.split(".")[0] == "dmlc"]
