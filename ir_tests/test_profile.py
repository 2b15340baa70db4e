"""Profiles of real runs: each op once a run on its row, the same names as a simulated trace, what they add to measured times, the line on the step."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dmlc.ops  # noqa: F401
from dmlc.cli._profiles import load_program
from dmlc.cli.main import guarded
from dmlc.cluster import Cluster
from dmlc.cost import CostModel, database
from dmlc.cost.signature import op_key
from dmlc.ir.core import Module, Op
from dmlc.measure.fold import measurements_of
from dmlc.simulate import trace
from dmlc.simulate.compare import compare, comparison_lines
from dmlc.simulate.rows import is_shown, name_of, row_of
from dmlc.simulate.step import simulate_step
from dmlc.tools.validate_trace import check, differences

pytestmark = pytest.mark.usefixtures("warm")

STEPS = 2
DMLC = ("-m", "dmlc")
LINE = re.compile(r"^step: predicted ([\d.]+) ms \(± \d+ %\), measured ([\d.]+) ms \(median of \d+\), bound ([\d.]+) ms(; .*)?$", re.M)


@dataclass(frozen=True)
class Ran:
    folder: Path
    module: Module
    profile: dict[str, Any]
    trace: Path
    measured: Path
    said: str


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Iterator[Ran]:
    """A small perceptron's training step in two microbatches on two ranks, run with --profile."""
    place = tmp_path_factory.mktemp("profile")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMLC_MEASURED", str(place / "store"))
        out = place / "out"
        words = ["--devices", "2", "--target", "cpu", "--train", "--loss", "cross-entropy", "--plan", "dp=2", "--microbatches", "2", "--no-kernel-report"]
        assert guarded(["compile", "dmlc.models.mlp:tiny", *words, "-o", str(out)]) == 0
        said = said_by([*DMLC, "run", str(out), "--profile", str(STEPS), "--trace", str(place / "trace.json"), "--measured", str(place / "db")], place)
        profile = json.loads((out / "profile.json").read_text())
        yield Ran(out, load_program(out), profile, place / "trace.json", place / "db", said)


