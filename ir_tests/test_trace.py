"""trace.json: what is in it, and that the validator refuses traces that are broken in one place each."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from timed_programs import compute, loop, program, start, stated, sync, wait
from training_programs import perceptron_step

from dmlc.cost import CostModel
from dmlc.passmanager import Context, PassManager, parse_pipeline
from dmlc.simulate import trace
from dmlc.simulate.step import StepReport, simulate_step
from dmlc.tools import validate_trace
from dmlc.tools.trace_checks import problems

Document = dict[str, Any]


@functools.cache
def report(device: str = "h100", late: bool = False, count: int = 4, peel: bool = True) -> StepReport:
    module = perceptron_step(width=256, rows=64, device=device, count=count, peel=peel)
    PassManager(parse_pipeline("cse,dce,schedule")).run(module, Context())
    return simulate_step(module, CostModel.of(module), {1: 1.5} if late else None)


def written(tmp_path: Path, *args: Any, **kwargs: Any) -> list[Path]:
    return trace.write(report(*args, **kwargs), tmp_path / "trace.json")


def events(document: Document, **wanted: Any) -> list[Document]:
    return [e for e in document["traceEvents"] if all(e.get(k) == v for k, v in wanted.items())]


# ---------------------------------------------------------------- what is written


@pytest.mark.parametrize("device", ["h100", "cpu"])
@pytest.mark.parametrize("late", [False, True])
def test_traces_are_valid(tmp_path: Path, device: str, late: bool) -> None:
    """For PyTorch's validator too, where there is one."""
    files = written(tmp_path, device, late)
    assert [f.name for f in files] == (["trace.json", "trace.rank0.json", "trace.rank1.json"] if late else ["trace.json"])
    for file in files:
        assert validate_trace.check(str(file)) == []


