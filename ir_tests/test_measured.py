"""Measured times: keys of ops, databases by the hash of their content, how they are found, that prices follow them."""

from __future__ import annotations

import sqlite3

import pytest

import dmlc.ops  # noqa: F401
from dmlc.cli import opt
from dmlc.cli.main import guarded
from dmlc.cost import CostModel, database
from dmlc.cost.measured import Measurements
from dmlc.cost.signature import op_key
from dmlc.ir.core import Module, Op
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.ir.verifier import verify
from dmlc.passes.outline_kernels import OutlineKernels
from dmlc.passmanager.context import Context

FUSED = """
builtin.module attributes {dmlc.spmd} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @main(%x: tensor<4x8xf32>, %b: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<8xf32>) {
    %0 = kernel.fused %x, %b {dmlc.name = "first"} {
    ^bb0(%p: tensor<4x8xf32>, %q: tensor<8xf32>):
      %s = dmlc.add %p, %q : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
      %e = dmlc.exp %s {dmlc.name = "inner"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
      kernel.yield %e : (tensor<4x8xf32>) -> ()
    } : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
    %1 = dmlc.exp %0 {dmlc.name = "plain"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %2 = dmlc.reduce_sum %1 {dims = array<i64: 0>} : (tensor<4x8xf32>) -> tensor<8xf32>
    %f = comm.all_reduce_start %2 {axes = ["data"], combiner = "sum"} : (tensor<8xf32>) -> !comm.future<tensor<8xf32>>
    %3 = comm.wait %f : (!comm.future<tensor<8xf32>>) -> tensor<8xf32>
    func.return %1, %3 : tensor<4x8xf32>, tensor<8xf32>
  }
}
"""


def parsed(text: str) -> Module:
    module = parse_module(text)
    verify(module)
    return module


def keys(module: Module) -> list[str]:
    return [op_key(op) for op in module.main.body if op is not module.main.return_op]


def named(module: Module, name: str) -> Op:
    return next(op for op in module.main.ops() if op.name == name)


@pytest.fixture(autouse=True)
def no_other_places(tmp_path, monkeypatch):
    """A store of this test's own, and nothing known from before."""
    monkeypatch.setenv("DMLC_MEASURED", str(tmp_path / "store"))
    monkeypatch.setattr(database, "_KNOWN", {})
    monkeypatch.setattr(database, "_PLACES", [])


# ---------------------------------------------------------------- keys


def test_keys_stay_when_kernels_are_outlined_and_when_the_text_is_read_again():
    module = parsed(FUSED)
    before = keys(module)
    assert keys(parsed(print_module(module))) == before
    OutlineKernels().run(module, Context())
    assert next(op.name for op in module.main.body) == "kernel.call" and keys(module) == before
    assert keys(parsed(print_module(module))) == before


def test_a_key_is_what_is_computed_not_what_it_is_called():
    before = keys(parsed(FUSED))
    renamed = FUSED.replace("%s", "%other").replace('"first"', '"second"').replace('"inner"', '"within"').replace('"plain"', '"named"').replace("%p", "%a")
    assert keys(parsed(renamed)) == before
    for old, new, changed in [
        ("dmlc.exp %s", "dmlc.sin %s", {0}),
        ("dmlc.add %p, %q", "dmlc.sub %p, %q", {0}),
        (
            "dims = array<i64: 0>} : (tensor<4x8xf32>) -> tensor<8xf32>",
            "dims = array<i64: 0>, dmlc.note = 1 : i64} : (tensor<4x8xf32>) -> tensor<8xf32>",
            set(),
        ),
        ('"data"=2', '"data"=4', {3, 4}),
        ('combiner = "sum"', 'combiner = "max"', {3, 4}),
    ]:
        assert old in FUSED
        after = keys(parsed(FUSED.replace(old, new)))
        assert {i for i, (a, b) in enumerate(zip(before, after)) if a != b} == changed, (old, new)


def test_types_are_in_the_key():
    assert op_key(named(parsed(FUSED.replace("4x8", "6x8")), "dmlc.reduce_sum")) != op_key(named(parsed(FUSED), "dmlc.reduce_sum"))
    assert op_key(named(parsed(FUSED), "dmlc.exp")) == "dmlc.exp(tensor<4x8xf32>) -> tensor<4x8xf32>"


def test_the_order_of_a_kernels_operands_is_in_its_key():
    swapped = FUSED.replace("dmlc.add %p, %q : (tensor<4x8xf32>, tensor<8xf32>)", "dmlc.add %q, %p : (tensor<8xf32>, tensor<4x8xf32>)")
    assert op_key(named(parsed(swapped), "kernel.fused")) != op_key(named(parsed(FUSED), "kernel.fused"))


# ---------------------------------------------------------------- content


