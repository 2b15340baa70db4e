"""The models to train and their data: they import as what they compute, their data are the same everywhere, and they can learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import dmlc.ops  # noqa: F401
from dmlc.frontend.torch_export import import_program
from dmlc.interpret.run import run
from dmlc.ir.verifier import verify
from dmlc.models import digits, gpt_text, unet3d

torch.set_num_threads(1)

CLASSIFIERS = ("perceptron", "tiny_perceptron", "cnn", "plain_cnn", "tiny")
BUILDERS = {
    **{f"digits:{n}": getattr(digits, n) for n in CLASSIFIERS},
    **{f"gpt_text:{n}": getattr(gpt_text, n) for n in ("make", "logits", "tiny", "tiny_logits")},
    **{f"unet3d:{n}": getattr(unet3d, n) for n in ("make", "batch_norm", "tiny", "tiny_batch_norm", "tiny_with_loss")},
}
DATA = {"digits": digits, "gpt_text": gpt_text, "unet3d": unet3d}


# ---------------------------------------------------------------- builders


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_imports_as_what_it_computes(name):
    result = import_program(f"dmlc.models.{name}")
    verify(result.module)
    assert result.reference is not None
    (expected,) = result.reference(result.inputs, double=True).values()
    (actual,) = run(result.module, result.inputs, promote="f64", weights=result.weights).values()
    assert np.abs(actual - expected).max() < 1e-9 * np.abs(expected).max()
    assert expected.ndim == 0 or expected.std() > 0.05, "an output that hardly varies proves nothing"


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_gives_the_same_weights_each_time(name):
    first, second = BUILDERS[name]()[0], BUILDERS[name]()[0]
    assert not first.training
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True))


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_imports_in_training_mode(name):
    """With every parameter of the module, and running statistics as updates where there are batch norms."""
    main = import_program(f"dmlc.models.{name}", train=True).module.main
    module = BUILDERS[name]()[0]
    imported = {n for a in main.args if a.attrs.get("dmlc.role") == "param" for n in a.attrs["dmlc.names"]}
    assert imported == {n for n, _ in module.named_parameters(remove_duplicate=False)}
    updated = [a for a in main.result_attrs if "dmlc.updates" in a]
    assert len(updated) == sum(1 for n, _ in module.named_buffers() if "running" in n or "tracked" in n)


def test_numbers_of_parameters():
    """The 30 million of the benchmark count the tied table once; a third is the table, as in GPT-2."""
    module, _ = gpt_text.thirty_million()
    assert sum(p.numel() for p in module.parameters()) == pytest.approx(30e6, rel=0.02)
    assert module.model.tokens.weight.numel() == pytest.approx(10e6, rel=0.05)


# ---------------------------------------------------------------- data


@pytest.mark.parametrize("name", DATA)
def test_data_are_the_same_each_time(name):
    for make in (DATA[name].train_data, DATA[name].test_data):
        first, second = make(), make()
        assert len(first) == len(second)
        for i in (0, len(first) - 1):
            assert all(torch.equal(a, b) for a, b in zip(first[i], second[i], strict=True))
        with pytest.raises(IndexError):
            first[len(first)]


@pytest.mark.parametrize("name", DATA)
def test_no_test_sample_is_a_training_sample(name):
    training, testing = DATA[name].train_data(), DATA[name].test_data()
    known = {training[i][0].numpy().tobytes() for i in range(256)}
    assert not any(testing[i][0].numpy().tobytes() in known for i in range(32))


@pytest.mark.parametrize("name", BUILDERS)
def test_samples_fit_the_model(name):
    """A batch of samples has the shape and type of the example arguments, except for models made smaller than the data."""
    _, args = BUILDERS[name]()
    sample = DATA[name.split(":")[0]].train_data()[0]
    assert all(s.dtype == a.dtype and s.dim() == a.dim() - 1 for s, a in zip(sample, args))
    if "tiny" not in name or name.startswith("digits"):
        assert all(s.shape == a.shape[1:] for s, a in zip(sample, args))


def test_digits_are_split_into_all_classes():
    training, testing = digits.train_data(), digits.test_data()
    assert (len(training), len(testing)) == (1437, 360)
    assert float(training.images.mean()) == pytest.approx(0, abs=1e-5) and float(training.images.std()) == pytest.approx(1, abs=1e-3)
    assert torch.bincount(testing.targets).min() > 20 and [int(t) for t in training.targets[:5]] == [2, 8, 2, 6, 6]


def test_text_is_sentences_and_targets_are_one_ahead():
    ids, target = gpt_text.train_data()[5]
    has_target = target != gpt_text.IGNORED
    count = int(has_target.sum())
    assert torch.equal(ids[1:count], target[: count - 1]) and not has_target[count:].any()
    text = "".join(gpt_text.ALPHABET[i] for i in [*ids[:1], *target[:count]])
    assert text == gpt_text.train_data().text(5) and text.startswith("\n") and text.endswith(".\n")
    assert len({int((t != gpt_text.IGNORED).sum()) for _, t in (gpt_text.train_data()[i] for i in range(8))}) > 2, "lengths differ"


def test_phantoms_have_all_classes():
    for i in range(8):
        x, target = unet3d.train_data()[i]
        shares = torch.bincount(target.flatten(), minlength=3) / target.numel()
        assert shares.min() > 0.002 and shares[0] > 0.5
        assert [round(float(x[0][target == c].mean())) for c in range(3)] == [0, 1, 2]


def test_dice_is_between_nothing_and_everything_right():
    _, target = unet3d.train_data()[0]
    right = torch.nn.functional.one_hot(target, 3).movedim(-1, 0)[None].float() * 20
    assert unet3d.dice(right, target[None]) == pytest.approx(1.0) and unet3d.loss(right, target[None]) < 1e-3
    wrong = right.roll(1, dims=1)
    assert unet3d.dice(wrong, target[None]) < 0.02 and unet3d.loss(wrong, target[None]) > 10


def test_the_loss_of_a_batch_is_the_mean_over_its_samples():
    logits, target = torch.randn(3, 3, 4, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(192).reshape(3, 4, 4, 4) % 3
    apart = [unet3d.loss(logits[i : i + 1], target[i : i + 1]) for i in range(3)]
    assert unet3d.loss(logits, target) == pytest.approx(float(sum(apart)) / 3, rel=1e-6)


# ---------------------------------------------------------------- learning, in plain PyTorch


def train(module: torch.nn.Module, data: Any, loss: Any, steps: int, batch: int, rate: float) -> list[float]:
    """The losses of `steps` of AdamW over the data in order, the module in training mode."""
    torch.manual_seed(0)
    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), rate)
    losses = []
    for step in range(steps):
        samples = [data[i % len(data)] for i in range(step * batch, (step + 1) * batch)]
        value = loss(module, *(torch.stack(column) for column in zip(*samples)))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    module.eval()
    return losses


def class_loss(module, x, target):
    return torch.nn.functional.cross_entropy(module(x), target)


@pytest.mark.parametrize(("make", "accuracy"), [(digits.perceptron, 0.93), (digits.cnn, 0.97)])
def test_digits_are_learnt(make, accuracy):
    module = make()[0]
    losses = train(module, digits.train_data(), class_loss, steps=120, batch=64, rate=5e-3)
    testing = digits.test_data()
    with torch.no_grad():
        found = (module(testing.images).argmax(1) == testing.targets).float().mean()
    assert losses[-1] < 0.1 * losses[0] and found >= accuracy


def test_text_is_learnt():
    losses = train(gpt_text.tiny()[0], gpt_text.Sentences(256, 48, seed=1), lambda m, x, t: m(x, t), steps=40, batch=16, rate=5e-3)
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize("make", [unet3d.make, unet3d.batch_norm])
def test_segmentation_is_learnt(make):
    module, testing = make()[0], unet3d.test_data()
    losses = train(module, unet3d.train_data(), lambda m, x, t: unet3d.loss(m(x), t), steps=60, batch=4, rate=1e-2)
    x, target = (torch.stack(column) for column in zip(*(testing[i] for i in range(8))))
    with torch.no_grad():
        reached = float(unet3d.dice(module(x), target))
    assert losses[-1] < 0.4 * losses[0] and reached > 0.6


# ---------------------------------------------------------------- ONNX


@pytest.mark.parametrize("make", [digits.perceptron, digits.plain_cnn])
def test_onnx_files_hold_the_models(make, tmp_path):
    path = digits.write_onnx(tmp_path / "digits.onnx", make)
    module, (x,) = make()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x[:5].numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, module(x[:5]), atol=1e-5)
    result = import_program(f"dmlc.models.digits:{make.__name__}")
    assert {tuple(a.attrs["dmlc.names"]) for a in result.module.main.args if a.attrs["dmlc.role"] == "param"} == {(n,) for n, _ in module.named_parameters()}
