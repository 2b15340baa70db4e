"""Published steps: errors as they are reported, and a few measured GPT steps on A100 beside the analytic program with the compiler's prices."""

from __future__ import annotations

import pytest

from dmlc.cluster import Cluster
from dmlc.tools import published_steps, validate_costs
from dmlc.tools.gpt_steps import Gpt, Knobs, Step

# GPUs, global batch, microbatch, hidden size, heads, layers, sequence, tensor, data and pipeline parallelism, milliseconds: Megatron-DeepSpeed on one node
# of A100 (a sample of the table published with vTrain, Bang et al., MICRO 2024).
ROWS = (
    (8, 8, 1, 1024, 16, 20, 1024, 8, 1, 1, 815.8),
    (8, 64, 8, 1024, 16, 16, 1024, 2, 4, 1, 208.4),
    (2, 16, 8, 1024, 16, 20, 1024, 2, 1, 1, 253.0),
    (8, 16, 1, 2048, 16, 12, 1024, 8, 1, 1, 961.6),
    (8, 8, 2, 2048, 16, 20, 1024, 4, 2, 1, 128.2),
    (4, 8, 4, 1024, 16, 12, 1024, 4, 1, 1, 106.2),
    (2, 16, 8, 2048, 16, 12, 1024, 2, 1, 1, 289.7),
    (2, 2, 1, 1024, 16, 16, 1024, 2, 1, 1, 116.4),
    (8, 2, 1, 2048, 16, 20, 1024, 8, 1, 1, 199.6),
    (8, 16, 1, 1024, 16, 12, 1024, 1, 8, 1, 93.7),
    (2, 16, 2, 1024, 16, 16, 1024, 1, 2, 1, 253.2),
    (8, 32, 1, 1024, 16, 12, 1024, 1, 8, 1, 179.3),
)


def test_errors_are_what_they_are_called():
    found = validate_costs.Errors.of([(1.1, 1.0), (1.8, 2.0), (3.0, 3.0), (4.0, 4.0)])
    assert (found.count, found.worst, found.bias) == (4, pytest.approx(0.1), pytest.approx(0.0)) and found.mean == pytest.approx(0.05)
    assert validate_costs.spearman([(1, 10), (2, 20), (3, 30)]) == 1 and validate_costs.spearman([(1, 30), (2, 20), (3, 10)]) == -1
    assert validate_costs.spearman([(1, 1), (1, 2), (2, 3)]) == pytest.approx(0.866, abs=1e-3)


def test_measured_steps():
    """With the factors that 37 rows of that table calibrated (Megatron-DeepSpeed's host takes ten times what issuing an op from a plain program takes)."""
    steps = [(Step.of(g, Cluster.named("a100", g.tp * g.dp)), t) for g, t in (published_steps.megatron(list(map(str, r)), True) for r in ROWS)]
    knobs = Knobs(compute=0.94, memory=1.29, host=9.83, network=2.08, step=88.9)
    found = validate_costs.Errors.of((step.seconds(knobs), measured) for step, measured in steps)
    assert found.mean < 0.17 and found.spearman > 0.9  # over all 324 rows that calibrated nothing: 9.3 % and 0.98


def test_calibration_explains_times_that_factors_made():
    steps = [Step.of(gpt(layers=n, micro=m), Cluster.named("a100", 8)) for n in (2, 4, 8) for m in (1, 2, 4)]
    truth = Knobs(compute=1.3, memory=0.8)
    found = published_steps.calibrated([(s, s.seconds(truth)) for s in steps], Knobs(), ("compute", "memory"))
    assert all(s.seconds(found) == pytest.approx(s.seconds(truth), rel=0.03) for s in steps)
    assert any(s.seconds(Knobs()) < 0.93 * s.seconds(truth) for s in steps)


def gpt(**changes) -> Gpt:
    usual = {"layers": 4, "hidden": 1024, "heads": 16, "kv": 16, "inner": 4096, "vocabulary": 32000, "sequence": 1024, "batch": 16, "micro": 2, "tp": 1, "dp": 8}
    return Gpt(**{**usual, **changes})


def seconds(g: Gpt, device: str = "a100", **knobs: float) -> float:
    return Step.of(g, Cluster.named(device, g.tp * g.dp)).seconds(Knobs(**knobs))


def test_steps_follow_what_is_asked_for():
    plain = seconds(gpt())
    assert seconds(gpt(layers=8)) > 1.5 * plain and seconds(gpt(), "h100") < plain
    assert plain < seconds(gpt(recompute=True)) < 1.5 * plain
    assert seconds(gpt(batch=32)) > 1.5 * plain - 0.01
    assert seconds(gpt(micro=1, batch=8), host=20.0) > 2 * seconds(gpt(micro=1, batch=8)), "a small microbatch waits for the host"
    assert seconds(gpt(tp=8, dp=1, batch=2)) < seconds(gpt(dp=1, batch=2)), "eight ranks are faster than one"
    assert seconds(gpt(sharded=True, hidden=4096, inner=16384, heads=32, kv=32), network=30.0) > 2 * seconds(gpt(sharded=True, hidden=4096, inner=16384, heads=32, kv=32))


def test_tables_are_reported(tmp_path, capsys):
    (tmp_path / "vtrain").mkdir()
    lines = ["size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)", "1048576,262144,float,92790,19.78,92150,19.91", "105906176,26476544,float,935000,0,0,0"]
    (tmp_path / "vtrain" / "a100_AR_GPU8_LUT.csv").write_text("\n".join(lines))
    assert validate_costs.main([str(tmp_path)]) in (0, 1)
    printed = capsys.readouterr().out
    assert "all-reduce, 8 x a100" in printed and "below 16 MiB" in printed and "at most 2 %" in printed
