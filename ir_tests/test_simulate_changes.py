"""The what-ifs of `dmlc simulate` as laws on random training steps: faster parts are never slower, another device computes differently."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from training_programs import perceptron_step

import dmlc.ops  # noqa: F401
from dmlc.cli._simulate_changes import Scaled, changes_of, with_device, without_overlap
from dmlc.cli._simulate_text import what_if_lines
from dmlc.cli.simulate import parser
from dmlc.cluster import DEVICES, Cluster, Host, Link, device_named
from dmlc.cluster.device import GIGA
from dmlc.cost import CostModel
from dmlc.ir.core import Module
from dmlc.passmanager import Context, PassManager, parse_pipeline
from dmlc.simulate.step import StepReport, simulate_step

LINK = Link("ib", 0, 5 * 10**6, 12 * GIGA)


def step(module: Module, cost: CostModel | None = None) -> StepReport:
    return simulate_step(module, cost or CostModel.of(module))


def programs(seed: int) -> Module:
    """A random training step, scheduled, on random hardware."""
    rng = random.Random(seed)
    module = perceptron_step(
        rng.randint(2, 5),
        rng.choice([64, 512, 2048]),
        rng.choice([8, 256]),
        rng.randint(2, 4),
        rng.random() < 0.5,
        rng.choice([2, 4, 16]),
        rng.choice(["h100", "a100", "l4", "cpu"]),
    )
    PassManager(parse_pipeline("cse,dce,fuse,tensor-fusion,schedule")).run(module, Context())
    return module


@pytest.mark.parametrize("seed", range(12))
def test_laws_of_what_ifs(seed):
    """More bandwidth, less latency and faster computation are never slower, the opposite never faster, and a factor of one changes nothing."""
    module = programs(seed)
    cost = CostModel.of(module)
    before = step(module, cost)
    assert step(module, Scaled(cost, "", Fraction(1))).time == before.time
    for change in ({"speed": Fraction(2)}, {"delay": Fraction(1, 2)}, {"compute": Fraction(3, 2)}):
        faster = step(module, Scaled(cost, "", **change))
        slower = step(module, Scaled(cost, "", **{k: 1 / v for k, v in change.items()}))
        assert faster.time <= before.time <= slower.time, change
        assert faster.computation < before.computation if "compute" in change else faster.computation <= before.computation  # beside traffic it is slower
    apart = step(without_overlap(module), cost)
    assert apart.computation <= before.computation and apart.exposed >= apart.communication > 0


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_another_device_changes_computation(dtype):
    module = perceptron_step(2, 2048, 1024, dtype=dtype)
    cluster = Cluster.of(module)
    times = {name: step(module, CostModel(with_device(cluster, name))).computation for name in ("t4", "a100", "h100", "b200")}
    assert times["t4"] > times["a100"] > times["h100"] > times["b200"]


def test_usual_links_go_with_the_device():
    assert with_device(Cluster.named("h100", 8), "b200").links == Cluster.named("b200").links
    own = Cluster.of_hosts([Host(device_named("a100"), 1, LINK, LINK, repeat=2)])
    assert with_device(own, "h100").links == own.links and with_device(own, "h100").device.name == "h100"
    uneven = Cluster.of_hosts([Host(device_named(n), 1, LINK, LINK) for n in ("a100", "t4")])
    assert [h.device.name for h in with_device(uneven, "l4").hosts] == ["l4", "l4"]


def test_one_change_has_no_line_for_all():
    (change,) = changes_of(parser().parse(["x", "--bandwidth", "network=x4"]))
    assert change.text == "bandwidth of network x4"


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_of_the_catalogue_can_be_simulated(name):
    """On one host, on two, and with all its ranks on one axis; on two hosts communication takes longer."""
    modules = {ranks: perceptron_step(3, 256, 64, ranks=ranks, device=name) for ranks in (1, 4, 16)}
    found = {ranks: step(module) for ranks, module in modules.items()}
    assert 0 < found[1].time <= found[4].time <= found[16].time
    assert 0 == found[1].communication < found[4].communication < found[16].communication
    assert all(report.time >= report.bounds.best for report in found.values())


def test_a_change_that_does_not_fit_says_so():
    before = {"step_ps": 4 * 10**9, "exposed_ps": 0, "computation_ps": 3 * 10**9, "peak_bytes": 20 * GIGA, "limit_bytes": 80 * GIGA, "mfu": 0.3}
    after = {**before, "step_ps": 8 * 10**9, "limit_bytes": 16 * GIGA, "mfu": 0.15}
    said = "\n".join(what_if_lines({"what_if": [{"change": "device t4", "before": before, "after": after}]}))
    assert "device t4: step 4 ms -> 8 ms (+100.0%)" in said and "does not fit: 20 GB of 16 GB" in said and "MFU 30 % -> 15 %" in said
    assert "does not fit" not in "\n".join(what_if_lines({"what_if": [{"change": "x", "before": before, "after": before}]}))
