"""`dmlc simulate`: what it reports of a folder and of a model, the laws of its what-ifs, clusters from a file, wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from training_programs import perceptron_step

import dmlc.ops  # noqa: F401
from dmlc.cli._simulate_facts import batch_of, utilisation_of
from dmlc.cli._simulate_text import bytes_text, flops_text, share_text, time_text
from dmlc.cli.main import guarded
from dmlc.cluster import Cluster
from dmlc.cluster.file import read_cluster
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.passmanager import Context, PassManager, parse_pipeline
from dmlc.simulate.accuracy import ERROR_PERCENT, error_of
from dmlc.simulate.work import work_of

PERCEPTRON = """
func.func @main(%x: tensor<8x64xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %w1: tensor<256x64xf32> {dmlc.role = "param"}, %w2: tensor<64x256xf32> {dmlc.role = "param"}) -> tensor<8x64xf32> {
  %h = dmlc.linear %x, %w1 : (tensor<8x64xf32>, tensor<256x64xf32>) -> tensor<8x256xf32>
  %g = dmlc.gelu %h : (tensor<8x256xf32>) -> tensor<8x256xf32>
  %y = dmlc.linear %g, %w2 : (tensor<8x256xf32>, tensor<64x256xf32>) -> tensor<8x64xf32>
  func.return %y : tensor<8x64xf32>
}
"""
FORWARD = 2 * (8 * 64 * 256) * 2  # two products, a multiply-add is two

CLUSTER = """
price: 3.60
power: {host: 600 W, overhead: 1.5}
hosts:
  - {repeat: 2, devices: 1, device: a100, network: ib}
links:
  ib: {bandwidth: 100 Gbit/s, latency: 5 us}
"""

UNEVEN = """
hosts:
  - {devices: 1, device: h100, network: ib}
  - {devices: 1, device: t4, network: slow}
links:
  ib: {bandwidth: 100 Gbit/s, latency: 5 us}
  slow: {bandwidth: 10 Gbit/s, latency: 5 us}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("simulate")
    (path / "mlp.mlir").write_text(PERCEPTRON)
    (path / "cluster.yaml").write_text(CLUSTER)
    (path / "uneven.yaml").write_text(UNEVEN)
    model, out = str(path / "mlp.mlir"), str(path / "out")
    training = ["--train", "--loss", "mse", "--microbatches", "2", "--recompute", "all"]
    assert guarded(["compile", model, "--devices", "2", "--plan", "dp=2", *training, "--no-kernel-report", "-o", out]) == 0
    return path


def simulated(argv: list[str], place: Path) -> dict[str, Any]:
    """The facts that the command writes."""
    assert guarded(["simulate", *argv, "--json", str(place / "facts.json")]) == 0
    return json.loads((place / "facts.json").read_text())


# ---------------------------------------------------------------- reports


def test_a_training_folder(place, capsys):
    facts = simulated([str(place / "out")], place)
    said = capsys.readouterr().out
    assert facts["mode"] == "train" and facts["devices"] == 2 and facts["device"] == "h100" and facts["plan"] == "dp=2,tp=1"
    assert facts["throughput"]["samples_per_step"] == 8 and "tokens_per_step" not in facts["throughput"]
    time = facts["time"]
    assert facts["step_ps"] == time["computation_ps"] + time["exposed_communication_ps"] + time["waiting_for_host_ps"]
    assert facts["throughput"]["samples_per_second"] == pytest.approx(8 / (facts["step_ps"] / 1e12))
    assert facts["utilisation"]["model_flops"] == 3 * FORWARD - FORWARD // 2  # no gradient of the input
    assert facts["utilisation"]["hardware_flops"] > facts["utilisation"]["model_flops"]  # recomputation
    assert 0 < facts["utilisation"]["mfu"] < facts["utilisation"]["hfu"] < 1
    assert sum(facts["memory"]["by_category"].values()) == facts["memory"]["peak_bytes"] > 0
    assert facts["memory"]["limit_bytes"] == 80 * 10**9 and facts["memory"]["at"]["op"]
    assert facts["bound"]["best_ps"] <= facts["step_ps"] and facts["bound"]["gap"] >= 0
    assert "all_reduce" in facts["communication"]["by_kind"] and facts["money"]["kwh_per_step"] > 0 and "dollars_per_step" not in facts["money"]
    for text in (
        "a training step on 2 x h100, dp=2,tp=1",
        "samples/s (8 a step)",
        "MFU",
        "exposed communication",
        "at the peak",
        "costliest ops",
        "the cluster file has no `price`",
    ):
        assert text in said, text


