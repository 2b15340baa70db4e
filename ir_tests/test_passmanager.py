"""Pipelines as text, and the manager: verification, contracts, dumps, differences, the before/after check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import pytest

import dmlc.ops
import dmlc.passes
from dmlc.ir.builder import Builder
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.passes.fold import Fold
from dmlc.passmanager import Context, Pass, PassManager, parse_pipeline, print_pipeline
from dmlc.passmanager.check import relative_error, seeded_inputs
from dmlc.passmanager.pipeline import convert

PROGRAM = """
func.func @main(%x: tensor<4x8xf32> {dmlc.role = "input"}) -> tensor<4x8xf32> {
  %y = dmlc.exp %x : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
"""


def program() -> Module:
    return parse_module(PROGRAM)


# ---------------------------------------------------------------- text


def test_pipeline_text_round_trip():
    passes = parse_pipeline(" canonicalize , fold{limit=64} ,dce")
    assert [p.name for p in passes] == ["canonicalize", "fold", "dce"] and passes[1] == Fold(limit=64)
    assert print_pipeline(passes) == "canonicalize,fold{limit=64},dce"
    assert parse_pipeline(print_pipeline(passes)) == passes


def test_default_options_are_not_printed():
    assert print_pipeline(parse_pipeline("fold{}")) == "fold"


def test_named_pipelines_stand_for_their_passes():
    assert [p.name for p in parse_pipeline("tidy,fold", {"tidy": "cse,dce"})] == ["cse", "dce", "fold"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("canonicalise", "did you mean 'canonicalize'"),
        ("fold{limitt=3}", "did you mean 'limit'"),
        ("fold{limit=many}", "takes an integer"),
        ("fold{limit=true}", "takes an integer"),
        ("fold{limit=3", "expected an option"),
        ("cse dce", "expected ','"),
        ("cse,,dce", "expected a pass name"),
        ("cse{limit}", "has no option 'limit'"),
        ("fold=3", "expected ','"),
    ],
)
def test_wrong_text_is_one_message_with_carets(text, message):
    with pytest.raises(DmlcError) as error:
        parse_pipeline(text)
    assert message in str(error.value) and "^" in str(error.value)


@pytest.mark.parametrize(
    "kind, value, expected",
    [
        (int, "3", 3),
        (float, "0.5", 0.5),
        (bool, True, True),
        (str, "word", "word"),
        (str, True, "true"),
        (int | None, None, None),
        (int | None, "3", 3),
        (tuple[int, ...], ("1", "2"), (1, 2)),
        (tuple[str, ...], "a", ("a",)),
    ],
)
def test_option_values_convert_to_their_fields_type(kind, value, expected):
    assert convert(value, kind) == expected


# ---------------------------------------------------------------- the manager


@dataclass(frozen=True)
class Broken(Pass):
    """Gives the result of another function: `wrong` values, `invalid` types, or a `promise` that is not kept."""

    name: ClassVar[str] = "broken"
    ensures: ClassVar[tuple[str, ...]] = ("outlined",)
    op: str = "dmlc.log"

    def run(self, module: Module, context: Context) -> bool:
        op = next(iter(module.main.body))
        b = Builder.before(op)
        context.remark(op, "replaced")
        op.replace(b.op(self.op, op.operands, result_types=[op.result.type]).results)
        return True


@dataclass(frozen=True)
class NeedsPlan(Pass):
    name: ClassVar[str] = "needs-plan"
    requires: ClassVar[tuple[str, ...]] = ("partitionned",)

    def run(self, module: Module, context: Context) -> bool:
        return False


@dataclass(frozen=True)
class Silent(Broken):
    """Changes the program and does not say so."""

    ensures: ClassVar[tuple[str, ...]] = ()
    answer: bool | None = None

    def run(self, module: Module, context: Context) -> bool:
        super().run(module, context)
        return cast(bool, self.answer)


def test_a_pass_must_say_whether_it_changed_the_program():
    with pytest.raises(DmlcError, match="run returned None"):
        PassManager([Silent()]).run(program(), Context())


def test_no_pass_escapes_the_check_by_saying_that_nothing_changed():
    with pytest.raises(DmlcError, match="run returned False, but the program changed"):
        PassManager([Silent(answer=False)], check=True).run(program(), Context())


def test_a_file_without_the_pass_of_its_name(tmp_path, monkeypatch):
    (tmp_path / "twice.py").write_text("")
    monkeypatch.setattr(dmlc.passes, "__path__", [*dmlc.passes.__path__, str(tmp_path)])
    with pytest.raises(DmlcError, match='passes/twice.py defines no pass with name = "twice"'):
        parse_pipeline("twice")


def test_numerics_is_one_of_three():
    with pytest.raises(TypeError, match="Exakt.numerics is 'exakt'; it is one of exact, reordered, lower-precision"):
        type("Exakt", (Pass,), {"numerics": "exakt"})


def test_check_finds_a_changed_value():
    with pytest.raises(DmlcError, match="changed by") as error:
        PassManager([Broken("dmlc.expm1")], check=True).run(program(), Context())
    assert "in pass 'broken'" in str(error.value)


def test_check_accepts_an_equal_value():
    (report,) = PassManager([Broken("dmlc.exp")], check=True).run(program(), Context())
    assert "1 outputs agree" in report.check


def test_without_check_nobody_notices():
    (report,) = PassManager([Broken("dmlc.expm1")]).run(program(), Context())
    assert report.changed and report.check == "" and [r.text for r in report.remarks] == ["replaced"]


def test_verifier_runs_after_each_pass():
    with pytest.raises(DmlcError, match="in pass 'broken', after dce"):
        PassManager([*parse_pipeline("dce"), Broken("dmlc.isnan")]).run(program(), Context())


def test_unknown_condition_is_refused():
    with pytest.raises(DmlcError, match="did you mean 'partitioned'"):
        PassManager([NeedsPlan()]).run(program(), Context())


def test_required_condition_is_checked():
    text = PROGRAM.replace("%y = dmlc.exp %x", '%y = comm.all_reduce %x {axes = ["d"], combiner = "sum"}')
    text = 'dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["d"=2]>} : () -> ()\n' + text
    with pytest.raises(DmlcError, match="'fold' needs 'global'.*'comm.all_reduce'"):
        PassManager(parse_pipeline("fold")).run(parse_module(text), Context())


def test_dumps_are_numbered_and_repeat_the_run(tmp_path):
    module = program()
    passes = parse_pipeline("canonicalize,cse,dce")
    PassManager(passes, dump=tmp_path).run(module, Context())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00-input.mlir", "01-canonicalize.mlir", "02-cse.mlir", "03-dce.mlir", "seconds.json"]
    for number, pass_ in enumerate(passes):
        before, after = sorted(tmp_path.glob("*.mlir"))[number : number + 2]
        again = parse_module(before.read_text(), str(before))
        pass_.run(again, Context())
        assert print_module(again) == after.read_text()


def test_difference_shows_changed_lines():
    (report,) = PassManager([Broken("dmlc.expm1")], diff=True).run(program(), Context())
    assert any(line.startswith("-") and "dmlc.exp " in line for line in report.diff.splitlines())
    assert any(line.startswith("+") and "dmlc.expm1" in line for line in report.diff.splitlines())


def test_equal_remarks_are_kept_once():
    context = Context()
    context.remark(None, "same")
    context.remark(None, "same")
    assert len(context.remarks) == 1


# ---------------------------------------------------------------- comparing


@pytest.mark.parametrize(
    "reference, actual, expected",
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([0.0, 4.0], [1.0, 4.0], 0.25),
        ([float("nan")], [float("nan")], 0.0),
        ([float("nan")], [0.0], float("inf")),
        ([1.0], [float("nan")], float("inf")),
        ([1, 2], [1, 3], float("inf")),
        ([], [], 0.0),
        ([1.0], [1.0, 1.0], float("inf")),
    ],
)
def test_relative_error(reference, actual, expected):
    assert relative_error(reference, actual) == expected


def test_integer_inputs_stay_inside_what_they_index():
    text = """
    func.func @main(%t: tensor<3x8xf32> {dmlc.role = "param"}, %ids: tensor<64xi32> {dmlc.role = "input"}, %r: tensor<64xi64> {dmlc.role = "input", dmlc.range = array<i64: 5, 7>}) -> tensor<64x8xf32> {
      %i = dmlc.cast %ids {to = "i64"} : (tensor<64xi32>) -> tensor<64xi64>
      %y = dmlc.embedding %t, %i : (tensor<3x8xf32>, tensor<64xi64>) -> tensor<64x8xf32>
      func.return %y : tensor<64x8xf32>
    }
    """
    inputs = seeded_inputs(parse_module(text))
    assert set(inputs["ids"].tolist()) == {0, 1, 2} and set(inputs["r"].tolist()) == {5, 6} and "t" not in inputs