def said_by(words: list[str], place: Path, fails: bool = False) -> str:
    """What a command and the processes that it starts print; on standard error where it `fails`."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=place)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def simulated(module: Module):
    return simulate_step(module, CostModel.of(module))


# ---------------------------------------------------------------- the profile


def runs_of(op: Op) -> int:
    """How often an op runs in a step: the product of the counts of the loops around it."""
    count, parent = 1, op.parent
    while parent is not None and parent.name != "func.func":
        count *= parent.attrs.get("count", 1)
        parent = parent.parent
    return count


def test_every_op_of_the_program_is_timed_as_often_as_it_runs_on_its_row(ran):
    ops = {op.id: op for op in ran.module.main.ops() if is_shown(op)}
    wanted = Counter({(row_of(op), id_, name_of(op)): runs_of(op) for id_, op in ops.items()})
    assert {row for row, _, _ in wanted} == {"compute", "comm data"} and max(wanted.values()) > 1
    assert [r["rank"] for r in ran.profile["ranks"]] == [0, 1] and not ran.profile["alone"]
    for record in ran.profile["ranks"]:
        assert len(record["steps"]) == len(record["plain_ns"]) == len(record["timed_ns"]) == STEPS
        for step in record["steps"]:
            said = [ran.profile["ops"][e[0]] for e in step]
            assert Counter((s["row"], s["op"], s["name"]) for s in said if s["shown"]) == wanted
            for id_ in ops:
                assert sorted(e[1] for e in step if e[0] == id_) == list(range(runs_of(ops[id_])))


def test_times_of_a_row_follow_each_other_within_the_step(ran):
    for record in ran.profile["ranks"]:
        for step, whole in zip(record["steps"], record["timed_ns"]):
            for row in ("compute", "comm data"):
                spans = [(e[2], e[3]) for e in step if ran.profile["ops"][e[0]]["row"] == row]
                assert spans and all(a <= b for a, b in spans) and all(b <= c for (_, b), (c, _) in zip(spans, spans[1:])), row
            assert 0 < max(e[3] for e in step if ran.profile["ops"][e[0]]["row"] == "compute") <= whole


def test_the_traces_of_the_real_and_the_simulated_step_have_the_same_names_on_the_same_rows(ran, tmp_path):
    documents = [trace.step_document(simulated(ran.module)), json.loads(ran.trace.read_text())]
    trace.save(documents[0], tmp_path / "simulated.json")
    assert check(str(tmp_path / "simulated.json")) == [] and check(str(ran.trace)) == []
    ranks = {e["pid"] for e in documents[1]["traceEvents"] if "dmlc.op" in e.get("args", {})}
    assert ranks == {0, 1} and documents[1]["dmlc"] == {"kind": "measured"}
    documents[1]["traceEvents"] = [e for e in documents[1]["traceEvents"] if e["pid"] in (0, 1_000_000)]
    assert list(differences(*documents)) == []
    documents[1]["traceEvents"] = [e for e in documents[1]["traceEvents"] if e["name"] != "comm.wait"]
    assert any("comm.wait" in text for text in differences(*documents)), "the comparison sees what is missing"


def test_a_wait_is_bound_to_its_collective_and_ends_after_it(ran):
    for step in ran.profile["ranks"][0]["steps"]:
        ends = {(e[0], e[1]): e[3] for e in step}
        waits = [(e, ran.profile["ops"][e[0]]["of"]) for e in step if ran.profile["ops"][e[0]]["kind"] == "comm.wait"]
        assert waits and all(ends[of, e[1]] <= e[3] for e, of in waits)


# ---------------------------------------------------------------- measured times


def test_a_profile_adds_its_ops_to_a_database(ran):
    found = database.read(ran.measured)
    again = measurements_of(ran.profile, ran.module)
    assert found.ops == again.ops and f"{len(found.ops)} different ops" in ran.said
    products = [op for op in ran.module.main.ops() if op.name in ("dmlc.linear", "dmlc.contract", "dmlc.matmul")]
    starts = [op for op in ran.module.main.ops() if op.name.endswith("_start")]
    assert products and starts and all(found.op(op) is not None or op_key(op) not in found.ops for op in products)
    assert any(found.op(op) for op in products) and all(found.before(op, "loopback") > 0 for op in starts)
    assert found.machine["device"] == "cpu" and found.machine["threads"] == ran.profile["ranks"][0]["machine"]["threads"]


PROGRAM = """
builtin.module attributes {dmlc.spmd} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @main(%x: tensor<4xf32>, %y: tensor<9xf32>) -> (tensor<4xf32>, tensor<9xf32>, tensor<4xf32>) {
    %f = comm.all_reduce_start %x {axes = ["data"], combiner = "sum", dmlc.id = "start"} : (tensor<4xf32>) -> !comm.future<tensor<4xf32>>
    %0 = dmlc.exp %y {dmlc.id = "beside"} : (tensor<9xf32>) -> tensor<9xf32>
    %1 = comm.wait %f {dmlc.id = "wait"} : (!comm.future<tensor<4xf32>>) -> tensor<4xf32>
    %2 = dmlc.sin %1 {dmlc.id = "after"} : (tensor<4xf32>) -> tensor<4xf32>
    %3 = comm.all_reduce %2 {axes = ["data"], combiner = "sum", dmlc.id = "sync"} : (tensor<4xf32>) -> tensor<4xf32>
    func.return %1, %0, %3 : tensor<4xf32>, tensor<9xf32>, tensor<4xf32>
  }
}
"""


def invented(module: Module, steps: list[list[list[list]]], alone: bool = False) -> dict[str, Any]:
    """A profile: of each rank the steps' events."""
    from dmlc.codegen.lines import line_entry

    ops = {op.id: line_entry(op) for op in module.main.ops() if op is not module.main.return_op}
    machine = {"device": "cpu", "name": "a processor", "threads": "1", "torch": "2"}
    ranks = [{"rank": i, "machine": machine, "plain_ns": [900] * len(s), "timed_ns": [1000] * len(s), "steps": s} for i, s in enumerate(steps)]
    return {"version": 1, "program": "", "mesh": {"data": 2}, "alone": alone, "ops": ops, "ranks": ranks}


def invented_module() -> Module:
    from dmlc.ir.parser import parse_module

    return parse_module(PROGRAM)


STEP = [["start", 0, 40, 300, 40, 0], ["beside", 0, 45, 145, 0, 0], ["wait", 0, 145, 320, 0, 20], ["after", 0, 320, 390, 0, 0], ["sync", 0, 400, 900, 10, 30]]
OTHER = [["start", 0, 45, 300, 45, 0], ["beside", 0, 50, 140, 0, 0], ["wait", 0, 140, 325, 0, 25], ["after", 0, 325, 405, 0, 0], ["sync", 0, 420, 900, 12, 34]]