def test_the_costliest_ops_are_sorted_and_named(place):
    rows = simulated([str(place / "out")], place)["costliest"]
    program = (place / "out" / "program.mlir").read_text()
    assert 0 < len(rows) <= 10 and [r["ps"] for r in rows] == sorted((r["ps"] for r in rows), reverse=True)
    assert all(f'dmlc.id = "{r["op"]}"' in program and r["source"] in ERROR_PERCENT for r in rows)


def test_a_model_is_the_same_as_its_folder(place):
    model = simulated(
        [str(place / "mlp.mlir"), "--devices", "2", "--plan", "dp=2", "--train", "--loss", "mse", "--microbatches", "2", "--recompute", "all"], place
    )
    folder = simulated([str(place / "out")], place)
    assert {**model, "program": ""} == {**folder, "program": ""}


def test_inference_of_a_model(place, capsys):
    facts = simulated([str(place / "mlp.mlir"), "--devices", "2", "--target", "l4"], place)
    assert facts["mode"] == "inference" and facts["device"] == "l4" and facts["utilisation"]["model_flops"] == FORWARD
    assert facts["throughput"]["samples_per_step"] == 8
    assert "one run on 2 x l4" in capsys.readouterr().out
    assert not (place / "mlp.dmlc").exists()


def test_a_trace_is_written(place, tmp_path):
    assert guarded(["simulate", str(place / "out"), "--trace", str(tmp_path / "trace.json")]) == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} >= {"compute", "comm data"}
    assert {e["args"].get("dmlc.err_pct") for e in events if e.get("cat") == "kernel" and e["args"].get("dmlc.cost_source") == "model"} == {
        ERROR_PERCENT["model"]
    }


def test_a_text_of_a_rank(place, tmp_path):
    (tmp_path / "rank.mlir").write_text(print_module(perceptron_step(count=4, rows=32)))
    facts = simulated([str(tmp_path / "rank.mlir")], place)
    assert facts["throughput"]["samples_per_step"] == 4 * 64
    assert "mfu" not in facts["utilisation"] and facts["utilisation"]["hfu"] > 0  # a text that was not planned does not say its work


def test_tokens_are_counted_where_an_input_is_a_batch_of_sequences():
    text = 'func.func @main(%ids: tensor<4x16xi64> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}) -> tensor<4x16xi64> {\n  func.return %ids : tensor<4x16xi64>\n}\n'
    assert batch_of(parse_module(text, "x")) == (4, 64)
    micro = text.replace("4x16", "2x4x16").replace("dmlc.batch_dim = 0 : i64", "dmlc.batch_dim = 0 : i64, dmlc.micro")
    assert batch_of(parse_module(micro, "x")) == (8, 128)
    assert batch_of(parse_module(text.replace("4x16xi64", "4x16xf32"), "x")) == (4, 0)
    assert batch_of(parse_module(text.replace(", dmlc.batch_dim = 0 : i64", ""), "x")) == (0, 0)


def test_work_counts_loops_kernels_and_branches():
    module = perceptron_step(layers=2, width=16, rows=8, count=5, peel=False)
    product = 2 * 8 * 16 * 16
    assert work_of(module.main.body) == {"f32": 5 * 5 * product}  # forward 2, of the weights 2, of the activations 1
    PassManager(parse_pipeline("fuse,outline-kernels")).run(module, Context())
    assert work_of(module.main.body) == {"f32": 5 * 5 * product}


def test_utilisation_of_the_hardware_is_against_the_dense_peaks():
    module = perceptron_step()
    cluster, done = Cluster.of(module), work_of(module.main.body)["f32"]
    assert utilisation_of(module, cluster, 0.5)["hfu"] == pytest.approx(2 * done / (2 * cluster.device.rate("f32")) / 0.5)


def test_money_and_energy_come_from_the_cluster_file(place):
    facts = simulated([str(place / "out"), "--cluster", str(place / "cluster.yaml")], place)
    seconds = facts["step_ps"] / 1e12
    assert facts["device"] == "a100"
    assert facts["money"]["dollars_per_step"] == pytest.approx(2 * 3.60 / 3600 * seconds)
    assert facts["money"]["watts"] == pytest.approx(1.5 * (2 * 400 + 2 * 600))
    assert facts["money"]["kwh_per_step"] == pytest.approx(facts["money"]["watts"] * seconds / 3.6e6)


