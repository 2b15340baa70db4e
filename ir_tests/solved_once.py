"""Integer programmes solved once a test session: tests that compile one model again, in whatever process, get the answer that HiGHS gave before.

An answer is looked up by all of the programme's numbers and the solver's options, which HiGHS's answer depends on alone. What is made of it,
and the programme itself, each test works out anew. A tensor-parallel training step takes seconds to solve and a moment to do the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def solved_once(folder: Path) -> Iterator[None]:
    """Answers are kept in `folder`, which processes may share."""
    from scipy import optimize

    folder.mkdir(exist_ok=True)
    solver = optimize.milp
    optimize.milp = remembering(solver, folder)
    try:
        yield
    finally:
        optimize.milp = solver


def remembering(solver: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    def milp(c: Any, *, constraints: Any, bounds: Any, integrality: Any, options: dict[str, Any]) -> Any:
        path = folder / _key(c, constraints, bounds, integrality, options)
        if path.exists():
            return pickle.loads(path.read_bytes())
        found = solver(c, constraints=constraints, bounds=bounds, integrality=integrality, options=options)
        own = path.with_suffix(f".{os.getpid()}")
        own.write_bytes(pickle.dumps(found))
        own.replace(path)
        return found

    return milp


def _key(c: Any, constraints: Any, bounds: Any, integrality: Any, options: dict[str, Any]) -> str:
    import numpy

    a = constraints.A
    numbers = (c, a.data, a.indices, a.indptr, constraints.lb, constraints.ub, bounds.lb, bounds.ub, integrality)
    digest = hashlib.sha256(repr((a.shape, sorted(options.items()))).encode())
    for x in map(numpy.ascontiguousarray, numbers):
        digest.update(f"{x.dtype}{x.shape}".encode() + x.tobytes())
    return digest.hexdigest()
