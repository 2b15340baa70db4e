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


# ---------------------------------------------------------------- pipelines, regions


def test_two_stages_give_the_plain_program() -> None:
    programs, rng = modules("pipeline"), np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((7, 5)), "w0": rng.standard_normal((5, 6)), "w1": rng.standard_normal((6, 3))}
    agree(run(programs["stages"], inputs, poison_pads=True), run(programs["plain"], inputs))


def test_branches_and_loops() -> None:
    """Rank 1 takes exp of its half; then three squarings, the sums of squares weighted by the iteration's index."""
    x = np.array([0.5, -0.25, 0.75, 0.1, -0.2, 0.3])
    y = np.concatenate([x[:3], np.exp(x[3:])])
    total = 1 * (y**4).sum() + 2 * (y**8).sum()
    agree(run(modules("regions")["regions"], {"x": x}), {"sum": total, "power": y**8})


@pytest.mark.parametrize("name", ["stages", "regions"])
def test_a_promoted_run_keeps_its_types(name: str) -> None:
    """The same text with f32 in place of f64, computed in f64."""
    module = modules("pipeline" if name == "stages" else "regions")[name]
    text = print_module(module).replace("xf64", "xf32").replace("tensor<f64>", "tensor<f32>").replace('to = "f64"', 'to = "f32"')
    narrow = parse_module(text)
    verify(narrow)
    inputs = {a.name: np.random.default_rng(1).standard_normal(a.attrs.get("dmlc.global", a.shape)).astype(np.float32) for a in module.main.args}
    agree(run(narrow, inputs, promote="f64"), run(module, inputs))
    assert all(v.dtype == np.float32 for v in run(narrow, inputs).values())
