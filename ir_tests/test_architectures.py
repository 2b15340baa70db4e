"""Architectures of the transformers package with random weights: on one device and on eight, against eager PyTorch, forward and backward.

The rows are those of `models/catalogue_*.py` that say so. Ranks are interpreted in one process; a few programs run on eight processes too.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from model_cases import emit
from rank_pool import shared_pool

from dmlc.models.catalogue import Architecture, builders
from dmlc.models.common import normal
from dmlc.tools import architectures as tool

torch.set_num_threads(1)

ROWS = [(module, row) for module, row in tool.rows() if row.tests]


def named(test: str) -> Any:
    """The rows that a test runs. `eager`: with eager attention where that is not the usual one."""
    return pytest.mark.parametrize(("module", "row"), [pytest.param(m, r, id=r.name) for m, r in ROWS if test in r.tests])


@functools.cache
def judged(module: str, row: Architecture) -> tool.Verdict:
    """Ties, and forward on one device and on eight, of the builder that the row asks for."""
    name = f"{row.name}_eager" if "eager" in row.tests else row.name
    return tool.judge(module, row, name, tool.parser().parse_args(["--forward"]))


@named("forward")
def test_forward_on_one_device_and_on_eight(module, row):
    verdict = judged(module, row)
    assert tool.passes(verdict), verdict
    assert set(verdict.forward) == {1, 8} and verdict.tied == row.tied
    assert verdict.work < 0.3, "a rank of eight does about an eighth of the work, of experts' sorted rows a quarter"


@named("backward")
def test_gradients_on_one_device_and_on_eight(module, row):
    verdict = tool.Verdict(row.name, row.kind)
    tool.backward(verdict, f"{module}:{row.name}", row, tool.parser().parse_args([]))
    assert set(verdict.backward) == {1, 8} and tool.passes(verdict), verdict


@named("emitted")
def test_the_written_program_on_eight_processes(module, row, tmp_path):
    loaded = tool.load(f"{module}:{row.name}")
    program = tool.compiled(loaded, 8)
    found = shared_pool().run(emit(program, tmp_path / "out"), loaded.examples).results
    assert tool.difference(tool.expected(loaded), found) < tool.TOLERANCE


def test_the_rows_cover_what_people_have():
    """Kinds, ties, both kinds of attention, and names that a command can take."""
    rows = [row for _, row in tool.rows()]
    tested = [row for _, row in ROWS if "forward" in row.tests]
    assert len(tested) >= 20 and sum("backward" in row.tests for _, row in ROWS) >= 8
    kinds = {"decoder", "encoder", "encoder-decoder", "mixture of experts", "vision", "audio", "detection", "segmentation"}
    assert kinds <= {row.kind for row in tested} and {row.tied for row in tested} == {True, False}
    assert any("eager" in row.tests for row in tested) and any(row.half for row in tested)
    names = [name for row in rows for name in row.variants]
    assert len(set(names)) == len(names)
    assert all(set(row.tests) <= {"forward", "eager", "backward", "emitted"} and ("eager" not in row.tests or "eager" in row.attention[1:]) for row in rows)


# ---------------------------------------------------------------- a wrong result is seen


class Scaled(torch.nn.Module):
    """Two weights; `tie` makes them one."""

    def __init__(self, tie: bool):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
        if tie:
            self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


OWN = [Architecture(name, "encoder", functools.partial(lambda tie: (Scaled(tie), (normal(8, 4),)), name == "tied"), loss="mse") for name in ("tied", "apart")]
globals().update(builders(OWN))


def test_a_tie_that_a_row_does_not_expect_is_an_error():
    verdict = tool.judge(__name__, OWN[0], "tied", tool.parser().parse_args(["--forward"]))
    assert "tied are [['a.weight', 'b.weight']]" in verdict.error and not tool.passes(verdict)


def test_other_weights_or_gradients_are_seen(monkeypatch):
    loaded = tool.load(f"{__name__}:apart")
    wanted, program = tool.expected(loaded), tool.compiled(loaded, 2, "dp=2")
    assert tool.forward_error(program, wanted) < 1e-6
    assert tool.forward_error(program, {n: x * 1.001 for n, x in wanted.items()}) > 5e-4
    trained = tool.load(f"{__name__}:apart", "mse")
    step = tool.compiled(trained, 2, "dp=2", "mse")
    batch = tool.batch_of(step)
    gradients = tool.gradients(trained, "mse", batch)
    assert tool.backward_error(step, batch, gradients) < 1e-5
    gradients["b.weight"] = gradients["b.weight"] * 0.99
    assert tool.backward_error(step, batch, gradients) > 1e-3