def test_only_what_ran_alone_is_taken():
    module = invented_module()
    found = measurements_of(invented(module, [[STEP], [OTHER]]), module)
    ops = {op.id: op for op in module.main.ops()}
    assert found.op(ops["beside"]) is None, "a collective ran beside it"
    assert found.op(ops["after"]) == 75_000
    assert (found.before(ops["start"], "loopback"), found.after(ops["start"])) == (42_500, 22_500)
    assert found.ops[f"call {op_key(ops['sync'])}"] == 11_000 and found.ops[f"unpack {op_key(ops['sync'])}"] == 32_000
    assert found.collectives == {("all_reduce", 2, "loopback"): ((16, 480_000),)} or list(found.collectives.values()) == [((16, 480_000),)], "the later rank's"
    assert measurements_of(invented(module, [[STEP]], alone=True), module).collectives == {}


def test_a_comparison_adds_up():
    module = invented_module()
    report = simulated(module)
    found = compare(report, invented(module, [[STEP, STEP], [OTHER, OTHER]]))
    for side in (0, 1):
        assert sum(both[side] for both in found.parts.values()) == found.step[side]
    assert found.step == (report.time, 1_000_000) and found.plain == 900_000 and found.error == report.time / 900_000 - 1
    assert found.exposed == (report.exposed, (175 - 20 + 500) * 1000)
    assert found.parts["copies around collectives"] == (0, (40 + 20 + 10 + 30) * 1000)
    assert found.parts["pointwise"][1] == 170_000 and found.streams["all_reduce"] == (report.communication, 760_000)
    assert {(line.op, line.predicted is not None, line.measured is not None) for line in found.lines} == {
        (id_, True, True) for id_ in ("start", "beside", "wait", "after", "sync")
    }
    text = "\n".join(comparison_lines(found))
    assert "beside" in text and "only on one side" not in text
    less = compare(report, invented(module, [[STEP[:3]]]))
    assert {line.op for line in less.unknown} == {"after", "sync"} and "only on one side" in "\n".join(comparison_lines(less))


def test_the_real_comparison_adds_up_and_knows_every_op(ran, capsys):
    report = simulated(ran.module)
    for rank in (0, 1):
        found = compare(report, ran.profile, rank)
        assert found.unknown == () and {line.op for line in found.lines} == {op.id for op in ran.module.main.ops() if is_shown(op)}
        for side in (0, 1):
            assert sum(both[side] for both in found.parts.values()) == found.step[side]
        assert found.exposed[1] <= found.step[1] and found.step[0] == report.time
    assert guarded(["simulate", str(ran.folder), "--compare"]) == 0
    said = capsys.readouterr().out
    assert "exposed communication" in said and "farthest off" in said
    (ran.folder / "model.py").write_text((ran.folder / "model.py").read_text() + "\n")
    assert guarded(["simulate", str(ran.folder), "--compare"]) == 1 and "of another program" in capsys.readouterr().err
    (ran.folder / "model.py").write_text((ran.folder / "model.py").read_text().removesuffix("\n"))


# ---------------------------------------------------------------- the line after a run


def test_a_run_says_what_was_predicted_measured_and_the_bound(ran):
    match = LINE.search(ran.said)
    assert match, ran.said
    plan = json.loads((ran.folder / "plan.json").read_text())["predicted"]
    assert float(match[1]) == pytest.approx(plan["step_ps"] / 1e9, rel=1e-3) and float(match[3]) == pytest.approx(plan["bound_ps"] / 1e9, rel=1e-3)
    assert plan["target"] == "cpu" and match[4] is None and float(match[3]) <= float(match[1])
    seconds = sorted(ran.profile["ranks"][0]["plain_ns"])
    assert float(match[2]) == pytest.approx((seconds[0] + seconds[1]) / 2 / 1e6, rel=1e-2)


def test_measured_times_change_the_prediction(ran, tmp_path):
    said = said_by([*DMLC, "run", str(ran.folder), "--steps", "5", "--measured", str(ran.measured)], tmp_path)
    plan = json.loads((ran.folder / "plan.json").read_text())["predicted"]
    match = LINE.search(said)
    assert match and float(match[1]) != pytest.approx(plan["step_ps"] / 1e9, rel=1e-3)


