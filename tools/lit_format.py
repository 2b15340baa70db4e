"""A lit test format that runs RUN lines inside the lit worker instead of starting processes (`lit --param in-process=1 ir_tests`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lit.formats
import lit.Test

from dmlc.tools.text_tests import run_test


class InProcess(lit.formats.FileBasedTest):
    def execute(self, test: Any, lit_config: Any) -> tuple[Any, str]:
        failure = run_test(Path(test.getSourcePath()))
        return (lit.Test.PASS, "") if failure is None else (lit.Test.FAIL, failure)
