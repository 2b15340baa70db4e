"""Runs the `// RUN:` lines of a text test in this process: hundreds of tests a second instead of two.

The grammar is the part of lit's that text tests need:

    // RUN: dmlc opt %s --passes cse | filecheck %s
    // RUN: not dmlc opt %s --passes fold 2>&1 | filecheck %s --check-prefix=ERROR

with `%s` the file, `%S` its folder, `%t` a path for temporary output, `%%` a percent sign, and `\\` at a line's end to go on in the next RUN line.
The same files run under lit itself (`ir_tests/lit.cfg.py`).
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

RUN = re.compile(r"//\s*RUN:\s*(.*)")
Result = tuple[int, str, str]  # exit code, standard output, standard error
Command = Callable[[Sequence[str], str], Result]


def run_lines(text: str) -> list[str]:
    """The commands of a test, continuation lines joined."""
    lines: list[str] = []
    going_on = False
    for match in RUN.finditer(text):
        piece = match[1].strip()
        if going_on:
            lines[-1] += " " + piece
        else:
            lines.append(piece)
        going_on = piece.endswith("\\")
        lines[-1] = lines[-1].removesuffix("\\").rstrip()
    return lines


def run_test(path: Path) -> str | None:
    """None when every RUN line of the file succeeds, else what went wrong."""
    lines = run_lines(path.read_text(encoding="utf-8"))
    if not lines:
        return f"{path} has no RUN line"
    with tempfile.TemporaryDirectory() as folder:
        for line in lines:
            failure = run_line(line, path, Path(folder))
            if failure is not None:
                return f"RUN: {line}\n{failure}"
    return None


def run_line(line: str, path: Path, scratch: Path) -> str | None:
    """Run one pipe of commands. It fails when any command of it does."""
    known = {"s": str(path), "S": str(path.parent), "t": str(scratch / path.stem), "%": "%"}
    words = [re.sub(r"%([sSt%])", lambda m: known[m[1]], w) for w in shlex.split(line)]
    data, stderr = "", ""
    for command in split_pipe(words):
        code, data, stderr = run_command(command, data)
        if code:
            return f"'{' '.join(command)}' ended with code {code}\n{data if command[0] == 'filecheck' else ''}{stderr}"
    return None


def split_pipe(words: Sequence[str]) -> list[list[str]]:
    commands: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def run_command(words: Sequence[str], stdin: str) -> Result:
    """One command; `not` inverts its exit code and `2>&1` puts its standard error before its output."""
    if words[:1] == ["not"]:
        code, out, err = run_command(words[1:], stdin)
        return int(code == 0), out, err
    if "2>&1" in words:
        code, out, err = run_command([w for w in words if w != "2>&1"], stdin)
        return code, err + out, ""
    for name, command in COMMANDS.items():
        if tuple(words[: len(name)]) == name:
            return _guarded(command, words[len(name) :], stdin)
    return 127, "", f"'{' '.join(words[:2])}' is no command of text tests (those are: {', '.join(' '.join(n) for n in COMMANDS)})\n"


def _guarded(command: Command, argv: Sequence[str], stdin: str) -> Result:
    try:
        return command(argv, stdin)
    except Exception:
        return 70, "", traceback.format_exc()


def _opt(argv: Sequence[str], stdin: str) -> Result:
    from dmlc.cli import opt

    return opt.run(argv, stdin)


def _cat(argv: Sequence[str], stdin: str) -> Result:
    return 0, "".join(Path(p).read_text(encoding="utf-8") for p in argv) if argv else stdin, ""


def filecheck(argv: Sequence[str], stdin: str) -> Result:
    from filecheck.finput import FInput
    from filecheck.matcher import Matcher
    from filecheck.options import parse_argv_options
    from filecheck.parser import Parser, pattern_for_opts

    options = parse_argv_options(["filecheck", *argv])
    with open(options.match_filename, encoding="utf-8") as checks:
        parser = Parser(options, checks, *pattern_for_opts(options))
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = Matcher(options, FInput("<stdin>", stdin), parser).run()
    return code, said.getvalue(), ""


COMMANDS: dict[tuple[str, ...], Command] = {("dmlc", "opt"): _opt, ("filecheck",): filecheck, ("cat",): _cat}


@functools.cache
def all_tests(folder: Path) -> tuple[Path, ...]:
    """Every text test below `folder`, sorted."""
    return tuple(sorted(p for p in folder.rglob("*.mlir") if "Inputs" not in p.parts and "Output" not in p.parts))
