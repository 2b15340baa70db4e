"""Installs dmlc with its test extra into `.venv` and runs every check: style, types, text tests under lit, all tests.

    python3 tools/check.py [pytest arguments]

Standard library only; needs Python 3.11 or newer and pip. Ends with pytest's closing line; every skipped test is listed with its reason.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from environment import ROOT, SetupError, prepare  # the file beside this one


def checks(python: Path) -> list[tuple[str, list[str]]]:
    """(what it is, command) of what runs at the same time: the types, which take minutes, keep one core busy, the text tests the others."""
    lit = [str(python), "-c", "import sys; from lit.main import main; sys.exit(main())", "-q", "-j2", "ir_tests"]
    return [
        ("style", [str(python), "-m", "ruff", "check", "--no-cache", "."]),
        ("types", [str(python), "-m", "pyright", "--pythonpath", str(python)]),
        ("text tests under lit", lit),
    ]


def tests(python: Path, arguments: list[str], scratch: str) -> list[str]:
    """The command of all tests; they come last, so that their closing line does."""
    return [str(python), "-m", "pytest", "-q", "-rs", *workers(), "--basetemp", f"{scratch}/pytest", *arguments]


def run_together(commands: list[tuple[str, list[str]]], environment: dict[str, str]) -> list[str]:
    """What failed. All are started at once; what each says is printed when those before it are done."""
    with contextlib.ExitStack() as files:
        started = []
        for what, command in commands:
            said = files.enter_context(tempfile.TemporaryFile())
            started.append((what, said, subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT)))
        failed = []
        for what, said, process in started:
            print(f"== {what}", flush=True)
            if process.wait() != 0:
                failed.append(what)
            said.seek(0)
            print(said.read().decode(errors="replace"), end="", flush=True)
        return failed


def workers() -> list[str]:
    """One pytest worker a core, at most four: tests of whole models start eight processes each."""
    count = min(os.cpu_count() or 1, 4)
    return ["-n", str(count), "--dist", "worksteal"] if count > 1 else []


def main(arguments: list[str]) -> int:
    try:
        python = prepare("test")
    except SetupError as e:
        print(e, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "DMLC_LIT_OUTPUT": f"{scratch}/lit", "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}
        failed = run_together(checks(python), environment)
        print("== tests", flush=True)
        if subprocess.run(tests(python, arguments, scratch), cwd=ROOT, env=environment).returncode != 0:
            failed.append("tests")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
