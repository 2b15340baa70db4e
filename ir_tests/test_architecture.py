"""Who may import whom, what `dmlc opt` loads, and that each pass has its file and its text test."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dmlc.passmanager.pipeline import pass_names

ROOT = Path(__file__).resolve().parents[1]
DECIDING = {"ir", "ops", "cluster", "cost", "simulate", "planner"}
ALLOWED = {
    "ir": {"ir"},
    "ops": {"ir", "ops"},
    "cluster": {"ir", "ops", "cluster"},
    "cost": {"ir", "ops", "cluster", "cost"},
    "simulate": {"ir", "ops", "cluster", "cost", "simulate"},
    "planner": DECIDING,
    "passmanager": {"ir", "ops", "passmanager", "interpret", "passes"},  # interpret and passes inside functions only
    "passes": DECIDING | {"passmanager", "passes", "interpret"},
    "interpret": {"ir", "ops", "interpret"},
    "frontend": {"ir", "ops", "frontend", "interpret"},
    "codegen": {"ir", "ops", "cluster", "cost", "simulate", "codegen", "interpret", "kernels"},
    "measure": {"ir", "ops", "cluster", "cost", "codegen", "measure"},
    "kernels": {"ir", "ops", "kernels"},
    "models": {"ir", "ops", "models"},
}
HEAVY = {"torch", "onnx", "onnxruntime", "triton", "numpy", "scipy", "z3", "networkx", "transformers", "safetensors", "yaml"}
MAY_BE_HEAVY = {"frontend", "codegen", "measure", "kernels", "interpret", "models", "tools"}
TOP_LEVEL = {"passes", "kernels", "models", "tools"}


def sources() -> list[Path]:
    own = [p for p in (ROOT / "dmlc").rglob("*.py") if not TOP_LEVEL & set(p.relative_to(ROOT / "dmlc").parts[:1])]
    return sorted(own + [p for name in TOP_LEVEL for p in (ROOT / name).rglob("*.py")])


def package(path: Path) -> str:
    """The package a file belongs to: `ir`, `passes`, … or its own name for files right below dmlc."""
    parts = path.relative_to(ROOT).parts
    return parts[0] if parts[0] in TOP_LEVEL else parts[1].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(imported module, whether at module level) of a file; what only type checkers read is left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    deferred = {id(inner) for node in ast.walk(tree) if _is_deferred(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "dmlc" else [node.module or ""]
        yield from ((name, id(node) not in deferred) for name in names)


def _is_deferred(node: ast.AST) -> bool:
    checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    return checking or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def is_type_checking_only(path: Path, name: str) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    return any(name in ast.unparse(b) for b in blocks)


def id_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sources(), ids=id_of)
def test_imports_follow_the_architecture(path):
    allowed = ALLOWED.get(package(path))
    for name, _ in imports(path):
        if not name.startswith("dmlc.") or name == "dmlc.__version__":
            continue
        imported = name.split(".")[1]
        assert imported != "cli" or package(path) in ("cli", "tools", "__main__"), f"{id_of(path)} imports {name}: nothing but tools and `python -m dmlc` imports the command line"
        assert allowed is None or imported in allowed or is_type_checking_only(path, name), f"{id_of(path)} ({package(path)}) imports {name}"


@pytest.mark.parametrize("path", sources(), ids=id_of)
def test_heavy_libraries_are_imported_where_they_are_needed(path):
    heavy = sorted(name for name, at_module_level in imports(path) if at_module_level and name.split(".")[0] in HEAVY)
    assert not heavy or package(path) in MAY_BE_HEAVY, f"{id_of(path)} imports {', '.join(heavy)} at module level"


def test_the_rules_catch_a_wrong_import(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("import torch\nfrom dmlc.passes.fuse import Fuse\ndef f():\n    import onnx\n")
    assert list(imports(path)) == [("torch", True), ("dmlc.passes.fuse", True), ("onnx", False)]


OPT = """
import sys
from dmlc.cli import opt
code, out, err = opt.run(["-", "--passes", "canonicalize,cse,dce"], "builtin.module {\\n}\\n")
assert code == 0, err
loaded = sorted(set(sys.modules) & {'torch', 'onnx', 'onnxruntime', 'triton', 'numpy', 'scipy', 'z3', 'networkx'})
assert not loaded, loaded
"""


def test_opt_loads_no_heavy_library():
    found = subprocess.run([sys.executable, "-c", OPT], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_opt_starts_fast(tmp_path):
    """A whole `dmlc opt` takes below 0.3 s of processor time once Python has compiled the files (best of five: other work slows caches)."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": str(tmp_path)}
    (tmp_path / "empty.mlir").write_text("builtin.module {\n}\n")
    command = [sys.executable, "-m", "dmlc.cli.main", "opt", str(tmp_path / "empty.mlir")]
    times = [_processor_seconds(command, environment) for _ in range(6)]
    assert min(times[1:]) < 0.3, times


def _processor_seconds(command: list[str], environment: dict[str, str]) -> float:
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("name", pass_names())
def test_each_pass_has_a_text_test(name):
    path = ROOT / "ir_tests" / "passes" / f"{name.replace('-', '_')}.mlir"
    assert path.exists(), f"pass {name} has no text test {id_of(path)}"
    text = path.read_text(encoding="utf-8")
    assert "--check" in text and "// CHECK" in text, f"{id_of(path)} needs a CHECK and a --check line"


@pytest.mark.parametrize("name", sorted(TOP_LEVEL))
def test_nothing_is_imported_through_bare_names(name):
    """The packages refuse it; `kernels` only hides its modules, since other libraries look for a package of that name."""
    module = next((p.stem for p in sorted((ROOT / name).glob("[a-z]*.py"))), "none")
    found = subprocess.run([sys.executable, "-c", f"import {name}.{module}"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode != 0 and "Error" in found.stderr
