"""The set-up behind both commands of the README: messages without a network, an installed PyTorch, the pinned versions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def environment(tmp_path, monkeypatch) -> ModuleType:
    """tools/environment.py as a module of its own, with another place for `.venv`."""
    spec = importlib.util.spec_from_file_location("environment_under_test", ROOT / "tools" / "environment.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path)
    monkeypatch.setattr(module, "LOG", tmp_path / "install.log")
    return module


def fake_pip(text: str, code: int) -> list[str]:
    return [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code})"]


def test_no_network_is_one_sentence(environment):
    with pytest.raises(environment.SetupError) as error:
        environment.install(fake_pip("WARNING: Retrying ... NewConnectionError ... refused\nERROR: No matching distribution", 1), [])
    assert "no package index can be reached" in str(error.value) and "\n" not in str(error.value)


def test_other_failures_show_the_end_of_the_log(environment):
    with pytest.raises(environment.SetupError, match="the disk is full"):
        environment.install(fake_pip("ERROR: the disk is full", 1), [])


def test_success_is_quiet(environment, capfd):
    environment.install(fake_pip("Successfully installed dmlc", 0), [])
    assert capfd.readouterr().out == "" and "Successfully" in environment.LOG.read_text()


def test_an_installed_torch_replaces_the_pinned_one(environment, monkeypatch):
    monkeypatch.setattr(environment, "installed_torch", lambda: ("2.12.1+cu130", Path("/somewhere")))
    assert "torch==2.12.1+cu130" in environment._constraints().read_text().splitlines()


@pytest.mark.parametrize("version, taken", [("2.10.0", False), ("2.11.0+cpu", True), ("2.15.3", True), ("2.16.0", False), ("3.0.0", False)])
def test_only_supported_torch_is_taken(environment, monkeypatch, version, taken):
    monkeypatch.setattr(environment.importlib.metadata, "version", lambda name: version)
    assert (environment.installed_torch() is not None) == taken


def test_without_one_the_pin_stands(environment, monkeypatch):
    monkeypatch.setattr(environment, "installed_torch", lambda: None)
    assert environment._constraints().read_text() == (ROOT / "constraints.txt").read_text()
