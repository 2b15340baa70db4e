"""The process that ranks of tests are forked from: it has loaded what they need, which takes seconds.

A Python process has one such server, and what it loads is settled when it starts. So all tests that run ranks ask for it here: a rank from a
server that another test started for itself would load the rest on its own, each time.
"""

from __future__ import annotations

import functools
import multiprocessing
from multiprocessing.context import ForkServerContext

PRELOADED = ["torch", "torch.distributed", "torch.distributed.checkpoint", "numpy", "safetensors.torch", "pytest"]


@functools.cache
def fork_server() -> ForkServerContext:
    """Makes processes like `multiprocessing`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
