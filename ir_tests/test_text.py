"""The text-test machinery itself: it can fail, and it is fast; every input also reads as MLIR's generic form."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from text_helpers import xdsl_accepts

import dmlc.ops  # noqa: F401
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module, split_input
from dmlc.ir.printer import print_module
from dmlc.tools.text_tests import all_tests, run_lines, run_test

FOLDER = Path(__file__).parent
PROGRAM = """// RUN: dmlc opt %s | filecheck %s
// CHECK-LABEL: func.func @main
// CHECK: {check}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %y = dmlc.exp %x : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "case.mlir"
    path.write_text(text)
    return path


def test_matching_check_passes(tmp_path):
    assert run_test(write(tmp_path, PROGRAM.format(check="dmlc.exp %x"))) is None


def test_broken_check_fails(tmp_path):
    failure = run_test(write(tmp_path, PROGRAM.format(check="dmlc.log %x")))
    assert failure is not None and "dmlc.log %x" in failure


def test_failing_command_fails(tmp_path):
    failure = run_test(write(tmp_path, "// RUN: dmlc opt %s --passes no-such-pass\n"))
    assert failure is not None and "no-such-pass" in failure


def test_not_inverts(tmp_path):
    assert run_test(write(tmp_path, "// RUN: not dmlc opt %s --passes no-such-pass\n")) is None
    assert run_test(write(tmp_path, "// RUN: not dmlc opt %s\nbuiltin.module {}\n")) is not None


def test_file_without_run_line_fails(tmp_path):
    assert run_test(write(tmp_path, "builtin.module {}\n")) is not None


def test_unknown_command_fails(tmp_path):
    failure = run_test(write(tmp_path, "// RUN: rm %s\n"))
    assert failure is not None and "no command" in failure


def test_continued_run_lines_are_joined():
    assert run_lines("// RUN: dmlc opt %s \\\n// RUN:   --check\n// RUN: cat %s\n") == ["dmlc opt %s --check", "cat %s"]


def test_a_hundred_a_second(tmp_path):
    path = write(tmp_path, PROGRAM.format(check="dmlc.exp %x"))
    run_test(path)
    start = time.process_time()
    for _ in range(100):
        assert run_test(path) is None
    assert time.process_time() - start < 1.0


def modules_of(path: Path) -> list[str]:
    """Every piece of a text test that parses, in the generic form."""
    printed = []
    for piece, line in split_input(path.read_text(encoding="utf-8")):
        try:
            printed.append(print_module(parse_module(piece, str(path), line), generic=True))
        except DmlcError:
            continue  # a test of an error message
    return printed


@pytest.mark.parametrize("path", all_tests(FOLDER), ids=lambda p: str(p.relative_to(FOLDER)))
def test_xdsl_reads_the_generic_form(path):
    for text in modules_of(path):
        xdsl_accepts(text)


def test_xdsl_rejects_what_is_no_module():
    from xdsl.utils.exceptions import ParseError

    with pytest.raises(ParseError):
        xdsl_accepts('"builtin.module"() ({ %y = "dmlc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32> }) : () -> ()')
