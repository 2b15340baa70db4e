"""tools/bench_training.py: what it measures it measures for both sides, and its figures follow from the times."""

from __future__ import annotations

import json

import pytest

from dmlc.tools import bench_training
from dmlc.tools.virtual_cluster import why_not

pytestmark = pytest.mark.usefixtures("warm")

REASON = why_not()

FOUND = {
    "parameters": 25_000_000,
    "exchange": 0.9,
    "buckets": {"1": 1.4, "25": 1.2},
    "bucket": 25,
    "losses": {"ddp": [3.0, 2.5], "dmlc": [3.0, 2.5]},
    "times": {"ddp": [1.2, 1.3, 1.25], "ddp compute": [0.7, 0.7, 0.7], "dmlc": [1.2, 1.1, 1.0], "dmlc compute": [0.9, 0.9, 0.9]},
}


def test_figures_follow_from_the_times():
    """25 million parameters are 100 MB; each of two ranks sends all of them, 0.8 s at 1 Gbit/s and 0.16 s at 5."""
    lines = bench_training.report(1, FOUND).splitlines()
    assert "sends 100 MB a step: 0.800 s" in lines[0] and "25 MB 1.200 s" in lines[2]
    ddp, dmlc = (next(line for line in lines if line.strip().startswith(name)).split() for name in ("DDP, 25", "dmlc "))
    assert ddp[3:] == ["1.250", "1.200", "-", "1.300", "0.700", "0.800", "1.56x"]
    assert dmlc[1:] == ["1.100", "1.000", "-", "1.200", "0.900", "0.900", "1.22x"]
    assert "dmlc / DDP 0.846 (median of pairs; 0.800 to 1.000)" in lines[-1]
    assert "0.160 s at that speed" in bench_training.report(5, FOUND)


def test_without_two_hosts_it_says_why(monkeypatch, capsys):
    monkeypatch.setattr(bench_training, "why_not", lambda: "network namespaces need root")
    assert bench_training.main([]) == 1
    assert "no two hosts to measure on: network namespaces need root" in capsys.readouterr().err


@pytest.mark.skipif(REASON is not None, reason=f"no virtual cluster: {REASON}")
def test_both_sides_take_the_same_steps(tmp_path, capsys, monkeypatch):
    """A small model: the emitted program's losses are DDP's before and after the first update."""
    monkeypatch.setenv("DMLC_BENCH_SIZE", "small")
    path = tmp_path / "figures.json"
    code = bench_training.main(["--size", "small", "--rates", "5", "--pairs", "2", "--steps", "2", "--buckets", "25", "--json", str(path)])
    said = capsys.readouterr()
    assert code == 0, said.err
    found = json.loads(path.read_text())["5.0"]
    assert {len(values) for values in found["times"].values()} == {2} and len(found["times"]) == 4
    assert found["losses"]["dmlc"] == pytest.approx(found["losses"]["ddp"], rel=1e-5)
    assert found["losses"]["dmlc"][1] < found["losses"]["dmlc"][0]
    assert "dmlc / DDP" in said.out