def sample(**changes) -> Measurements:
    content = {
        "ops": {"b": 2, "a": 1},
        "collectives": {("all_reduce", 2, "loopback"): ((1000, 2000), (4, 100))},
        "samples": {("matmul", "f32"): (((1, 8, 8, 8), 7), ((1, 4, 4, 4), 5))},
        "cores": {"loopback": 50},
        "overlaps": {"loopback": (60, 70)},
        "machine": {"device": "cpu", "name": "a processor", "threads": "1", "torch": "2"},
    }
    return Measurements(**(content | changes))


def test_a_hash_is_of_the_content(tmp_path):
    first = sample()
    same = sample(ops={"a": 1, "b": 2}, collectives={("all_reduce", 2, "loopback"): ((4, 100), (1000, 2000))})
    assert first.hash == same.hash and len(first.hash) == 16
    database.write(first, tmp_path / "one")
    database.write(same, tmp_path / "two")
    assert database.read(tmp_path / "one").hash == database.read(tmp_path / "two").hash == first.hash
    assert database.read(tmp_path / "one").rows() == first.rows()
    others = [sample(ops={"a": 1, "b": 3}), sample(cores={}), sample(overlaps={"loopback": (60, 71)}), sample(machine={"device": "cpu"}), sample(samples={})]
    others.append(sample(collectives={("all_reduce", 2, "loopback"): ((4, 100), (1001, 2000))}))
    assert len({first.hash, *(m.hash for m in others)}) == 1 + len(others)


def test_lookups():
    module, m = parsed(FUSED), sample()
    exp, start = (named(module, name) for name in ("dmlc.exp", "comm.all_reduce_start"))
    known = sample(ops={op_key(exp): 9, f"pack {op_key(start)}": 3, f"unpack {op_key(start)}": 4})
    assert (known.op(exp), known.op(start), known.before(start, "slow"), known.after(start)) == (9, None, 3, 4)
    assert known.merged(sample(ops={}, calls={"slow": 50})).before(start, "slow") == 53, "the call, and packing"
    assert sample(ops={f"call {op_key(start)}": 40}, calls={"slow": 50}).before(start, "slow") == 40, "where the whole is known"
    assert m.op(exp) is None and (m.before(start, "slow"), m.after(start)) == (0, 0)
    assert m.collective("all_reduce", 502, 2, "loopback") == 1050 and m.collective("all_reduce", 4, 4, "loopback") is None
    assert m.collective("all_gather", 4, 2, "loopback") is None
    assert [m.collective("all_reduce", n, 2, "loopback") for n in range(0, 3000, 100)] == sorted(
        m.collective("all_reduce", n, 2, "loopback") for n in range(0, 3000, 100)
    )
    sent = sample(collectives={("send", 2, "loopback"): ((4, 5),)})
    assert sent.collective("recv", 4, 2, "loopback") == sent.collective("send", 4, 2, "loopback") == 5
    assert m.samples("matmul", "f32") == (((1, 4, 4, 4), 5), ((1, 8, 8, 8), 7)) and m.samples("matmul", "bf16") == ()
    assert (m.core("loopback"), m.core("other"), m.slow_down("loopback"), m.slow_down("other")) == (50, None, (60, 70), None)


def test_more_is_added_and_wins_but_only_of_the_same_machine(tmp_path):
    path = tmp_path / "folder" / "db"
    assert database.add(sample(), path).hash == sample().hash
    more = sample(ops={"b": 5, "c": 3}, collectives={("all_reduce", 2, "loopback"): ((4, 90), (64, 95))}, cores={}, overlaps={}, samples={})
    whole = database.add(more, path)
    assert whole.ops == {"a": 1, "b": 5, "c": 3} and whole.cores == {"loopback": 50}
    assert whole.collectives["all_reduce", 2, "loopback"] == ((4, 90), (64, 95), (1000, 2000))
    assert database.read(path).hash == whole.hash
    with pytest.raises(DmlcError, match="threads is 1 here and 2 there"):
        database.add(sample(machine={"threads": "2"}), path)
    assert database.read(path).hash == whole.hash


# ---------------------------------------------------------------- finding


def naming(measured: Measurements) -> Module:
    module = parsed(FUSED)
    module.attrs["dmlc.measured"] = measured.hash
    return module


def test_measurements_are_found_by_hash_wherever_they_lie(tmp_path, monkeypatch):
    m = sample()
    with pytest.raises(DmlcError, match=f"{m.hash} that the text asks for"):
        Measurements.of(naming(m))
    assert Measurements.of(parsed(FUSED)) is None
    database.keep(m)
    found = Measurements.of(naming(m))
    assert found is not None and found.hash == m.hash and Measurements.of(naming(m)) is found
    other = sample(ops={"x": 1})
    database.keep(other, tmp_path / "beside")
    with pytest.raises(DmlcError, match=other.hash):
        Measurements.of(naming(other))
    database.look_in(tmp_path / "beside")
    assert Measurements.of(naming(other)).ops == {"x": 1}  # type: ignore[union-attr]
    third = sample(ops={"y": 1})
    database.write(third, tmp_path / "any name")
    assert database.show(str(tmp_path / "any name")) == third.hash and database.find(third.hash).ops == {"y": 1}
    assert database.show(m.hash) == m.hash, "a hash of the store is as good as a file"


