"""Faults of other tools in training, from public issue trackers, with the numbers of the reports: distribution (D) and torch.export (E)."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_cases import FILE, PARTITIONED, difference, interpreted, partitioned, passed, ranked
from training_models import Transformer

from dmlc import driver
from dmlc.frontend.torch_export import import_exported
from dmlc.interpret.run import run_ranks
from dmlc.interpret.train import Trainer
from dmlc.ir.parser import parse_module
from dmlc.ops.comm import base_name, is_collective
from dmlc.passmanager.context import Context
from dmlc.passmanager.manager import PassManager
from dmlc.passmanager.pipeline import parse_pipeline
from dmlc.training import Training

torch.set_num_threads(1)
PLANS = [("dp=1", 1), ("dp=2", 2), ("dp=4,zero=3", 4), ("tp=2", 2), ("dp=2,tp=2", 4), ("dp=2,tp=2,zero=3", 4)]
every_plan = pytest.mark.parametrize(("plan", "devices"), PLANS, ids=[p for p, _ in PLANS])
Inputs = Mapping[str, torch.Tensor]


def trainer(network: nn.Module, example: Inputs, plan: str = "dp=1", devices: int = 1, microbatches: int = 1, **training: Any) -> Trainer:
    """The network trained by SGD in float64, unless `training` says otherwise; every padding is poisoned."""
    result = import_exported(torch.export.export(network.train(), (), dict(example)), train=True)
    options = driver.Options(devices=devices, plan=plan, microbatches=microbatches, train=Training(**{"optimizer": "sgd", **training}))
    source = driver.Loaded("case", result.module, result.weights, None, [], [])
    driver.prepare_training(source, options)
    module, weights = passed(source, PARTITIONED, options)
    return Trainer(module, weights, promote="f64")


def gradients(t: Trainer, inputs: Inputs, **sizes: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of a step: what a step of size 1 takes from each parameter."""
    before = dict(t.state)
    loss = t.step(inputs, lr=1.0, **sizes)["loss"]
    return loss, {a.name: before[a.name] - t.state[a.name] for a in t.module.main.args if a.attrs.get("dmlc.role") == "param"}


