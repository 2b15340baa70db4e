"""Configuration of lit: `lit ir_tests` runs every text test through the real commands, `lit --param in-process=1 ir_tests` without new processes."""

import os
import sys

import lit.formats

from dmlc.tools.lit_format import InProcess

# lit hands this file its objects `config` and `lit_config`
config = globals()["config"]
lit_config = globals()["lit_config"]

config.name = "dmlc"
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.environ.get("DMLC_LIT_OUTPUT") or config.test_source_root
config.suffixes = [".mlir"]
config.excludes = ["Inputs", "Output"]
config.test_format = InProcess() if "in-process" in lit_config.params else lit.formats.ShTest(execute_external=False)
# the commands under test are those of this tree, also where another tree's dmlc is installed
config.environment["PYTHONPATH"] = os.path.dirname(config.test_source_root)
config.environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