def test_the_folder_alone_says_the_same(ran, tmp_path):
    match = LINE.search(said_by([str(ran.folder / "launch.py"), "--steps", "5"], tmp_path))
    plan = json.loads((ran.folder / "plan.json").read_text())["predicted"]
    assert match and float(match[1]) == pytest.approx(plan["step_ps"] / 1e9, rel=1e-3)


def test_a_run_too_short_for_its_profile_says_so_and_adds_nothing(ran, tmp_path):
    said = said_by([*DMLC, "run", str(ran.folder), "--steps", "5", "--profile", "4", "--measured", str(tmp_path / "db")], tmp_path, fails=True)
    assert "the run wrote no profile" in said and not (tmp_path / "db").exists()


def test_another_batch_than_compiled_is_not_predicted(ran, tmp_path):
    said = said_by([*DMLC, "run", str(ran.folder), "--steps", "5", "--microbatches", "3"], tmp_path)
    assert re.search(r"^step: measured [\d.]+ ms .*; no prediction: it ran with another batch", said, re.M) and LINE.search(said) is None


def test_a_plan_for_another_device_is_predicted_where_it_ran(tmp_path):
    out = tmp_path / "out"
    assert guarded(["compile", "dmlc.models.mlp:tiny", "--devices", "1", "--target", "h100", "--no-kernel-report", "-o", str(out)]) == 0
    said = said_by([*DMLC, "run", str(out), "--device", "cpu", "--profile", "1"], tmp_path)
    assert "the plan is for h100; the profile, and so the prediction, for cpu" in said_by([*DMLC, "simulate", str(out), "--compare"], tmp_path)
    assert re.search(r"^step: measured [\d.]+ ms \(median of 5\)$", said_by([str(out / "launch.py"), "--device", "cpu"], tmp_path), re.M)
    match = LINE.search(said)
    assert match and "the plan is for h100, the prediction for cpu" in match[4]
    module, planned = load_program(out), json.loads((out / "plan.json").read_text())["predicted"]["step_ps"]
    module.attrs["dmlc.cluster"] = Cluster.named("cpu", 1).to_attr()
    assert float(match[1]) == pytest.approx(simulated(module).time / 1e9, rel=1e-3) != pytest.approx(planned / 1e9, rel=1e-3)


# ---------------------------------------------------------------- dmlc profile


def test_profile_measures_this_machine_in_seconds(tmp_path, capfd):
    path = tmp_path / "db"
    assert guarded(["profile", "--quick", "--ranks", "2", "--threads", "1", "-o", str(path)]) == 0
    found, said = database.read(path), capfd.readouterr().out
    assert f"use it with --measured {path}" in said and "repeats differ by ±" in said
    for kind in ("dispatch", "pointwise", "reduction", "copy", "matmul", "conv", "conv_input_grad", "conv_weight_grad", "attention", "indexed"):
        assert found.samples(kind, "f32") and all(ps > 0 for _, ps in found.samples(kind, "f32")), kind
    sizes = [f for f, _ in found.samples("pointwise", "f32")]
    assert found.samples("pointwise", "f32")[0][1] < found.samples("pointwise", "f32")[-1][1] and sizes == sorted(sizes)
    kinds = {kind for kind, ranks, link in found.collectives if (ranks, link) == (2, "loopback")}
    assert kinds == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"}
    assert 1 <= (found.core("loopback") or 0) <= 100 and all(1 <= percent <= 100 for percent in found.overlaps["loopback"])


def test_profile_times_the_ops_of_a_folder_without_a_cluster(ran, tmp_path, capsys):
    path = tmp_path / "db"
    assert guarded(["profile", str(ran.folder), "--quick", "-o", str(path)]) == 0
    assert f"use it with --measured {path}" in capsys.readouterr().out
    found = database.read(path)
    computing = {op_key(op) for op in ran.module.main.ops() if is_shown(op) and row_of(op) == "compute" and op.name != "comm.wait"}
    assert computing <= set(found.ops), "every op, also those that collectives run beside"
    assert found.collectives == {}, "its collectives are copies"


def test_profile_refuses_what_is_no_folder(tmp_path, capsys):
    assert guarded(["profile", str(tmp_path)]) == 1 and "not a compiled folder" in capsys.readouterr().err
    assert guarded(["profile", "--ranks", "0"]) == 2
