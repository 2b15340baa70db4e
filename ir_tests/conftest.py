"""Collects the text tests (`*.mlir`) as pytest items and runs them in this process; solves each integer programme once a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from solved_once import solved_once
from warm_python import warm as started_warm

from dmlc.tools.text_tests import all_tests, run_test

settings.register_profile("loaded", deadline=None)  # a machine that does other things meanwhile is no failure
settings.load_profile("loaded")


class TextTestFailure(Exception):
    """A RUN line failed; the message is what the tools said."""


class TextFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield TextItem.from_parent(self, name="RUN")


class TextItem(pytest.Item):
    def runtest(self) -> None:
        failure = run_test(self.path)
        if failure is not None:
            raise TextTestFailure(failure)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, TextTestFailure) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, str(self.path)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path in all_tests(Path(__file__).parent):
        return TextFile.from_parent(parent, path=file_path)
    return None


@pytest.fixture(scope="session", autouse=True)
def programmes_are_solved_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For all workers together: their folders lie in one."""
    base = tmp_path_factory.getbasetemp()
    with solved_once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "solved"):
        yield


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Commands that a module's tests start, and what these start, have PyTorch loaded."""
    with started_warm():
        yield
