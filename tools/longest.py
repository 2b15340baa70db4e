"""Prints the longest functions and files of the project, and the median length of a function.

    python tools/longest.py [how many]
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("dmlc", "passes", "kernels", "models", "tools")


def sources() -> list[Path]:
    """Every Python file once: the links in dmlc/ are not followed."""
    return sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts)


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """(lines, place) of each function, docstrings and nested functions counted."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def main(arguments: list[str]) -> None:
    count = int(arguments[0]) if arguments else 15
    found = sorted((f for p in sources() for f in functions(p)), reverse=True)
    files = sorted(((len(p.read_text(encoding="utf-8").splitlines()), str(p.relative_to(ROOT))) for p in sources()), reverse=True)
    print(f"{len(found)} functions, median {statistics.median(n for n, _ in found):.0f} lines; the longest:")
    for lines, place in found[:count]:
        print(f"{lines:5}  {place}")
    print(f"{len(files)} files, {sum(n for n, _ in files)} lines; the longest:")
    for lines, place in files[:count]:
        print(f"{lines:5}  {place}")


if __name__ == "__main__":
    main(sys.argv[1:])
