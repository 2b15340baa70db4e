"""What the README shows works as it stands there: the pass with its text test, and the IR."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import dmlc.ops
import dmlc.passes
from dmlc.ir.parser import parse_module
from dmlc.ir.verifier import verify
from dmlc.tools.text_tests import run_test

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_pass_and_its_test(tmp_path, monkeypatch):
    (source,) = [b for b in blocks("python") if "Pass)" in b]
    (test,) = [b for b in blocks("mlir") if "RUN:" in b]
    (tmp_path / "merge_relus.py").write_text(source)
    (tmp_path / "merge_relus.mlir").write_text(test)
    monkeypatch.setattr(dmlc.passes, "__path__", [*dmlc.passes.__path__, str(tmp_path)])
    try:
        assert run_test(tmp_path / "merge_relus.mlir") is None
    finally:
        sys.modules.pop("dmlc.passes.merge_relus", None)


@pytest.mark.parametrize("text", [b for b in blocks("mlir") if "func.func" in b and "RUN:" not in b])
def test_whole_programs_parse(text):
    verify(parse_module(text))


def test_commands_exist():
    from dmlc.cli.main import commands

    named = set(re.findall(r"^## dmlc (\w+)$", README, re.MULTILINE))
    assert named <= set(commands()) and "opt" in named
