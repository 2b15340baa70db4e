"""The update of a training step: optimizers, clipping, loss scale, counters, against torch.optim in float64."""

from __future__ import annotations

import copy
import math
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
from dmlc.ir.location import DmlcError
from dmlc.ir.weights import WeightStore
from dmlc.passmanager import Context, PassManager, parse_pipeline
from dmlc.pipelines import PIPELINES, TRAINING

UP_TO_OPTIMIZER = ",".join(TRAINING[: TRAINING.index("mixed-precision")])
HYPER = {"lr": 0.05, "weight_decay": 0.1, "max_norm": 0.3}

torch.set_num_threads(1)


class Net(nn.Module):
    """A tied weight, a norm with running statistics, dropout if asked for, and a parameter that nothing uses."""

    def __init__(self, dropout: float = 0.0, width: int = 6):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.spare = nn.Linear(width, width), nn.Linear(width, width, bias=False), nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.norm, self.drop = nn.BatchNorm1d(width), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(self.norm(torch.tanh(self.first(x)))))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(step)
    return torch.randn(5, 6, generator=g), torch.randint(0, 6, (5,), generator=g)


def compiled(model: nn.Module, **train: Any) -> tuple[Module, WeightStore]:
    result = import_exported(export(model, (batch(0)[0],), {}, None, True, "net"), eager=model)
    result.module.attrs.update({"dmlc.mode": "train", "dmlc.train": AttrDict({"loss": "cross-entropy", **train})})
    PassManager(parse_pipeline(UP_TO_OPTIMIZER, PIPELINES), verify=True).run(result.module, Context(result.weights))
    return result.module, result.weights


def initial(module: Module, weights: WeightStore, **hyper: float) -> dict[str, Any]:
    """Every argument that is no input: stored weights, states as they begin, hyperparameters."""
    values: dict[str, Any] = {}
    for a in module.main.args:
        init = a.attrs.get("dmlc.init")
        if init == "param":
            values[a.name] = values[a.attrs["dmlc.of"]]
        elif init is not None:
            values[a.name] = np.full(a.shape, init, np.float64 if a.tensor.is_float else np.int64)
        elif "dmlc.value" in a.attrs:
            values[a.name] = np.asarray(weights.get(a.attrs["dmlc.value"].key), np.float64)
        elif a.attrs.get("dmlc.role") == "hyper":
            values[a.name] = np.float64({**HYPER, **hyper}[a.name])
        elif a.attrs.get("dmlc.role") == "seed":
            values[a.name] = np.int64(7)
    return values


def one_step(module: Module, values: dict[str, Any], step: int) -> dict[str, Any]:
    """Run a step and put what it replaces into `values`."""
    x, target = batch(step)
    out = run(module, {**values, module.main.args[0].name: x.numpy(), "target": target.numpy()}, promote="f64")
    values.update({a["dmlc.updates"]: out[a["dmlc.name"]] for a in module.main.result_attrs if "dmlc.updates" in a})
    return out


def eager_steps(model: nn.Module, make: Callable[[Any], torch.optim.Optimizer], max_norm: float, steps: int = 3) -> list[tuple[float, float]]:
    """(loss, norm) of each step; `model` is trained in place."""
    optimizer, seen = make(model), []
    for step in range(steps):
        x, target = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.double()), target)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        seen.append((float(loss.detach()), float(norm)))
    return seen