def test_the_error_bar_is_the_share_of_each_source():
    assert error_of({"measured": 50, "model": 50})["share"] == pytest.approx((ERROR_PERCENT["measured"] + ERROR_PERCENT["model"]) / 200)
    assert error_of({"default": 10})["share"] == 1.0 and error_of({})["share"] == 0
    assert list(ERROR_PERCENT) == ["measured", "table", "model", "default"] and sorted(ERROR_PERCENT.values()) == list(ERROR_PERCENT.values())


def test_ops_priced_by_a_default_are_listed(place, tmp_path, capsys):
    text = 'func.func @main(%x: tensor<8x64xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}) -> tensor<8x64xf32> {\n'
    text += "  %v, %i = dmlc.sort %x {dim = 1 : i64, descending = false} : (tensor<8x64xf32>) -> (tensor<8x64xf32>, tensor<8x64xi64>)\n  func.return %v : tensor<8x64xf32>\n}\n"
    (tmp_path / "sort.mlir").write_text(text)
    facts = simulated([str(tmp_path / "sort.mlir"), "--target", "h100"], place)
    assert facts["defaults"] == {"dmlc.sort": 1} and facts["error"]["priced_by"].get("default", 0) > 0
    assert "priced by a default" in capsys.readouterr().out


def test_amounts_in_words():
    assert [time_text(t) for t in (0, 1500, 2 * 10**6, 3_456_000_000, 5 * 10**12)] == ["0", "1.5 ns", "2 us", "3.456 ms", "5 s"]
    assert bytes_text(80 * 10**9) == "80 GB" and bytes_text(12) == "12 B" and flops_text(3 * 10**12) == "3 TFLOP" and share_text(0.1234) == "12.3 %"


# ---------------------------------------------------------------- what-ifs


def test_what_ifs_of_the_command(place, capsys):
    argv = ["--bandwidth", "x2", "--latency", "nvlink=x0.5", "--compute", "x1.5", "--device", "h200", "--no-overlap"]
    facts = simulated([str(place / "out"), *argv], place)
    rows = {row["change"]: row for row in facts["what_if"]}
    assert list(rows) == ["bandwidth of every link x2", "latency of nvlink x0.5", "computation x1.5", "device h200", "no overlap", "all of these"]
    assert all(row["before"]["step_ps"] == facts["step_ps"] for row in facts["what_if"])
    said = capsys.readouterr().out
    assert said.count(" -> ") >= 2 * len(rows) and "bandwidth of every link x2: step" in said
    assert rows["computation x1.5"]["after"]["computation_ps"] < facts["time"]["computation_ps"]
    assert rows["all of these"]["after"]["computation_ps"] < rows["computation x1.5"]["after"]["computation_ps"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--bandwidth", "2"], "--bandwidth takes for example x2 or network=x2, not '2'"),
        (["--bandwidth", "x0"], "--bandwidth takes for example"),
        (["--latency", "x1/0"], "--latency takes for example"),
        (["--compute", "network=x2"], "--compute takes for example x2"),
        (["--device", "h20"], "there is no device 'h20'; did you mean 'h200'?"),
        (["--lr", "1"], "--lr is given when the compiled program runs"),
        (["--json", "/none/x.json"], "there is no folder /none"),
    ],
)
def test_wrong_values_are_wrong_usage(argv, message, place, capsys):
    assert guarded(["simulate", str(place / "out"), *argv]) == 2
    said = capsys.readouterr().err
    assert message in said and "dmlc simulate" in said


def test_a_link_that_is_not_there(place, capsys):
    assert guarded(["simulate", str(place / "out"), "--bandwidth", "netwrk=x2"]) == 1
    assert "the cluster has no link 'netwrk'; did you mean 'network'?" in capsys.readouterr().err


# ---------------------------------------------------------------- clusters


def test_a_folder_is_priced_on_another_cluster(place, capsys):
    simulated([str(place / "out"), "--cluster", str(place / "cluster.yaml")], place)
    assert "priced on" in (said := capsys.readouterr().out) and "it was compiled for h100" in said
    (place / "one.yaml").write_text("hosts:\n  - device: h100\n")
    assert guarded(["simulate", str(place / "out"), "--cluster", str(place / "one.yaml")]) == 1
    assert "the cluster has 1 devices; the program is compiled for 2 ranks" in capsys.readouterr().err


