"""Texts that an output folder gets as they are: the preludes of the ops' PyTorch texts, the runtime, the launcher."""

from __future__ import annotations

import ast
import functools
import importlib.resources

PRELUDES = ("prelude", "prelude_nn", "prelude_windows", "prelude_shards")


def source_of(package: str, name: str) -> str:
    return importlib.resources.files(package).joinpath(name).read_text()


def prelude_text() -> str:
    """All preludes as one file."""
    text = "\n\n".join(source_of("dmlc.interpret", f"{name}.py") for name in PRELUDES)
    return text + '\n\n__all__ = [name for name in list(globals()) if not name.startswith("__")]\n'


@functools.cache
def prelude_names() -> frozenset[str]:
    """Every name the preludes define: no value of a program may take one, or it would hide the helper from the lines before it too."""
    found: set[str] = set()
    for node in ast.parse(prelude_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(a.asname or a.name for a in node.names)
    return frozenset(found)
