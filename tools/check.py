"""Installs dmlc with its test extra into `.venv` and runs every check: style, types, text tests under lit, all tests.

    python3 tools/check.py [pytest arguments]

Standard library only; needs Python 3.11 or newer and pip. Ends with pytest's closing line; every skipped test is listed with its reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from environment import ROOT, SetupError, prepare  # the file beside this one


def steps(python: Path, pytest_arguments: list[str], scratch: str) -> list[tuple[str, list[str]]]:
    """(what it is, command), in order; the tests come last, so that their closing line does."""
    lit = [str(python), "-c", "import sys; from lit.main import main; sys.exit(main())", "-q", "-j2", "ir_tests"]
    return [
        ("style", [str(python), "-m", "ruff", "check", "--no-cache", "."]),
        ("types", [str(python), "-m", "pyright", "--pythonpath", str(python)]),
        ("text tests under lit", lit),
        ("tests", [str(python), "-m", "pytest", "-q", "-rs", *workers(), "--basetemp", f"{scratch}/pytest", *pytest_arguments]),
    ]


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
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "DMLC_LIT_OUTPUT": f"{scratch}/lit", "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}
        for what, command in steps(python, arguments, scratch):
            print(f"== {what}", flush=True)
            if subprocess.run(command, cwd=ROOT, env=environment).returncode != 0:
                failed.append(what)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