def by_groups(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Biases are not decayed."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        named = dict(model.named_parameters())
        groups = [
            {"params": [p for n, p in named.items() if not n.endswith("bias")], "weight_decay": HYPER["weight_decay"]},
            {"params": [p for n, p in named.items() if n.endswith("bias")], "weight_decay": 0.0},
        ]
        return kind(groups, lr=HYPER["lr"], **options)

    return make


CASES: dict[str, tuple[dict[str, Any], Callable[[nn.Module], torch.optim.Optimizer]]] = {
    "sgd": ({"optimizer": "sgd"}, by_groups(torch.optim.SGD)),
    "momentum": ({"optimizer": "sgd", "momentum": 0.9}, by_groups(torch.optim.SGD, momentum=0.9)),
    "nesterov": ({"optimizer": "sgd", "momentum": 0.8, "nesterov": True}, by_groups(torch.optim.SGD, momentum=0.8, nesterov=True)),
    "adam": ({"optimizer": "adam", "beta1": 0.8, "beta2": 0.95, "eps": 1e-4}, by_groups(torch.optim.Adam, betas=(0.8, 0.95), eps=1e-4)),
    "adamw": ({"optimizer": "adamw"}, by_groups(torch.optim.AdamW)),
}


@pytest.mark.parametrize("max_norm", [0.3, math.inf, None])
@pytest.mark.parametrize("name", CASES)
def test_three_steps_equal_torch_optim(name: str, max_norm: float | None) -> None:
    """Clipped, with a limit that is never reached, and by a program that never clips, which computes no norm."""
    settings, make = CASES[name]
    model = Net()
    module, weights = compiled(copy.deepcopy(model), no_decay=r"bias$", clip=max_norm is not None, **settings)
    assert any(a.name == "max_norm" for a in module.main.args) == (max_norm is not None) == updates_read_the_norm(module)
    never, max_norm = max_norm is None, math.inf if max_norm is None else max_norm
    values, eager = initial(module, weights, max_norm=max_norm), model.double().train()
    before = copy.deepcopy(eager.state_dict())
    expected = eager_steps(eager, make, max_norm)
    assert max_norm > 1 or any(norm > max_norm for _, norm in expected), "clipping did nothing"
    for step, (loss, norm) in enumerate(expected):
        out = one_step(module, values, step)
        assert float(out["loss"]) == pytest.approx(loss, rel=1e-12)
        assert "grad_norm" not in out if never else float(out["grad_norm"]) == pytest.approx(norm, rel=1e-12)
    trained = eager.state_dict()
    for a in module.main.args:
        if a.attrs.get("dmlc.role") in ("param", "buffer"):
            key = a.attrs["dmlc.names"][0]
            np.testing.assert_allclose(values[a.name], trained[key].numpy(), rtol=1e-12, atol=1e-13, err_msg=key)
            assert key.startswith("spare") or not np.allclose(values[a.name], before[key].numpy(), rtol=1e-6, atol=0), f"{key} did not change"
    assert int(values["opt_step"]) == 3


def updates_read_the_norm(module: Module) -> bool:
    """Whether a new parameter depends on the norm of all gradients."""
    results = {a["dmlc.name"]: v for v, a in zip(module.main.results, module.main.result_attrs)}
    todo, seen = [v for name, v in results.items() if name.startswith("first")], set()
    while todo:
        op = todo.pop().op
        if op is not None and op not in seen:
            seen.add(op)
            todo += op.operands
    return "grad_norm" in results and results["grad_norm"].op in seen


# ---------------------------------------------------------------- overflow


def test_a_step_with_overflow_changes_only_the_counters_of_scale_and_randomness() -> None:
    module, weights = compiled(Net(dropout=0.5), optimizer="adamw", loss_scale="dynamic")
    values = initial(module, weights)
    one_step(module, values, 0)
    assert int(values["opt_step"]) == 1 and float(values["loss_scale"]) == 65536 and int(values["good_steps"]) == 1
    first = next(a.name for a in module.main.args if a.attrs.get("dmlc.names") == ("first.bias",))
    kept = dict(values)
    broken = {**values, first: values[first] * math.nan}
    out = one_step(module, dict(broken), 1)
    changed = {
        a["dmlc.updates"]
        for a in module.main.result_attrs
        if "dmlc.updates" in a and not np.array_equal(out[a["dmlc.name"]], broken[a["dmlc.updates"]], equal_nan=True)
    }
    assert bool(out["overflow"]) and changed == {"rng_step", "loss_scale", "good_steps"}
    assert float(out["loss_scale"]) == 32768 and int(out["good_steps"]) == 0 and int(out["rng_step"]) == 2
    assert not bool(one_step(module, kept, 1)["overflow"])


def test_the_loss_scale_doubles_after_enough_good_steps() -> None:
    module, weights = compiled(Net(), optimizer="sgd", loss_scale="dynamic")
    values = {**initial(module, weights), "good_steps": np.int64(1999)}
    one_step(module, values, 0)
    assert float(values["loss_scale"]) == 131072 and int(values["good_steps"]) == 0


@pytest.mark.parametrize("scale", ["dynamic", "1024"])
def test_the_loss_scale_changes_no_update(scale: str) -> None:
    results = []
    for loss_scale in ("none", scale):
        module, weights = compiled(Net(), optimizer="sgd", momentum=0.9, loss_scale=loss_scale)
        values = initial(module, weights)
        out = one_step(module, values, 0)
        results.append({k: v for k, v in out.items() if k not in ("overflow", "loss_scale", "good_steps")})
    for key, want in results[0].items():
        np.testing.assert_allclose(results[1][key], want, rtol=1e-12, atol=1e-14, err_msg=key)


@pytest.mark.parametrize(("gradient", "max_norm"), [(0.0, 1.0), (0.0, math.inf), (1e300, math.inf), (1e300, 1.0)])
def test_clipping_makes_no_nan(gradient: float, max_norm: float) -> None:
    """A norm of zero or infinity (squares that overflow) and no limit on it."""
    module, weights = compiled(Net(), optimizer="sgd")
    values = initial(module, weights, max_norm=max_norm, weight_decay=0.0)
    values = {k: v * gradient if k.startswith("norm") else v for k, v in values.items()} if not gradient else values
    scale = next(a for a in module.main.args if a.attrs.get("dmlc.names") == ("norm.weight",))
    values[scale.name] = values[scale.name] * 0 + (gradient or 0.0)
    out = one_step(module, values, 0)
    assert not any(np.isnan(v).any() for k, v in out.items() if k != "loss" and v.dtype.kind == "f")


# ---------------------------------------------------------------- dtypes, frozen parameters, errors


def test_narrow_parameters_are_rounded_from_a_wide_master_copy() -> None:
    model = Net().bfloat16()
    result = import_exported(export(model, (batch(0)[0].bfloat16(),), {}, None, True, "net"), eager=model)
    result.module.attrs.update({"dmlc.mode": "train", "dmlc.train": AttrDict(loss="cross-entropy", optimizer="sgd", momentum=0.9)})
    PassManager(parse_pipeline(UP_TO_OPTIMIZER, PIPELINES), verify=True).run(result.module, Context(result.weights))
    states = {a.attrs["dmlc.slot"]: a for a in result.module.main.args if a.attrs.get("dmlc.of") == "first_weight"}
    assert {k: (a.dtype, a.attrs["dmlc.init"]) for k, a in states.items()} == {"momentum": ("f32", 0.0), "master": ("f32", "param")}
    new = next(v.op for v, a in zip(result.module.main.results, result.module.main.result_attrs) if a.get("dmlc.updates") == "first_weight")
    assert new is not None and new.name == "dmlc.cast" and new.operands[0].dtype == "f32"


def test_frozen_parameters_have_no_state() -> None:
    model = Net()
    result = import_exported(export(model, (batch(0)[0],), {}, None, True, "net"), eager=model)
    result.module.attrs.update({"dmlc.mode": "train", "dmlc.train": AttrDict(loss="cross-entropy")})
    result.module.main.arg("norm_weight").attrs["dmlc.frozen"] = True
    context = Context(result.weights)
    PassManager(parse_pipeline(UP_TO_OPTIMIZER, PIPELINES)).run(result.module, context)
    assert not [a.name for a in result.module.main.args if a.attrs.get("dmlc.of") == "norm_weight"]
    assert not [a for a in result.module.main.result_attrs if a.get("dmlc.updates") == "norm_weight"]
    assert any("frozen: norm.weight" in r.text for r in context.remarks)


def test_every_op_of_the_update_is_marked() -> None:
    module, _ = compiled(Net(), optimizer="adamw", loss_scale="dynamic")
    ops = list(module.main.body)
    last = max(i for i, op in enumerate(ops) if op.name == "dmlc.gradient")
    assert all(op.attrs.get("dmlc.phase") == "update" for op in ops[last + 1 : -1])
    assert not any("dmlc.phase" in op.attrs for op in ops[: last + 1])
    assert not any(op.name in ("dmlc.linear", "dmlc.matmul", "dmlc.contract") for op in ops[last + 1 :])


def test_an_unknown_optimizer_is_named() -> None:
    with pytest.raises(DmlcError, match="no optimizer 'lamb'"):
        compiled(Net(), optimizer="lamb")
