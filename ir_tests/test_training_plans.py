"""Training under every plan is the same training: 20 steps with clipping, two microbatches, dropout and ragged targets, against one rank and eager PyTorch.

Among the targets are ranks and microbatches with one, three and no valid ones. In float64 every plan's losses agree with the one-rank program's
to 1e-10 and parameters to 1e-8; in float32 losses of AdamW and parameters of SGD to 1e-5 (AdamW divides rounding errors of gradients near zero by
themselves, so its float32 parameters say nothing).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_cases import OPTIMIZERS, PARTITIONED, Run, difference, eager, emitted, interpreted, loaded, partitioned, passed

from dmlc import driver

torch.set_num_threads(1)
STEPS = 20
PLANS = {
    "dp=2": 2, "dp=4": 4, "dp=8": 8, "dp=4,zero=1": 4, "dp=4,zero=2": 4, "dp=4,zero=3": 4, "tp=2": 2, "dp=2,tp=2": 4, "dp=2,tp=2,zero=3": 4,
}  # fmt: skip
MODELS = ("perceptron", "transformer", "cnn")
one_rank: dict[tuple[str, str, str | None], Run] = {}


def on_one_rank(model: str, optimizer: str, promote: str | None) -> Run:
    if (model, optimizer, promote) not in one_rank:
        one_rank[model, optimizer, promote] = interpreted(*partitioned(model, "dp=1", 1, 2, optimizer), model, STEPS, optimizer, promote=promote)
    return one_rank[model, optimizer, promote]


def assert_close(got: Run, want: Run, loss: float, parameters: float) -> None:
    losses, norms, states = difference(got, want)
    assert losses < loss and norms < 10 * loss, (losses, norms)
    assert states < parameters, states


def test_what_the_steps_exercise() -> None:
    """The gradients are clipped at some steps and not at others; the loss falls; dropout makes a difference."""
    losses, norms, _ = on_one_rank("transformer", "adamw", "f64")
    assert min(norms) < 0.6 < max(norms) and losses[-1] < losses[0] / 2
    other_seed = interpreted(*partitioned("transformer", "dp=1", 1, 2), "transformer", 1, promote="f64", seed=1)
    assert abs(other_seed[0][0] - losses[0]) > 1e-3


# ---------------------------------------------------------------- one rank and eager PyTorch


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("model", ["perceptron_plain", "transformer_plain", "cnn"])
def test_one_rank_trains_as_pytorch(model: str, optimizer: str) -> None:
    module, weights = partitioned(model, "dp=1", 1, 2, optimizer)
    wanted = eager(model, STEPS, optimizer, microbatches=2)
    assert_close(interpreted(module, weights, model, STEPS, optimizer, promote="f64"), wanted, 1e-10, 1e-8)
    single = eager(model, STEPS, optimizer, microbatches=2, dtype=torch.float32)
    assert_close(interpreted(module, weights, model, STEPS, optimizer), single, 1e-5, 1e-5 if optimizer == "sgd" else float("inf"))


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model", MODELS)
def test_a_plan_trains_as_one_rank(model: str, plan: str) -> None:
    """In float64, garbage in all padding of the batch."""
    found = interpreted(*partitioned(model, plan, PLANS[plan], 2), model, STEPS, promote="f64")
    assert_close(found, on_one_rank(model, "adamw", "f64"), 1e-10, 1e-8)


@pytest.mark.parametrize("plan", ["dp=2", "dp=4,zero=3", "tp=2"])
def test_a_table_with_a_row_for_each_sample(plan: str) -> None:
    """It rests whole on every rank, and each microbatch takes its rows."""
    wanted = eager("perceptron_weighted", 4, "sgd", microbatches=1)
    for microbatches in (1, 2):
        found = interpreted(*partitioned("perceptron_weighted", plan, PLANS[plan], microbatches, "sgd"), "perceptron_weighted", 4, "sgd", promote="f64")
        assert_close(found, wanted, 1e-10, 1e-8)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("plan", ["dp=1", *PLANS])
def test_an_emitted_program_trains_as_one_rank(plan: str, optimizer: str, tmp_path: Path) -> None:
    """In float32 after the whole pipeline, a process a rank, on Gloo."""
    found = emitted("perceptron", plan, PLANS.get(plan, 1), tmp_path / "out", STEPS, optimizer)
    assert_close(found, on_one_rank("perceptron", optimizer, None), 1e-5, 1e-5 if optimizer == "sgd" else float("inf"))


@pytest.mark.parametrize(("model", "plan", "optimizer"), [("transformer", "dp=2,tp=2,zero=3", "sgd"), ("transformer", "dp=4,zero=2", "adamw"), ("cnn", "dp=4,zero=3", "sgd")])
def test_larger_emitted_programs(model: str, plan: str, optimizer: str, tmp_path: Path) -> None:
    found = emitted(model, plan, PLANS[plan], tmp_path / "out", STEPS, optimizer)
    assert_close(found, on_one_rank(model, optimizer, None), 1e-5, 1e-5 if optimizer == "sgd" else float("inf"))


# ---------------------------------------------------------------- batches that are not full


@pytest.mark.parametrize("plan", ["dp=1", "dp=4", "dp=4,zero=3", "dp=2,tp=2"])
@pytest.mark.parametrize("model", ["perceptron_plain", "transformer_plain"])
@pytest.mark.parametrize(("samples", "microbatches"), [(16, 2), (11, 2), (5, 2), (5, 1), (1, 1), (24, 3)])
def test_other_batches_without_compiling_again(model: str, plan: str, samples: int, microbatches: int) -> None:
    """The program is compiled for 16 samples in 2 microbatches. Some ranks and microbatches have no sample at all."""
    module, weights = partitioned(model, plan, PLANS.get(plan, 1), 2)
    found = interpreted(module, weights, model, 3, n=samples, promote="f64", microbatches=microbatches)
    assert_close(found, eager(model, 3, n=samples), 1e-10, 1e-8)


def test_an_emitted_program_takes_other_batches(tmp_path: Path) -> None:
    assert_close(emitted("perceptron_plain", "dp=4,zero=2", 4, tmp_path / "a", 3, n=5, microbatches=1), eager("perceptron_plain", 3, n=5), 1e-5, 1e-4)
    assert_close(emitted("perceptron_plain", "dp=4,zero=2", 4, tmp_path / "b", 3, n=24, microbatches=3), eager("perceptron_plain", 3, n=24), 1e-5, 1e-4)


@pytest.mark.parametrize("plan", ["dp=1", "dp=4", "dp=4,zero=2", "dp=4,zero=3", "dp=2,tp=2,zero=3"])
def test_what_padding_holds_does_not_matter(plan: str) -> None:
    """NaN in every padding, of a batch of 11 samples of 16, before any mask is left out."""
    options = driver.Options(train=OPTIMIZERS["adamw"], plan=plan, devices=PLANS.get(plan, 1), microbatches=2)
    module, weights = passed(loaded("transformer_plain"), PARTITIONED.partition(",mask-elim")[0], options)
    found = interpreted(module, weights, "transformer_plain", 2, n=11, promote="f64", poison_pads=True)
    assert_close(found, eager("transformer_plain", 2, n=11), 1e-10, 1e-8)
