"""Regions, windows, pipelines and messages, hand-written in the text form, mean what the plain program means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dmlc.ops  # noqa: F401
from dmlc.interpret.run import run
from dmlc.ir.core import Module
from dmlc.ir.parser import parse_module, split_input
from dmlc.ir.printer import print_module
from dmlc.ir.verifier import verify

torch.set_num_threads(1)
FOLDER = Path(__file__).parent / "structural"


def modules(name: str) -> dict[str, Module]:
    """The verified modules of a text test, by their function's name."""
    text = (FOLDER / f"{name}.mlir").read_text()
    found = [parse_module(piece, name, line) for piece, line in split_input(text)]
    for module in found:
        verify(module)
    return {m.main.name: m for m in found}


def agree(actual: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(actual) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-12, atol=1e-12, err_msg=name)


# ---------------------------------------------------------------- microbatches


def step_inputs(n: int, ignored: tuple[int, ...] = ()) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    targets = rng.integers(0, 5, 7)
    targets[list(ignored)] = -100
    x, w, m = rng.standard_normal((7, 6)), rng.standard_normal((6, 5)), rng.standard_normal((6, 5))
    return {"x": x, "t": targets, "n": n, "w": w, "m": m, "lr": 0.1}


@pytest.mark.parametrize("name", ["split", "thirds"])
@pytest.mark.parametrize("ignored", [(), (0, 4), (4, 5, 6)], ids=str)
def test_microbatches_give_the_whole_batch_step(name: str, ignored: tuple[int, ...]) -> None:
    """7 samples over two ranks and two or three iterations, NaN in all padding; also where a rank has no valid target."""
    programs, inputs = modules("microbatch"), step_inputs(7, ignored)
    expected = run(programs["whole"], inputs)
    agree(run(programs[name], inputs, poison_pads=True), expected)
    assert not np.allclose(expected["w"], inputs["w"], atol=1e-3)


@pytest.mark.parametrize("name", ["split", "thirds"])
def test_the_masks_of_a_microbatch_are_needed(name: str) -> None:
    module = modules("microbatch")[name]
    for op in module.walk():
        if op.name == "dmlc.mask_pad" and op.attrs["identity"] == "sum":
            op.replace([op.operands[0]])
    assert np.isnan(run(module, step_inputs(7), poison_pads=True)["w"]).any()


@pytest.mark.parametrize("name", ["whole", "split", "thirds"])
def test_text_of_microbatches_reads_back(name: str) -> None:
    module = modules("microbatch")[name]
    for generic in (False, True):
        again = parse_module(print_module(module, generic=generic))
        assert print_module(again) == print_module(module)
        agree(run(again, step_inputs(7)), run(module, step_inputs(7)))