def test_every_shown_op_is_an_event_with_its_price(tmp_path: Path) -> None:
    document = validate_trace.load(written(tmp_path)[0])
    found, simulated = events(document, cat="kernel"), report().events
    assert [(e["name"], e["args"]["dmlc.op"]) for e in found] == [(e.name, e.op) for e in simulated]
    assert [round(e["ts"] * 1000) for e in found] == [e.begin // 1000 for e in simulated]
    assert [round((e["ts"] + e["dur"]) * 1000) for e in found] == [e.end // 1000 for e in simulated]
    product = next(e for e in found if e["name"] == "dmlc.matmul")
    assert product["args"]["dmlc.flops"] == 2 * 64 * 256 * 256 and product["args"]["dmlc.cost_source"] in ("model", "table", "measured")
    assert (product["args"]["device"], product["args"]["stream"], product["args"]["dmlc.kind"]) == (0, 7, "matmul")


def test_rows_are_named_by_stream(tmp_path: Path) -> None:
    document = validate_trace.load(written(tmp_path)[0])
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events(document, name="thread_name")}
    assert rows == {(0, 7): "compute", (0, 20): "comm data", (1_000_000, 1): "host"}
    assert {e["args"]["labels"] for e in events(document, name="process_labels")} == {"GPU 0", "CPU"}


def test_collectives_carry_what_nccl_records(tmp_path: Path) -> None:
    document = validate_trace.load(written(tmp_path, late=True)[2])
    found = [e for e in events(document, cat="kernel") if "Collective name" in e["args"]]
    assert len(found) == 5  # of four weights and the loss
    wanted = {"Collective name": "all_reduce", "dtype": "Float", "In msg nelems": 256 * 256, "Out msg nelems": 256 * 256, "Group size": 2}
    wanted |= {"Process Group Ranks": [0, 1], "Rank": 1, "Process Group Description": "data", "Process Group Name": "1"}
    assert found[0]["args"].items() >= wanted.items()
    assert document["distributedInfo"] == {
        "backend": "nccl",
        "rank": 1,
        "world_size": 2,
        "pg_count": 1,
        "pg_config": [{"pg_name": "1", "pg_desc": "data", "backend_config": "nccl", "pg_size": 2, "ranks": [0, 1]}],
    }
    assert {e["args"]["correlation"] // 10_000_000 for e in found} == {1}  # apart from those of other ranks


def test_the_host_launches_before_the_device_runs(tmp_path: Path) -> None:
    document = validate_trace.load(written(tmp_path)[0])
    launches = {e["args"]["correlation"]: e for e in events(document, name="cudaLaunchKernel")}
    kernels = [e for e in events(document, cat="kernel") if e["args"]["dmlc.kind"] != "wait"]
    assert len(launches) == len(kernels)
    assert all(launches[e["args"]["correlation"]]["ts"] + launches[e["args"]["correlation"]]["dur"] <= e["ts"] + 1e-9 for e in kernels)
    assert len(events(document, name="record_param_comms")) == 5
    cpu = validate_trace.load(written(tmp_path, "cpu")[0])
    assert not events(cpu, cat="cuda_runtime") and not events(cpu, cat="kernel")
    assert {e["cat"] for e in cpu["traceEvents"] if "dmlc.op" in e.get("args", {})} == {"cpu_op"}


def test_waits_have_arrows_from_their_collectives() -> None:
    """Also a wait that begins before its collective does, behind another one in the queue."""
    lines = [start("s", 50_000), start("t", 40_000), compute("a", 10_000), wait("t"), wait("s"), sync("u", 5_000)]
    document = trace.step_document(simulate_step(program(lines), stated()))
    assert list(problems(document)) == []
    ids = {e["args"]["dmlc.op"]: e["args"]["correlation"] for e in document["traceEvents"] if "dmlc.op" in e.get("args", {})}
    assert [(e["id"], e["ts"]) for e in events(document, ph="f", cat="comm")] == [(ids["t"], 0.05), (ids["s"], 0.09)]


def test_counters_of_memory_and_exposed_communication() -> None:
    found = report("cpu")
    document = trace.step_document(found)
    memory = [sum(e["args"].values()) for e in events(document, ph="C", name="memory")]
    assert max(memory) == found.peak
    level, since, exposed = 0, 0, 0
    for event in events(document, ph="C", name="exposed communication"):
        exposed += level * (round(event["ts"] * 1000) - since)
        level, since = event["args"]["exposed"], round(event["ts"] * 1000)
    assert found.exposed == sum(end - begin for begin, end in found.run.exposed) > 0
    assert abs(exposed - found.exposed // 1000) <= len(found.run.exposed) and level == 0


def test_iterations_that_are_only_counted_are_written_out() -> None:
    body = [compute("a", 10_000, host=2_000), start("s", 5_000, host=2_000), compute("b", 9_000), wait("s")]
    looped = simulate_step(program([loop("l", 30, body)]), stated())
    assert looped.run.repeats
    document = trace.step_document(looped)
    assert list(problems(document)) == []
    assert [len([e for e in events(document, cat="kernel") if e["args"]["dmlc.op"] == op]) for op in ("a", "s", "b", "s_wait")] == [30] * 4
    assert len(events(document, ph="s", cat="comm")) == 30


def test_a_trace_of_each_rank_and_one_of_all(tmp_path: Path) -> None:
    both, first, second = map(validate_trace.load, written(tmp_path, late=True))
    assert both["traceEvents"] == [*first["traceEvents"], *second["traceEvents"]]
    assert len(both["deviceProperties"]) == 2


def test_errors_of_prices_are_told(tmp_path: Path) -> None:
    (file,) = trace.write(report(), tmp_path / "trace.json", {"model": 12.5, "table": 2.0})
    kernels = [e["args"] for e in events(validate_trace.load(file), cat="kernel") if e["args"]["dmlc.kind"] != "wait"]
    assert all(a["dmlc.err_pct"] == {"model": 12.5, "table": 2.0}[a["dmlc.cost_source"]] for a in kernels)


def test_the_same_step_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (trace.write(simulate_step(perceptron_step(), CostModel.of(perceptron_step())), tmp_path / f"{i}.json")[0] for i in range(2))
    assert first.read_bytes() == second.read_bytes()


# ---------------------------------------------------------------- what is refused


def _first(document: Document, **wanted: Any) -> Document:
    return events(document, **wanted)[0]


def _collective(document: Document) -> Document:
    return next(e for e in events(document, cat="kernel") if "Collective name" in e["args"])


def _overlap(d: Document) -> None:
    kernel = events(d, cat="kernel", tid=7)[3]
    kernel["dur"] = events(d, cat="kernel", tid=7)[4]["ts"] - kernel["ts"] + 0.5


def _inside(d: Document) -> None:
    first, second = events(d, cat="kernel", tid=7)[3:5]
    second["ts"], second["dur"] = first["ts"] + 0.1, 0.2


def _move(d: Document, entry: Document, place: int) -> None:
    d["traceEvents"].remove(entry)
    d["traceEvents"].insert(place, entry)


def _wait_early(d: Document) -> None:
    """The wait ends before its collective; its arrow still meets both."""
    arrow = _first(d, ph="f", cat="comm")
    found = next(e for e in events(d, cat="kernel", tid=7) if e["args"]["dmlc.kind"] == "wait" and e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"])
    source = next(e for e in events(d, cat="kernel", tid=20) if e["args"]["correlation"] == arrow["id"])
    source["dur"] = found["ts"] + found["dur"] - source["ts"] + 0.001


BROKEN: dict[str, tuple[Callable[[Document], Any], str]] = {
    "schema": (lambda d: d.update(schemaVersion=2), "schemaVersion"),
    "devices": (lambda d: d.pop("deviceProperties"), "deviceProperties"),
    "no rank": (lambda d: d["distributedInfo"].pop("rank"), "distributedInfo"),
    "rank outside": (lambda d: d["distributedInfo"].update(rank=7), "contradicts"),
    "group without its rank": (lambda d: d["distributedInfo"]["pg_config"][0].update(ranks=[4, 5]), "lacks its rank"),
    "phase": (lambda d: _first(d, ph="X").update(ph="Z"), "phase 'Z'"),
    "field": (lambda d: _first(d, ph="X", cat="kernel").pop("dur"), "lacks dur"),
    "negative length": (lambda d: _first(d, ph="X", cat="kernel").update(dur=-1), "number from 0 on"),
    "not a number": (lambda d: _first(d, ph="C").update(ts=float("nan")), "number from 0 on"),
    "unnamed row": (lambda d: _move(d, _first(d, name="thread_name"), 0) or _first(d, name="thread_name").update(name="thread_sort_index"), "and no name"),
    "two rows of one name": (lambda d: events(d, name="thread_name")[1]["args"].update(name="compute"), "two rows named"),
    "overlap": (_overlap, "overlaps"),
    "one inside another": (_inside, "runs inside"),
    "out of order": (lambda d: _move(d, events(d, cat="kernel", tid=7)[6], 14), "stands after"),
    "counter back in time": (lambda d: events(d, ph="C", name="memory")[-1].update(ts=0.0), "goes back in time"),
    "counter of text": (lambda d: _first(d, ph="C")["args"].update(other="much"), "has a value"),
    "arrow without end": (lambda d: d["traceEvents"].remove(_first(d, ph="f")), "1 begins and 0 ends"),
    "arrow backwards": (lambda d: _first(d, ph="f").update(ts=0.0), "goes back in time"),
    "loose arrow": (lambda d: _first(d, ph="s", cat="comm").update(tid=99), "bound to no event"),
    "kernel before its launch": (lambda d: _first(d, name="cudaLaunchKernel").update(ts=10**6), "before its launch"),
    "launch of nothing": (lambda d: _first(d, name="cudaLaunchKernel")["args"].update(correlation=10**6), "launches no kernel"),
    "one correlation twice": (lambda d: events(d, cat="kernel")[1]["args"].update(correlation=events(d, cat="kernel")[0]["args"]["correlation"]), "of another"),
    "no NCCL field": (lambda d: _collective(d)["args"].pop("In msg nelems"), "lacks In msg nelems"),
    "wrong group": (lambda d: _collective(d)["args"].update({"Process Group Ranks": [3, 4]}), "is of rank 0"),
    "unknown collective": (lambda d: _collective(d)["args"].update({"Collective name": "all_hands"}), "unknown kind"),
    "wait for nothing": (lambda d: [d["traceEvents"].remove(_first(d, ph=p, cat="comm")) for p in "sf"], "waits for no collective"),
    "wait too short": (_wait_early, "is over before"),
    "no step": (lambda d: [d["traceEvents"].remove(e) for e in events(d, cat="gpu_user_annotation")], "lies in no ProfilerStep"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_traces_are_refused(name: str) -> None:
    breaking, message = BROKEN[name]
    document = copy.deepcopy(trace.step_document(report(peel=True)))
    assert list(problems(copy.deepcopy(document))) == []
    breaking(document)
    found = list(problems(document))
    assert any(message in text for text in found), found


def test_files_that_are_no_traces(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for text in ("[1, 2]", "{", '{"traceEvents": [3]}'):
        (tmp_path / "t.json").write_text(text)
        assert validate_trace.main([str(tmp_path / "t.json")]) == 1
    assert validate_trace.main([str(tmp_path / "absent.json")]) == 1
    assert capsys.readouterr().out.count("1 problems") == 4


# ---------------------------------------------------------------- two traces


def test_names_of_two_traces(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (first,) = written(tmp_path)
    document = json.loads(first.read_text())
    other = tmp_path / "other.json"
    for change, message in (
        (lambda d: None, "ok"),
        (lambda d: events(d, cat="kernel")[0].update(name="other"), "runs 0 times in the first trace and 1 in the second"),
        (lambda d: events(d, name="thread_name")[1]["args"].update(name="comm model"), "row 'comm model' of rank 0"),
        (
            lambda d: [
                e["args"].update({"dmlc.op": {"fc0": "fc1", "fc1": "fc0"}.get(e["args"]["dmlc.op"], e["args"]["dmlc.op"])}) for e in events(d, cat="kernel")
            ],
            "comes first where",
        ),
    ):
        changed = copy.deepcopy(document)
        change(changed)
        other.write_text(json.dumps(changed))
        assert validate_trace.main(["--same-names", "--no-torch", str(first), str(other)]) == int(message != "ok")
        assert message in capsys.readouterr().out


def test_a_simulation_of_other_prices_has_the_same_names() -> None:
    """What a real run's record is compared with: only times differ."""
    module = program([loop("l", 8, [compute("a", 10_000), start("s", 5_000), compute("b", 9_000), start("m", 70_000, "model"), wait("s"), wait("m")])])
    fast, slow = (trace.step_document(simulate_step(module, stated(slow=slow))) for slow in ({}, {"data": (30, 30), "model": (50, 50)}))
    assert fast["traceEvents"] != slow["traceEvents"] and list(validate_trace.differences(fast, slow)) == []


def test_a_rank_that_is_not_shown_is_compared_with_the_one_that_stands_for_it() -> None:
    """A measured trace has all ranks, a simulated one a rank of each class."""
    document = trace.step_document(report())
    assert document["dmlc"] == {"kind": "simulated", "ranks": {"0": [0, 1]}}
    measured = copy.deepcopy(document)
    for event in [e for e in measured["traceEvents"] if e["pid"] == 0]:
        measured["traceEvents"].append({**event, "pid": 1})
    measured["dmlc"] = {"kind": "measured"}
    assert list(validate_trace.differences(document, measured)) == [] == list(validate_trace.differences(measured, document))
    document["dmlc"]["ranks"]["0"] = [0]
    assert len(list(validate_trace.differences(document, measured))) > 100
    events(measured, cat="kernel", pid=1)[3]["name"] = "other"
    document["dmlc"]["ranks"]["0"] = [0, 1]
    found = list(validate_trace.differences(document, measured))
    assert found and all("of rank 1: " in text for text in found) and any("other [" in text for text in found)