def eager_gradients(network: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    names, values = zip(*network.named_parameters())
    return {n.replace(".", "_"): g for n, g in zip(names, torch.autograd.grad(loss, values))}


def agree(got: Mapping[str, torch.Tensor], want: Mapping[str, torch.Tensor]) -> None:
    assert want and set(want) <= set(got)
    for name, x in want.items():
        torch.testing.assert_close(got[name].double(), x.double(), rtol=1e-6, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


# ---------------------------------------------------------------- D1, D2: means and accumulation


class Scaled(nn.Module):
    """Logits that are the input times a weight of one."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


def tokens(rows: int) -> dict[str, torch.Tensor]:
    """Row 0 has one valid token, of loss 4; row 1 three of loss 0; further rows have none."""
    x, target = torch.zeros(rows, 3, 2, dtype=torch.float64), torch.full((rows, 3), -100)
    x[0, 0, 1] = math.log(math.exp(4) - 1)
    x[1, :, 0] = 200.0
    target[0, 0] = 0
    target[1] = 0
    return {"x": x, "target": target}


@pytest.mark.parametrize(("plan", "devices", "microbatches", "rows"), [("dp=1", 1, 1, 2), ("dp=2", 2, 1, 2), ("dp=1", 1, 2, 2), ("dp=3", 3, 1, 3), ("dp=2,zero=2", 2, 2, 4), ("dp=2,zero=3", 2, 3, 6)])
def test_d1_the_mean_is_over_all_valid_tokens(plan: str, devices: int, microbatches: int, rows: int) -> None:
    """1.0 by total count; a mean of the ranks' (or microbatches') means would be 2.0. Ranks and microbatches without a valid token add nothing."""
    network, given = Scaled(), tokens(rows)
    t = trainer(network, {"x": given["x"]}, plan, devices, microbatches, loss="cross-entropy")
    loss, found = gradients(t, given)
    assert loss == pytest.approx(1.0, abs=1e-12)
    agree(found, eager_gradients(network, F.cross_entropy(network(given["x"]).flatten(0, 1), given["target"].flatten())))


def test_d1_no_valid_token_at_all() -> None:
    """Nothing to learn: loss and gradients are 0 on all ranks, not NaN."""
    given = tokens(2)
    given["target"][:] = -100
    loss, found = gradients(trainer(Scaled(), {"x": given["x"]}, "dp=2", 2, loss="cross-entropy"), given)
    assert loss == 0 and not found["w"].any()


@pytest.mark.parametrize("microbatches", [1, 2, 3, 4])
@pytest.mark.parametrize(("plan", "devices"), [("dp=1", 1), ("dp=2", 2), ("dp=4,zero=2", 4)])
def test_d2_accumulated_gradients_are_those_of_the_batch(plan: str, devices: int, microbatches: int) -> None:
    """Three steps of 12 samples: no division by the number of microbatches twice, and nothing left over from the step before."""
    torch.manual_seed(0)
    network = nn.Linear(3, 2).double()
    x, target = torch.randn(12, 3, dtype=torch.float64), torch.randn(12, 2, dtype=torch.float64)
    t = trainer(network, {"input": x}, plan, devices, microbatches, loss="mse")
    for _ in range(3):
        wanted = F.mse_loss(network(x), target)
        want = eager_gradients(network, wanted)
        loss, found = gradients(t, {"input": x, "target": target})
        assert loss == pytest.approx(wanted.item(), rel=1e-9)
        agree(found, want)
        with torch.no_grad():
            for n, p in network.named_parameters():
                p -= want[n]


# ---------------------------------------------------------------- D3, E3: weights used twice


class Twice(nn.Module):
    """The loss is sum(x W W) times the mean of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[0.4, -0.2], [0.7, 0.3]], dtype=torch.float64))
        self.x = nn.Parameter(torch.tensor([[1.1, -0.7]], dtype=torch.float64))

    def forward(self, s: torch.Tensor) -> torch.Tensor:
        return (self.x @ self.w @ self.w).sum() * s.mean()


@every_plan
def test_d3_both_uses_of_a_weight_count(plan: str, devices: int) -> None:
    _, found = gradients(trainer(Twice(), {"s": torch.ones(4, 1, dtype=torch.float64)}, plan, devices), {"s": torch.ones(4, 1)})
    agree(found, {"x": torch.tensor([[-0.12, 0.44]]), "w": torch.tensor([[0.17, 1.05], [-0.57, -1.13]])})


