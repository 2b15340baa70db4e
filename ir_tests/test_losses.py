"""Losses of a training step against PyTorch in float64: their values, their gradients, counts of zero, evaluation's sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dmlc.ops  # noqa: F401
from dmlc.frontend.torch_export import export, import_exported
from dmlc.interpret.run import run
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Module
from dmlc.passmanager import Context, PassManager, parse_pipeline
from dmlc.pipelines import PIPELINES, TRAINING

UP_TO_GRADIENTS = ",".join([*TRAINING[: TRAINING.index("optimizer")], "canonicalize", "cse", "dce"])
UP_TO_LOSS = ",".join([*TRAINING[: TRAINING.index("autodiff")], "canonicalize", "cse", "dce"])

torch.set_num_threads(1)

BATCH, TIME, CLASSES = 4, 3, 5


class Scores(nn.Module):
    """[batch, time, 6] -> [batch, time, classes], or classes before time."""

    def __init__(self, classes_first: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.head, self.classes_first = nn.Linear(6, CLASSES), classes_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(x)
        return y.transpose(1, 2) if self.classes_first else y


class OwnLoss(nn.Module):
    """A model that returns its loss beside its scores."""

    def __init__(self, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]):
        super().__init__()
        self.scores, self.loss = Scores(), loss

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.scores(x)
        return {"logits": y, "loss": self.loss(y, target)}


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and class numbers, some of them ignored."""
    g = torch.Generator().manual_seed(1)
    target = torch.randint(0, CLASSES, (BATCH, TIME), generator=g)
    target[0], target[1, 1:] = -100, -100
    return torch.randn(BATCH, TIME, 6, generator=g), target


def compiled(model: nn.Module, args: tuple, mode: str = "train", **train: Any) -> tuple[Module, Any]:
    result = import_exported(export(model, args, {}, None, mode == "train", "scores"), eager=model)
    result.module.attrs.update({"dmlc.mode": mode, "dmlc.train": AttrDict(train)})
    PassManager(parse_pipeline(UP_TO_GRADIENTS if mode == "train" else UP_TO_LOSS, PIPELINES), verify=True).run(result.module, Context(result.weights))
    return result.module, result.weights


def reference(model: nn.Module, args: tuple, loss: Callable[[Any], torch.Tensor]) -> tuple[float, dict[str, np.ndarray]]:
    model = model.double()
    value = loss(model(*(a.double() if a.is_floating_point() else a for a in args)))
    value.backward()
    return float(value.detach()), {n: p.grad.numpy() for n, p in model.named_parameters()}  # type: ignore[union-attr]


def agree(module: Module, weights: Any, inputs: dict[str, Any], expected: tuple[float, dict[str, np.ndarray]]) -> None:
    found = run(module, inputs, promote="f64", weights=weights)
    assert float(found["loss"]) == pytest.approx(expected[0], rel=1e-12)
    assert [r for r in found if not r.endswith(".grad")] == ["loss"]
    for name, want in expected[1].items():
        np.testing.assert_allclose(found[name.replace(".", "_") + ".grad"], want, rtol=1e-10, atol=1e-12, err_msg=name)


# ---------------------------------------------------------------- a loss that is given


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("classes_first", [False, True])
def test_cross_entropy_over_valid_targets(classes_first: bool, smoothing: float) -> None:
    x, target = sample()
    model = Scores(classes_first)
    dim = 1 if classes_first else -1
    module, weights = compiled(model, (x,), loss="cross-entropy", class_dim=dim, label_smoothing=smoothing)
    expected = reference(model, (x,), lambda y: F.cross_entropy(y if classes_first else y.transpose(1, 2), target, label_smoothing=smoothing))
    agree(module, weights, {"x": x.numpy(), "target": target.numpy()}, expected)


@pytest.mark.parametrize("own", [False, True])
def test_no_valid_target_is_a_loss_of_zero_with_zero_gradients(own: bool) -> None:
    """PyTorch's mean is NaN there. The model's own loss is guarded too."""
    x, target = sample()
    if own:
        module, weights = compiled(OwnLoss(lambda y, t: F.cross_entropy(y.transpose(1, 2), t)), (x, target))
    else:
        module, weights = compiled(Scores(), (x,), loss="cross-entropy")
    found = run(module, {"x": x.numpy(), "target": np.full(target.shape, -100)}, promote="f64", weights=weights)
    assert len(found) == 3 and all(np.all(v == 0) for v in found.values())


