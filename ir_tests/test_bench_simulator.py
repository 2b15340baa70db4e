"""tools/bench_simulator.py: its table follows from what ranks measure, and a small set runs here."""

from __future__ import annotations

import json

import pytest

from dmlc.tools import bench_simulator
from dmlc.tools.bench_simulator import Row, measured, summary, waiting
from dmlc.tools.simulator_cases import CASES, SMALL
from dmlc.tools.virtual_cluster import why_not

REASON = why_not()
OPS = {
    "a": {"kind": "dmlc.matmul"},
    "s": {"kind": "comm.all_reduce_start", "axes": ["data"], "start": True},
    "w": {"kind": "comm.wait"},
    "g": {"kind": "comm.all_gather", "axes": ["data"], "start": False},
}


def test_waiting_is_what_waits_and_synchronous_collectives_take_without_their_copies() -> None:
    step = [["a", 0, 0, 100, 0, 0], ["s", 0, 100, 400, 10, 0], ["a", 1, 110, 200, 0, 0], ["w", 0, 200, 430, 0, 30], ["g", 0, 430, 500, 5, 20]]
    assert waiting(step, OPS) == 200 + 50


def test_the_slower_rank_says_how_long_a_step_is() -> None:
    ranks = [{"plain_ns": [10, 30, 20], "steps": [[["w", 0, 0, 4, 0, 0]]]}, {"plain_ns": [50, 40, 60], "steps": [[["w", 0, 0, 8, 0, 0]]]}]
    step, exposed = measured({"ranks": ranks, "ops": OPS})
    assert step == pytest.approx(50e-9) and exposed == pytest.approx(6e-9)


def test_errors_are_relative_to_the_measured_step() -> None:
    row = Row("gpt", "1", predicted=1.1, measured=1.0, predicted_exposed=0.3, measured_exposed=0.4, noise=0.02)
    assert row.error == pytest.approx(0.1) and row.exposed_error == pytest.approx(-0.1)
    text = summary([row, Row("cnn", "1", 0.8, 1.0, 0.0, 0.0, 0.04)])
    assert "mean error 15.0%" in text and "worst 20.0%" in text and "bias -5.0%" in text and "difference 5.0% of the step" in text and "noise floor 3.0%" in text


def test_the_cases_are_five_models_trained_and_run() -> None:
    assert {c.name.removesuffix(" train") for c in CASES.values()} == {"perceptron", "cnn", "gpt", "bert", "resnet"}
    assert sum(c.trains for c in CASES.values()) == 5 and len(CASES) == 10


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder for compiled programs, which are the same on every network."""
    return tmp_path_factory.mktemp("programs")


@pytest.mark.parametrize("network", ["loopback", pytest.param("5", marks=pytest.mark.skipif(REASON is not None, reason=f"no virtual cluster: {REASON}"))])
def test_a_small_set(network: str, programs, tmp_path, capsys) -> None:
    """Two programs, predicted from profiles that had no part in the runs. No figure is asserted: other work shares these cores."""
    path = tmp_path / "rows.json"
    code = bench_simulator.main(["--networks", network, "--cases", *SMALL, "--rounds", "2", "--steps", "2", "--json", str(path), "--folder", str(programs)])
    said = capsys.readouterr()
    assert code == 0, said.err
    with capsys.disabled():
        print(f"\n{said.out}")
    rows = {r["case"]: r for r in json.loads(path.read_text())}
    assert list(rows) == list(SMALL)
    for row in rows.values():
        assert 0 < row["predicted_exposed"] < row["predicted"] and 0 < row["measured_exposed"] < row["measured"]
    trained = rows[SMALL[0]]
    assert trained["predicted"] > 2 * rows[SMALL[1]]["predicted"], "a program of ten times the work is predicted to take longer"
    assert "mean error" in said.out and "noise floor" in said.out