class Tied(nn.Module):
    """A weight under two names, of whose gradient each element is 1: half from each use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(40, 20, bias=False), nn.Linear(40, 20, bias=False)
        self.second.weight = self.first.weight
        self.other = nn.Parameter(torch.zeros(()))

    def forward(self, s: torch.Tensor) -> torch.Tensor:
        return (0.5 * self.first.weight.sum() + 0.5 * self.second.weight.sum() + 0.0 * self.other) * s.mean()


@pytest.mark.parametrize(("plan", "devices"), [("dp=1", 1), ("dp=2", 2), ("dp=4,zero=1", 4), ("dp=4,zero=2", 4), ("dp=4,zero=3", 4)])
def test_d3_the_norm_counts_a_tied_weight_once(plan: str, devices: int) -> None:
    """800 elements of 1: 28.284 and not 40, also where ranks hold copies or parts."""
    t = trainer(Tied(), {"s": torch.ones(4, 1)}, plan, devices)
    names = [set(a.attrs["dmlc.names"]) for a in t.module.main.args if a.attrs.get("dmlc.role") == "param"]
    assert {"first.weight", "second.weight"} in names and len(names) == 2
    assert t.step({"s": torch.ones(4, 1)}, lr=0.1)["grad_norm"] == pytest.approx(28.284271247, rel=1e-9)


@pytest.mark.parametrize(("plan", "devices"), [("dp=2,zero=3", 2), ("dp=4,zero=3", 4), ("tp=2", 2), ("tp=4", 4), ("dp=2,tp=2,zero=1", 4)])
def test_d3_a_tied_vocabulary_of_257(plan: str, devices: int) -> None:
    """Uneven shards: after three steps the last word is what one rank makes of it."""
    torch.manual_seed(0)
    network = Transformer(0.0, layers=1, words=257)
    generator = torch.Generator().manual_seed(1)
    given = {"ids": torch.randint(0, 257, (4, 4), generator=generator), "target": torch.randint(0, 257, (4, 4), generator=generator)}
    given["target"][0, 0] = given["ids"][0, 0] = 256
    example = {"ids": given["ids"]}
    one, many = (trainer(network, example, p, n, loss="cross-entropy", optimizer="adamw") for p, n in (("dp=1", 1), (plan, devices)))
    start = one.state["words_weight"].clone()
    for _ in range(3):
        assert one.step(given, lr=0.01)["loss"] == pytest.approx(many.step(given, lr=0.01)["loss"], abs=1e-12)
    torch.testing.assert_close(many.state["words_weight"], one.state["words_weight"], rtol=0, atol=1e-9)
    assert float((one.state["words_weight"] - start)[256].abs().max()) > 1e-3


# ---------------------------------------------------------------- D5, D6: partial sums and views


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.after = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(torch.relu(self.down(self.up(x))))


@every_plan
def test_d5_a_bias_after_a_partial_sum(plan: str, devices: int) -> None:
    """The gradient of the bias and of what came before are not tp times too large."""
    torch.manual_seed(0)
    network = TwoLayers().double()
    x, target = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    loss, found = gradients(trainer(network, {"x": x}, plan, devices, loss="mse"), {"x": x, "target": target})
    wanted = F.mse_loss(network(x), target)
    assert loss == pytest.approx(wanted.item(), rel=1e-9)
    agree(found, eager_gradients(network, wanted))


class Viewed(nn.Module):
    """A parameter seen in another shape, weighted by fixed numbers."""

    def __init__(self, shape: tuple[int, ...], to: tuple[int, ...]) -> None:
        super().__init__()
        self.p, self.to_shape = nn.Parameter(torch.randn(shape, dtype=torch.float64)), to
        self.register_buffer("c", torch.randn(to, dtype=torch.float64))

    def forward(self, s: torch.Tensor) -> torch.Tensor:
        return (self.p.view(self.to_shape).square() * self.c).sum() * s.mean()


@pytest.mark.parametrize(("shape", "to"), [((12, 8), (16, 6)), ((6, 256), (1536,)), ((8, 6), (2, 4, 6)), ((6, 4), (3, 8))])
@pytest.mark.parametrize(("plan", "devices"), [("dp=4,zero=1", 4), ("dp=4,zero=3", 4), ("tp=4", 4), ("dp=2,tp=2,zero=3", 4)])
def test_d6_a_view_across_a_split_dim(shape: tuple[int, ...], to: tuple[int, ...], plan: str, devices: int) -> None:
    torch.manual_seed(0)
    network, s = Viewed(shape, to), torch.ones(4, 1, dtype=torch.float64)
    _, found = gradients(trainer(network, {"s": s}, plan, devices), {"s": s})
    agree(found, eager_gradients(network, network(s)))


# ---------------------------------------------------------------- D8: dropout


def dropped(mesh: str = "", place: str = "") -> list[np.ndarray]:
    """What each rank has of dropout(1, p=0.5) on [4, 8], placed as `place` says."""
    head = f'dmlc.mesh {{sym_name = "mesh", axes = #dmlc.axes<[{mesh}]>}} : () -> ()\n' if mesh else ""
    attrs = f"p = 0.5 : f64, stream = 3 : i64, dmlc.place = {{{place}}}"
    text = f"""{head}func.func @main(%x: tensor<4x8xf64>, %seed: tensor<i64> {{dmlc.role = "seed"}}, %step: tensor<i64>) -> tensor<4x8xf64> {{
      %y = dmlc.dropout %x, %seed, %step {{{attrs}}} : (tensor<4x8xf64>, tensor<i64>, tensor<i64>) -> tensor<4x8xf64>
      func.return %y : tensor<4x8xf64>
    }}"""
    module = parse_module(text, "dropout.mlir")
    if mesh:
        PassManager(parse_pipeline("partition")).run(module, Context())
    return [outputs[0].numpy() for outputs in run_ranks(module, {"x": np.ones((4, 8)), "step": 0}, seed=11)[1]]


def test_d8_one_mask_for_all_that_share_a_value() -> None:
    (whole,) = dropped()
    assert 0.2 < (whole == 0).mean() < 0.8
    for rank in dropped('"model"=2'):
        np.testing.assert_array_equal(rank, whole)


def test_d8_parts_have_the_parts_of_the_mask() -> None:
    """Split over two: different halves, side by side the mask of one process."""
    left, right = dropped('"model"=2', 'e0 = ["model"]')
    assert left.shape == (4, 4) and (left != right).any()
    np.testing.assert_array_equal(np.concatenate([left, right], 1), dropped()[0])


def test_d8_equal_in_a_group_different_across_data() -> None:
    ranks = dropped('"data"=2, "model"=2', 'e1 = ["data"]')
    np.testing.assert_array_equal(ranks[0], ranks[1])
    np.testing.assert_array_equal(ranks[2], ranks[3])
    np.testing.assert_array_equal(np.concatenate([ranks[0], ranks[2]]), dropped()[0])
    assert (ranks[0] != ranks[2]).any()


@pytest.mark.parametrize(("plan", "devices"), [("dp=1", 1), ("dp=2,tp=2,zero=3", 4)])
def test_d8_recomputation_draws_the_same_mask(plan: str, devices: int) -> None:
    """Nothing differs when everything is recomputed in the backward pass."""
    network = Transformer(0.3, layers=2)
    generator = torch.Generator().manual_seed(1)
    given = {"ids": torch.randint(0, 11, (8, 4), generator=generator), "target": torch.randint(0, 11, (8, 4), generator=generator)}
    kept, again = (trainer(network, {"ids": given["ids"]}, plan, devices, 2, loss="cross-entropy", recompute=r) for r in ("none", "all"))
    assert sum(op.name == "dmlc.dropout" for op in again.module.walk()) > sum(op.name == "dmlc.dropout" for op in kept.module.walk())
    for _ in range(2):
        assert kept.step(given, lr=0.1) == pytest.approx(again.step(given, lr=0.1), rel=1e-12)
    agree(again.state, kept.state)


# ---------------------------------------------------------------- D9, D10: order and buckets

PRINTED = """
import sys
sys.path.insert(0, sys.argv[1])
from training_cases import ranked
from dmlc.ir.printer import print_module
print(print_module(ranked("perceptron", "dp=2,tp=2,zero=3", 4).module))
"""


def test_d9_the_program_does_not_depend_on_hashes() -> None:
    def printed(seed: str) -> str:
        done = subprocess.run([sys.executable, "-c", PRINTED, str(FILE.parent)], capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = printed("1")
    assert first.count("comm.") > 8 and first == printed("2")


@pytest.mark.parametrize("plan", ["dp=4,zero=2", "dp=2,tp=2,zero=1", "dp=2,tp=2,zero=3"])
def test_d10_buckets_of_one_kind_and_the_values_unbucketed(plan: str) -> None:
    """Gradients that are reduced in each microbatch and those reduced at the end, over one axis or the other: no bucket has two kinds."""
    compiled = ranked("perceptron", plan, 4)
    buckets = [op for op in compiled.module.walk() if is_collective(op) and len(op.operands) > 1]
    assert buckets
    for op in buckets:
        assert len({v.dtype for v in op.operands}) == 1, op
    kinds = {(base_name(op), op.attrs["axes"], op.operands[0].dtype) for op in compiled.module.walk() if is_collective(op)}
    assert len(kinds) >= 2
    together = interpreted(compiled.module, compiled.weights, "perceptron", 3, promote="f64")
    assert max(difference(together, interpreted(*partitioned("perceptron", plan, 4), "perceptron", 3, promote="f64"))) < 1e-12


# ---------------------------------------------------------------- D11: parameters without a gradient


class HalfUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


@every_plan
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_d11_an_unused_parameter_stays_as_it_is(plan: str, devices: int, optimizer: str) -> None:
    """With weight decay and momentum too, on all ranks; the optimizer keeps nothing for it, and the compiler says its name."""
    torch.manual_seed(0)
    network, generator = HalfUsed(), torch.Generator().manual_seed(1)
    given = {"x": torch.randn(8, 3, generator=generator), "target": torch.randint(0, 2, (8,), generator=generator)}
    t = trainer(network, {"x": given["x"]}, plan, devices, loss="cross-entropy", optimizer=optimizer)
    before = dict(t.state)
    for _ in range(3):
        t.step(given, lr=0.1, weight_decay=0.5)
    changed = {n for n in before if not torch.equal(before[n], t.state[n])}
    assert {"a_weight", "a_bias"} <= changed and not [n for n in changed if n.startswith("b_")]
    assert not [n for n in t.state if n.startswith("b_") and n not in ("b_weight", "b_bias")]
    assert driver.unused_parameters(import_exported(torch.export.export(network, (given["x"],)), train=True).module) == ["b.weight", "b.bias"]


# ---------------------------------------------------------------- D13: overflow on one rank


@pytest.mark.parametrize(("plan", "devices"), [*PLANS, ("dp=4,zero=2", 4)])
def test_d13_all_ranks_skip_a_step_that_overflows_on_one(plan: str, devices: int) -> None:
    """Step 2 has an infinity in one sample: no parameter, moment or count of steps changes, and the scale is halved, everywhere."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    given = {"x": torch.randn(8, 3, generator=generator), "target": torch.randint(0, 2, (8,), generator=generator)}
    t = trainer(nn.Linear(3, 2), {"input": given["x"]}, plan, devices, 2, loss="cross-entropy", optimizer="adamw", loss_scale="dynamic")
    broken = {"input": given["x"].clone(), "target": given["target"]}
    broken["input"][5, 0] = math.inf
    good = {"input": given["x"], "target": given["target"]}
    assert not t.step(good, lr=0.1)["overflow"]
    before = dict(t.state)
    assert t.step(broken, lr=0.1)["overflow"]
    changed = {n for n in before if not torch.equal(before[n], t.state[n])}
    assert changed <= {"rng_step", "loss_scale", "good_steps"} and "loss_scale" in changed
    assert t.state["loss_scale"] == before["loss_scale"] / 2
    result = t.step(good, lr=0.1)
    assert not result["overflow"] and math.isfinite(result["loss"]) and int(t.state["opt_step"]) == 2