def test_files_that_are_none(tmp_path):
    m = sample()
    with pytest.raises(DmlcError, match="no such file"):
        database.read(tmp_path / "none")
    (tmp_path / "text").write_text("not a database at all" * 100)
    with pytest.raises(DmlcError, match="not a database of measured times"):
        database.read(tmp_path / "text")
    with sqlite3.connect(tmp_path / "empty") as file:
        file.execute("CREATE TABLE ops (a)")
    with pytest.raises(DmlcError, match="its version is 0"):
        database.read(tmp_path / "empty")
    database.keep(m, tmp_path)
    (tmp_path / database.file_name(m.hash)).rename(tmp_path / database.file_name("0" * 16))
    database.look_in(tmp_path)
    with pytest.raises(DmlcError, match="other measured times"):
        database.find("0" * 16)


# ---------------------------------------------------------------- prices and commands


def test_prices_are_the_measured_ones():
    module = parsed(FUSED)
    exp, fused = named(module, "dmlc.exp"), named(module, "kernel.fused")
    m = sample(ops={op_key(exp): 123_456, op_key(fused): 654_321})
    database.keep(m)
    module.attrs["dmlc.measured"] = m.hash
    cost = CostModel.of(module)
    assert (cost.op(exp).time, cost.op(exp).source) == (123_456, "measured")
    assert (cost.op(fused).time, cost.op(fused).source) == (654_321, "measured")
    OutlineKernels().run(module, Context())
    assert CostModel.of(module).op(named(module, "kernel.call")).time == 654_321
    assert cost.op(named(module, "dmlc.reduce_sum")).source != "measured"


def test_opt_takes_measurements_by_file_and_from_beside_the_text(tmp_path):
    database.write(sample(), tmp_path / "db")
    (tmp_path / "x.mlir").write_text(FUSED)
    code, out, err = opt.run([str(tmp_path / "x.mlir"), "--measured", str(tmp_path / "db")])
    assert code == 0 and f'dmlc.measured = "{sample().hash}"' in out, err
    beside = sample(ops={"z": 1})
    database.keep(beside, tmp_path)
    (tmp_path / "y.mlir").write_text(FUSED.replace("{dmlc.spmd}", f'{{dmlc.spmd, dmlc.measured = "{beside.hash}"}}'))
    code, _, err = opt.run([str(tmp_path / "y.mlir"), "--passes", "schedule"])
    assert code == 0, err
    (tmp_path / database.file_name(beside.hash)).unlink()
    database._KNOWN.clear()
    code, _, err = opt.run([str(tmp_path / "y.mlir"), "--passes", "schedule"])
    assert code == 1 and beside.hash in err and "--measured" in err


def test_a_compiled_folder_has_its_measurements_beside_the_program_and_the_dumps(tmp_path):
    database.write(sample(), tmp_path / "db")
    out = tmp_path / "out"
    words = [
        "compile",
        "dmlc.models.mlp:tiny",
        "--devices",
        "2",
        "--target",
        "cpu",
        "--plan",
        "tp=2",
        "--measured",
        str(tmp_path / "db"),
        "--dump-ir",
        "--no-kernel-report",
    ]
    assert guarded([*words, "-o", str(out)]) == 0
    name = database.file_name(sample().hash)
    assert (out / name).is_file() and (out / "ir" / name).is_file()
    assert all(f'dmlc.measured = "{sample().hash}"' in p.read_text() for p in [out / "program.mlir", *(out / "ir").glob("*.mlir")])
    database._KNOWN.clear()
    dumps = sorted((out / "ir").glob("*.mlir"))
    before, after = next((a, b) for a, b in zip(dumps, dumps[1:]) if b.stem.endswith("-plan"))
    code, text, err = opt.run([str(before), "--passes", "plan"])
    assert code == 0 and text == after.read_text(), err


def test_compile_refuses_other_measurements_than_the_text_names(tmp_path, capsys):
    database.write(sample(), tmp_path / "db")
    request = '{dmlc.request = {devices = 1 : i64, plan = "auto", precision = "fp32"}, dmlc.measured = "0123"}'
    body = "%0 = dmlc.exp %x : (tensor<4xf32>) -> tensor<4xf32>\n  func.return %0 : tensor<4xf32>"
    path = tmp_path / "x.mlir"
    path.write_text(f"builtin.module attributes {request} {{\nfunc.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{\n  {body}\n}}\n}}\n")
    assert guarded(["compile", str(path), "--measured", str(tmp_path / "db"), "-o", str(tmp_path / "o")]) == 1
    assert f"--measured holds {sample().hash}, but the text asks for 0123" in capsys.readouterr().err
    assert guarded(["compile", str(path), "--measured", str(tmp_path / "missing"), "-o", str(tmp_path / "o")]) == 2
    assert "no such file of measured times" in capsys.readouterr().err
