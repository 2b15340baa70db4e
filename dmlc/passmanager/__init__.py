"""Passes: their base class, pipelines as text, contracts, and the manager that runs, verifies, times and checks them."""

from dmlc.passmanager.base import Pass
from dmlc.passmanager.context import Context
from dmlc.passmanager.manager import PassManager, Report
from dmlc.passmanager.pipeline import parse_pipeline, print_pipeline

__all__ = ["Context", "Pass", "PassManager", "Report", "parse_pipeline", "print_pipeline"]