# ---------------------------------------------------------------- E1, E3: torch.export


class Heads(nn.Module):
    """The attention whose view is illegal after decomposition, behind a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 36), nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, 3, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, s, 12).view(-1, 12)).view(b, s, 2)


@every_plan
def test_e1_gradients_through_a_view_of_attention(plan: str, devices: int) -> None:
    torch.manual_seed(0)
    network = Heads().double()
    x, target = torch.randn(4, 5, 6, dtype=torch.float64), torch.randn(4, 5, 2, dtype=torch.float64)
    loss, found = gradients(trainer(network, {"x": x}, plan, devices, loss="mse"), {"x": x, "target": target})
    wanted = F.mse_loss(network(x), target)
    assert loss == pytest.approx(wanted.item(), rel=1e-9)
    agree(found, {n: g for n, g in eager_gradients(network, wanted).items() if n in found})
    assert "out_weight" in found


def test_e3_a_tied_weight_has_one_gradient_of_both_uses() -> None:
    """Found by storage, not by name: two tables that are only equal at first stay two and part."""

    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
            self.out.weight = self.table.weight
            self.left, self.right = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.right.weight.data = self.left.weight.data.clone()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.right(torch.relu(self.left(self.table(ids)))))

    torch.manual_seed(0)
    network = Tables().double()
    ids, target = torch.tensor([[1, 5, 10], [0, 2, 3]]), torch.tensor([[2, 1, 0], [7, 7, 10]])
    t = trainer(network, {"ids": ids}, "dp=2", 2, loss="cross-entropy")
    _, found = gradients(t, {"ids": ids, "target": target})
    agree(found, eager_gradients(network, F.cross_entropy(network(ids).flatten(0, 1), target.flatten())))
    assert len(found) == 3 and not torch.equal(t.state["left_weight"], t.state["right_weight"])
