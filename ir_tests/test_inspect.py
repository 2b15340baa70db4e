"""`dmlc inspect` on a folder compiled here: plan, passes with times, reasons, differences; wrong input is one message."""

from __future__ import annotations

from pathlib import Path

import pytest

from dmlc.cli.main import guarded

PERCEPTRON = """
func.func @main(%x: tensor<8x64xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %w1: tensor<256x64xf32> {dmlc.role = "param"}, %w2: tensor<64x256xf32> {dmlc.role = "param"}) -> tensor<8x64xf32> {
  %h = dmlc.linear %x, %w1 : (tensor<8x64xf32>, tensor<256x64xf32>) -> tensor<8x256xf32>
  %g = dmlc.gelu %h : (tensor<8x256xf32>) -> tensor<8x256xf32>
  %s = dmlc.sigmoid %g : (tensor<8x256xf32>) -> tensor<8x256xf32>
  %y = dmlc.linear %s, %w2 : (tensor<8x256xf32>, tensor<64x256xf32>) -> tensor<8x64xf32>
  func.return %y : tensor<8x64xf32>
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("inspect")
    (path / "mlp.mlir").write_text(PERCEPTRON)
    out = str(path / "out")
    assert guarded(["compile", str(path / "mlp.mlir"), "--devices", "2", "--plan", "tp=2", "--dump-ir", "--no-kernel-report", "-o", out]) == 0
    return out


def test_plan_passes_and_reasons(folder, capsys):
    assert guarded(["inspect", folder]) == 0
    said = capsys.readouterr().out
    assert "tp=2" in said and "model=2" in said and "price" in said and "proven bound" in said
    (row,) = [line for line in said.splitlines() if " partition " in line]
    assert float(row.split()[4]) >= 0, "the time a pass took"
    assert '[{"model"}, {}]' in said and "reasons" in said


def test_diff_by_name_and_number(folder, capsys):
    assert guarded(["inspect", folder, "--diff", "fuse"]) == 0
    by_name = capsys.readouterr().out
    assert any(line.startswith("+") and "kernel.fused" in line for line in by_name.splitlines())
    number = by_name.splitlines()[0].split()[-1].split("-")[0]
    for other in (number, f"{number}-fuse"):
        assert guarded(["inspect", folder, "--diff", other]) == 0
        assert capsys.readouterr().out == by_name


def test_edited_places_are_compiled_and_carry_no_price(folder, tmp_path, capsys):
    (text,) = [p.read_text() for p in Path(folder).glob("ir/*-plan.mlir")]
    edited = text.replace('dmlc.place = {k = ["model"]}', "dmlc.place = {}")
    assert edited != text
    (tmp_path / "edited.mlir").write_text(edited)
    assert guarded(["compile", str(tmp_path / "edited.mlir"), "--no-kernel-report", "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "dp=1,tp=2, placed by the text, not priced" in said and "all_gather" in said
    assert guarded(["inspect", str(tmp_path / "out")]) == 0
    assert "price" not in capsys.readouterr().out
    assert guarded(["opt", str(tmp_path / "out" / "program.mlir"), "--passes", "dce"]) == 0


@pytest.mark.parametrize("arguments, code, message", [(["--diff", "fuze"], 1, "did you mean 'fuse'"), (["--dif", "fuse"], 2, "did you mean '--diff'")])
def test_wrong_names(folder, capsys, arguments, code, message):
    assert guarded(["inspect", folder, *arguments]) == code
    assert message in capsys.readouterr().err


def test_folders_that_are_none(tmp_path, capsys):
    assert guarded(["inspect", str(tmp_path)]) == 1 and "not a compiled folder" in capsys.readouterr().err
    (tmp_path / "plan.json").write_text("{")
    assert guarded(["inspect", str(tmp_path)]) == 1 and "damaged" in capsys.readouterr().err
    (tmp_path / "plan.json").write_text("{}")
    assert guarded(["inspect", str(tmp_path), "--diff", "fuse"]) == 1 and "--dump-ir" in capsys.readouterr().err
