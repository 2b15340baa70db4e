"""dmlc installs from a tree whose folder links were lost on the way, as pip's own unpacker of zip files loses them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINKS = ("passes", "kernels", "models", "tools")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """The project without git, its four links as text files."""
    folder = tmp_path_factory.mktemp("zip") / "dmlc"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "out", "ir_tests")
    shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored)
    for name in LINKS:
        (folder / "dmlc" / name).unlink()
        (folder / "dmlc" / name).write_text(f"../{name}")
    return folder


def test_wheel_holds_every_package(unpacked, tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(unpacked)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"dmlc/py.typed", "dmlc/passes/canonicalize.py", "dmlc/tools/text_tests.py", "dmlc/models/__init__.py", "dmlc/kernels/__init__.py"} <= names
    assert not any(name.startswith(LINKS) for name in names), "a package leaked out under its bare name"


def test_links_are_relative_and_committed():
    for name in LINKS:
        link = ROOT / "dmlc" / name
        assert link.is_symlink() and os.readlink(link) == f"../{name}"


def test_installed_wheel_runs_away_from_the_tree(unpacked, tmp_path):
    """From an empty folder, with nothing but the wheel's files on the path."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site"), str(unpacked)]
    subprocess.run(command, check=True, capture_output=True)
    code = "import sys; from dmlc.cli import opt; import dmlc; print(dmlc.__file__); sys.exit(opt.run(['--list-passes'])[0])"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.returncode == 0 and str(tmp_path) in found.stdout, found.stderr
