"""tools/bench_joint.py: what it says follows from the times; a small model goes the whole way."""

from __future__ import annotations

import json

import pytest

from dmlc.tools import bench_joint
from dmlc.tools.virtual_cluster import why_not

REASON = why_not()


def found(**measured: list[float]) -> dict:
    predicted = {"none": 1.4, "buckets": 1.2, "joint": 1.0}
    lines = {name: {"predicted": p, "exposed": p - 0.9, "compile": 2.0} for name, p in predicted.items()}
    return {"lines": lines, "buckets": {"1": 1.3, "25": 1.1}, "bucket": 25, "times": {"ddp": [1.1, 1.1, 1.1], **measured}}


def test_what_differs_less_than_its_range_has_no_order():
    """joint is 0.2 s faster than none in every pair; buckets' 0.05 s over none are lost in a range of 0.4 s."""
    times = found(none=[1.2, 1.2, 1.2], buckets=[1.25, 1.05, 1.45], joint=[1.0, 1.0, 1.0])
    assert bench_joint.differing(times) == [("joint", "none"), ("joint", "buckets")]
    assert bench_joint.misordered(times) == []
    text = bench_joint.report("gpt", 1, times)
    assert "the order predicted is the order measured (2 pairs of lines differ by more than the noise)" in text
    assert "joint / DDP 0.909 (median of pairs; 0.909 to 0.909)" in text and "DDP, 25 MB" in text


def test_a_wrong_order_is_named():
    times = found(none=[1.0, 1.0, 1.0], buckets=[1.2, 1.2, 1.2], joint=[1.1, 1.1, 1.1])
    assert bench_joint.misordered(times) == [("none", "buckets"), ("none", "joint"), ("joint", "buckets")][:2]
    assert "measured in another order than predicted: none before buckets, none before joint" in bench_joint.report("gpt", 1, times)


def test_wrong_use_and_missing_hosts(monkeypatch, capsys):
    assert bench_joint.main(["--lines", "none"]) == 2
    monkeypatch.setattr(bench_joint, "why_not", lambda: "network namespaces need root")
    assert bench_joint.main([]) == 1
    assert "no two hosts to measure on: network namespaces need root" in capsys.readouterr().err


@pytest.mark.timeout(900)
@pytest.mark.skipif(REASON is not None, reason=f"no virtual cluster: {REASON}")
def test_small_models_go_the_whole_way(tmp_path, capsys, monkeypatch):
    """All programs and DDP take the same first steps."""
    monkeypatch.setenv("DMLC_BENCH_SIZE", "small")
    path = tmp_path / "figures.json"
    size = ["--size", "small", "--models", "resnet", "--rates", "5", "--pairs", "2", "--steps", "1", "--buckets", "25", "--lines", "none", "joint"]
    assert bench_joint.main([*size, "--json", str(path)]) == 0, capsys.readouterr().err
    figures = json.loads(path.read_text())["resnet 5"]
    assert figures["losses"]["none"] == pytest.approx(figures["losses"]["ddp"], rel=1e-4)
    assert figures["losses"]["joint"] == pytest.approx(figures["losses"]["ddp"], rel=1e-4)
    assert figures["lines"]["joint"]["predicted"] <= figures["lines"]["none"]["predicted"]
    assert "joint / DDP" in capsys.readouterr().out
