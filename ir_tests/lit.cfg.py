"""Configuration of lit: `lit ir_tests` runs every text test through the real commands, `lit --param in-process=1 ir_tests` without new processes."""

import os
import sys
from pathlib import Path

import lit.formats
import lit.Test

# lit hands this file its objects `config` and `lit_config`
config = globals()["config"]
lit_config = globals()["lit_config"]


class InProcess(lit.formats.FileBasedTest):
    """Runs a test's RUN lines inside the lit worker."""

    def execute(self, test, lit_config):
        from dmlc.tools.text_tests import run_test

        failure = run_test(Path(test.getSourcePath()))
        return (lit.Test.PASS, "") if failure is None else (lit.Test.FAIL, failure)


config.name = "dmlc"
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.environ.get("DMLC_LIT_OUTPUT") or config.test_source_root
config.suffixes = [".mlir"]
config.excludes = ["Inputs", "Output"]
config.test_format = InProcess() if "in-process" in lit_config.params else lit.formats.ShTest(execute_external=False)
config.environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
config.environment["PYTHONDONTWRITEBYTECODE"] = "1"
