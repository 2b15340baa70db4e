"""`dmlc` and `dmlc opt`: exit codes, one message an error, help, splitting, pipes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dmlc.cli import opt
from dmlc.cli.main import guarded

GOOD = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = dmlc.exp %x : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
"""
BAD = GOOD.replace("dmlc.exp", "dmlc.expp")


def test_round_trip_of_standard_input():
    code, out, err = opt.run(["-"], GOOD)
    assert (code, err) == (0, "") and "dmlc.exp %x" in out
    assert opt.run(["-"], out) == (0, out, "")


def test_generic_form_reads_back():
    _, generic, _ = opt.run(["-", "--generic"], GOOD)
    assert '"dmlc.exp"(%x)' in generic
    assert opt.run(["-"], generic) == opt.run(["-"], GOOD)


def test_error_names_file_line_and_column(tmp_path):
    path = tmp_path / "bad.mlir"
    path.write_text(BAD)
    code, out, err = opt.run([str(path)])
    assert code == 1 and out == ""
    assert f"{path}:2:" in err and "^" in err and "did you mean 'dmlc.exp'" in err


def test_split_input_counts_lines_from_the_top(tmp_path):
    path = tmp_path / "two.mlir"
    path.write_text(GOOD + "// -----\n" + BAD)
    code, out, err = opt.run([str(path), "--split-input-file"])
    assert code == 1 and "// -----" in out and f"{path}:7:" in err


def test_expected_errors_go_to_standard_output():
    code, out, err = opt.run(["-", "--expect-error"], BAD)
    assert code == 0 and "error:" in out and err == ""
    assert opt.run(["-", "--expect-error"], GOOD)[0] == 1


@pytest.mark.parametrize("argv, message", [(["--pases", "cse", "-"], "did you mean '--passes'"), ([], "no FILE"), (["-", "--passes"], "expected one argument")])
def test_wrong_usage_is_code_2(argv, message):
    code, out, err = opt.run(argv, GOOD)
    assert code == 2 and out == "" and message in err and "usage:" in err


@pytest.mark.parametrize("argv, message", [(["-", "--passes", "canonicalise"], "did you mean"), (["/no/such/file.mlir"], "cannot read /no/such/file.mlir")])
def test_wrong_input_is_code_1(argv, message):
    code, out, err = opt.run(argv, GOOD)
    assert code == 1 and out == "" and message in err


def test_binary_file_is_one_message(tmp_path):
    (tmp_path / "x.mlir").write_bytes(b"\xff\xfe\x00")
    code, _, err = opt.run([str(tmp_path / "x.mlir")])
    assert code == 1 and "not a text file" in err


def test_missing_weights_are_one_message():
    code, _, err = opt.run(["-"], 'builtin.module attributes {dmlc.weights = "nowhere"} {\n}\n')
    assert code == 1 and "nowhere" in err


def test_help_and_list():
    code, out, _ = opt.run(["--help"])
    assert code == 0 and "--passes" in out
    code, out, _ = opt.run(["--list-passes"])
    assert code == 0 and "fold{limit=1048576}  (exact)" in out


def test_diff_times_and_checks():
    code, out, err = opt.run(["-", "--passes", "dce", "--print-diff", "--time-passes", "--check"], GOOD.replace("func.return %y", "func.return %x"))
    assert code == 0 and any(line.startswith("-") and "dmlc.exp" in line for line in out.splitlines())
    assert "time: dce" in err and "check: dce" in err


def test_dump_folder(tmp_path):
    assert opt.run(["-", "--passes", "cse,dce", "--dump-ir", str(tmp_path / "ir")], GOOD)[0] == 0
    assert sorted(p.name for p in (tmp_path / "ir").iterdir()) == ["00-input.mlir", "01-cse.mlir", "02-dce.mlir", "seconds.json"]


def test_main_command(capsys):
    assert guarded(["--help"]) == 0 and "opt" in capsys.readouterr().out
    assert guarded(["--version"]) == 0 and "dmlc" in capsys.readouterr().out
    assert guarded([]) == 2 and "usage" in capsys.readouterr().err
    assert guarded(["optt"]) == 2 and "did you mean 'opt'" in capsys.readouterr().err


def test_interrupt_is_a_word_and_a_code(monkeypatch, capsys):
    def interrupted(name, argv):
        raise KeyboardInterrupt

    monkeypatch.setattr("dmlc.cli.main.run_command", interrupted)
    assert guarded(["opt", "-"]) == 130 and capsys.readouterr().err == "dmlc: interrupted\n"


def test_real_process_reads_a_pipe():
    found = subprocess.run([sys.executable, "-m", "dmlc.cli.main", "opt", "-"], input=GOOD, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert found.returncode == 0 and "dmlc.exp %x" in found.stdout


def test_closed_reader_is_no_error():
    command = f'"{sys.executable}" -m dmlc.cli.main opt --list-passes | true'
    found = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert "Traceback" not in found.stderr
