"""Makes `.venv` beside the project and installs dmlc into it. Standard library only: it runs before anything is installed.

A PyTorch that the calling Python already has is used instead of installing another. Nothing is installed again while
pyproject.toml and constraints.txt stay as they are.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
LOG = VENV / "install.log"
OLDEST, NEWEST = (2, 11), (2, 15)  # supported minor versions of torch, as in pyproject.toml
NO_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "Temporary failure in name resolution",
    "Failed to establish a new connection",
    "Network is unreachable",
)


class SetupError(Exception):
    """One sentence for the user."""


def prepare(extra: str = "") -> Path:
    """The Python of an environment with dmlc (and the given extra) installed. Raises `SetupError`."""
    if sys.version_info < (3, 11):  # noqa: UP036  (an older Python gets a sentence, not a syntax error later)
        raise SetupError(f"dmlc needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
    stamp = VENV / f"installed{'-' + extra if extra else ''}"
    wanted = _fingerprint()
    if PYTHON.exists() and stamp.exists() and stamp.read_text() == wanted:
        return PYTHON
    pip = _make_environment()
    target = f"{ROOT}[{extra}]" if extra else str(ROOT)
    print(f"installing dmlc{f'[{extra}]' if extra else ''} into .venv (minutes at the first time; log: {LOG.relative_to(ROOT)})", flush=True)
    install(pip, ["-c", str(_constraints()), "-e", target])
    stamp.write_text(wanted)
    return PYTHON


def install(pip: list[str], arguments: list[str]) -> None:
    """Run pip; what it says goes to the log. Raises `SetupError` with the reason."""
    with open(LOG, "wb") as log:
        code = subprocess.run([*pip, "install", "--disable-pip-version-check", *arguments], stdout=log, stderr=subprocess.STDOUT, cwd=ROOT).returncode
    if code == 0:
        return
    said = LOG.read_text(errors="replace")
    if any(sign in said for sign in NO_NETWORK):
        raise SetupError(f"The packages dmlc needs could not be downloaded: no package index can be reached from here (pip's words: {LOG}).")
    raise SetupError(f"pip could not install dmlc; the end of {LOG}:\n" + "\n".join(said.splitlines()[-12:]))


def _make_environment() -> list[str]:
    """The command that runs pip for the environment: its own pip, or the caller's where Python came without ensurepip."""
    if not PYTHON.exists():
        try:
            venv.create(VENV, with_pip=True, clear=True)
        except subprocess.CalledProcessError:
            venv.create(VENV, with_pip=False, clear=True)
    _use_installed_torch()
    own = [str(PYTHON), "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True).returncode == 0:
        return own
    if importlib.util.find_spec("pip") is None:
        raise SetupError("dmlc's setup needs pip: install the pip or venv package of your Python.")
    return [sys.executable, "-m", "pip", "--python", str(PYTHON)]


def installed_torch() -> tuple[str, Path] | None:
    """Version and site folder of the calling Python's PyTorch, if dmlc supports that version."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None or Path(sys.prefix) == VENV:
        return None
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or not OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST:
        return None
    return version, Path(spec.origin).parents[1]


def _use_installed_torch() -> None:
    """Let the environment see the packages that lie beside the calling Python's PyTorch."""
    found = installed_torch()
    if found is None:
        return
    print(f"using the installed PyTorch {found[0]}")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = VENV / ("Lib/site-packages" if os.name == "nt" else f"lib/{version}/site-packages")
    (site / "outer.pth").write_text(f"{found[1]}\n")


def _constraints() -> Path:
    """constraints.txt, with an installed PyTorch's version in the place of the pinned one."""
    found = installed_torch()
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    if found is not None:
        lines = [f"torch=={found[0]}" if line.startswith("torch==") else line for line in lines]
    path = VENV / "constraints.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def _fingerprint() -> str:
    """Changes when what is to be installed does."""
    parts = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt", "setup.py")]
    return hashlib.sha256(b"\0".join([*parts, sys.version.encode(), str(installed_torch()).encode(), str(ROOT).encode()])).hexdigest()