def test_ignored_number_is_a_setting() -> None:
    x, target = sample()
    target = torch.where(target == -100, 2, target)
    model = Scores()
    module, weights = compiled(model, (x,), loss="cross-entropy", ignore=2)
    agree(
        module,
        weights,
        {"x": x.numpy(), "target": target.numpy()},
        reference(model, (x,), lambda y: F.cross_entropy(y.transpose(1, 2), target, ignore_index=2)),
    )


@pytest.mark.parametrize(("kind", "function"), [("mse", F.mse_loss), ("bce", F.binary_cross_entropy_with_logits)])
def test_elementwise_losses(kind: str, function: Callable[..., torch.Tensor]) -> None:
    x, _ = sample()
    wanted = torch.rand(BATCH, TIME, CLASSES, generator=torch.Generator().manual_seed(2))
    model = Scores()
    module, weights = compiled(model, (x,), loss=kind)
    agree(module, weights, {"x": x.numpy(), "target": wanted.numpy()}, reference(model, (x,), lambda y: function(y, wanted.double())))


# ---------------------------------------------------------------- the model's own

OWN: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross entropy": lambda y, t: F.cross_entropy(y.reshape(-1, CLASSES), t.reshape(-1)),
    "mean": lambda y, t: (y * y).mean(),
    "two means": lambda y, t: (y * y).mean(-1).mean(),
    "sum over the rest": lambda y, t: (y * y).sum() / y.shape[0],
    "minus a mean": lambda y, t: -(y.sigmoid().log()).mean() + 0.5 * y.abs().mean(),
}


@pytest.mark.parametrize("name", OWN)
def test_own_loss(name: str) -> None:
    x, target = sample()
    model = OwnLoss(OWN[name])
    module, weights = compiled(model, (x, target))
    agree(module, weights, {"x": x.numpy(), "target": target.numpy()}, reference(model, (x, target), lambda y: y["loss"]))


@pytest.mark.parametrize("name", [n for n in OWN if n != "cross entropy"])
def test_own_means_are_divided_by_a_count(name: str) -> None:
    """With a third of the samples taken away the way `partition` does (they are zero, and not counted), the mean is that of the others."""
    x, target = sample()
    model = OwnLoss(OWN[name])
    module, weights = compiled(model, (x, target))
    ones = [op for op in module.main.ops() if op.name == "dmlc.full" and "dmlc.batch_dim" in op.attrs]
    assert [op.result.shape for op in ones] == [(BATCH,)]
    with torch.no_grad():
        whole = float(run(module, {"x": x.numpy(), "target": target.numpy()}, promote="f64", weights=weights)["loss"])
    ones[0].attrs["value"] = 0.5  # half of the samples count: the same sum over half as many
    halved = float(run(module, {"x": x.numpy(), "target": target.numpy()}, promote="f64", weights=weights)["loss"])
    assert halved == pytest.approx(2 * whole, rel=1e-12)


# ---------------------------------------------------------------- evaluation


def test_sums_of_batches_add_up_to_the_mean_and_the_accuracy_of_all() -> None:
    x, target = sample()
    model = Scores()
    module, weights = compiled(model, (x,), "eval", loss="cross-entropy")
    batches = [(x, target), (x * 0.5, torch.full_like(target, -100)), (x + 1, target.roll(1, 0))]
    sums = np.zeros(3)
    for a, t in batches:
        found = run(module, {"x": a.numpy(), "target": t.numpy()}, promote="f64", weights=weights)
        sums += [float(found[k]) for k in ("loss_sum", "count", "correct")]
    with torch.no_grad():
        y = model.double()(torch.cat([a for a, _ in batches]).double())
    all_targets = torch.cat([t for _, t in batches])
    assert sums[0] / sums[1] == pytest.approx(float(F.cross_entropy(y.transpose(1, 2), all_targets)), rel=1e-12)
    assert sums[1] == int((all_targets != -100).sum()) and sums[2] == int((y.argmax(-1) == all_targets).sum()) > 0


@pytest.mark.parametrize("name", OWN)
def test_evaluation_of_an_own_loss(name: str) -> None:
    x, target = sample()
    model = OwnLoss(OWN[name])
    module, weights = compiled(model, (x, target), "eval")
    found = run(module, {"x": x.numpy(), "target": target.numpy()}, promote="f64", weights=weights)
    with torch.no_grad():
        expected = float(model.double()(x.double(), target)["loss"])
    assert list(found) == ["loss_sum", "count"]
    assert float(found["loss_sum"]) / float(found["count"]) == pytest.approx(expected, rel=1e-12)
    assert float(found["count"]) == (int((target != -100).sum()) if name == "cross entropy" else BATCH)