def test_different_devices_wait_for_the_slowest(place, capsys):
    facts = simulated([str(place / "mlp.mlir"), "--cluster", str(place / "uneven.yaml"), "--train", "--loss", "mse", "--plan", "dp=2"], place)
    assert facts["devices"] == 2 and facts["device"] == "t4" and facts["different_devices"] == ["h100", "t4"]
    (place / "t4.yaml").write_text(UNEVEN.replace("h100", "t4"))
    slow = simulated([str(place / "mlp.mlir"), "--cluster", str(place / "t4.yaml"), "--train", "--loss", "mse", "--plan", "dp=2"], place)
    assert facts["step_ps"] == pytest.approx(slow["step_ps"], rel=0.02)
    assert facts["utilisation"]["mfu"] < slow["utilisation"]["mfu"]  # of what both devices could
    assert "on 2 x h100, t4" in capsys.readouterr().out


def test_one_slow_link_slows_the_step(place):
    (place / "fast.yaml").write_text(UNEVEN.replace("10 Gbit/s", "100 Gbit/s"))
    argv = [str(place / "mlp.mlir"), "--train", "--loss", "mse", "--plan", "dp=2", "--cluster"]
    slow, fast = (simulated([*argv, str(place / f"{name}.yaml")], place) for name in ("uneven", "fast"))
    assert slow["communication"]["busy_ps"] > fast["communication"]["busy_ps"] and slow["step_ps"] >= fast["step_ps"]


def test_the_cluster_is_in_the_compiled_text(place, capsys):
    out = str(place / "clustered")
    assert guarded(["compile", str(place / "mlp.mlir"), "--cluster", str(place / "uneven.yaml"), "--no-kernel-report", "-o", out]) == 0
    said = capsys.readouterr().out
    assert said.count("the cluster has different devices (h100, t4): planned for 't4'") == 1
    module = parse_module((Path(out) / "program.mlir").read_text(), "x")
    assert Cluster.from_attr(module.attrs["dmlc.cluster"]) == read_cluster(place / "uneven.yaml")
    fewer = str(place / "fewer")
    assert guarded(["compile", str(place / "mlp.mlir"), "--cluster", str(place / "uneven.yaml"), "--devices", "1", "--no-kernel-report", "-o", fewer]) == 0
    assert Cluster.from_attr(parse_module((Path(fewer) / "program.mlir").read_text(), "x").attrs["dmlc.cluster"]).device.name == "h100"


def test_compile_refuses_what_contradicts_the_cluster(place, capsys):
    compile_ = ["compile", str(place / "mlp.mlir"), "--cluster", str(place / "uneven.yaml"), "-o", str(place / "never")]
    assert guarded([*compile_, "--target", "h100"]) == 2
    assert "--cluster says what the devices are" in capsys.readouterr().err
    assert guarded([*compile_, "--devices", "3"]) == 1
    assert "the cluster has 2 devices, not 3" in capsys.readouterr().err
    (place / "wrong.yaml").write_text(UNEVEN.replace("latency: 5 us}", "latency: 5}", 1))
    assert guarded(["compile", str(place / "mlp.mlir"), "--cluster", str(place / "wrong.yaml")]) == 1
    assert f"{place}/wrong.yaml:6:40: error: latency: a time needs a unit" in capsys.readouterr().err
    assert guarded(["compile", str(place / "out" / "program.mlir"), "--cluster", str(place / "uneven.yaml"), "-o", str(place / "never")]) == 1
    assert "--cluster is not what the text says" in capsys.readouterr().err


# ---------------------------------------------------------------- wrong input


def test_no_program(place, tmp_path, capsys):
    assert guarded(["simulate"]) == 2
    assert "no MODEL or OUT given" in capsys.readouterr().err
    assert guarded(["simulate", str(tmp_path)]) == 1
    assert "is not a compiled folder (it has no program.mlir)" in capsys.readouterr().err
    (tmp_path / "program.mlir").write_text("builtin.module {")
    assert guarded(["simulate", str(tmp_path)]) == 1
    assert "program.mlir:1:" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--devices", "4"], ["--plan", "tp=2"], ["--precision", "bf16"], ["--memory", "1GB"]])
def test_a_folder_has_its_plan_already(argv, place, capsys):
    assert guarded(["simulate", str(place / "out"), *argv]) == 1
    assert f"{argv[0]} is for a model; a compiled folder has its plan already" in capsys.readouterr().err


def test_a_size_that_a_folder_does_not_leave_open(place, capsys):
    assert guarded(["simulate", str(place / "out"), "--dim", "n=3"]) == 1
    assert "the program has no open size 'n'" in capsys.readouterr().err
