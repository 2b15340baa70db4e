"""A training step of the size of Llama-7B on 64 devices: read and simulated in under five seconds of processor time and two gigabytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from llama_steps import llama_step, llama_text

from dmlc.cost import CostModel
from dmlc.ir.verifier import verify
from dmlc.simulate.step import simulate_step

SCRIPT = """
import json, sys, time
import dmlc.ops
from dmlc.cost import CostModel
from dmlc.ir.parser import parse_module
from dmlc.ir.verifier import verify
from dmlc.simulate.step import simulate_step

begin = time.process_time()
with open(sys.argv[1]) as file:
    module = parse_module(file.read())
verify(module)
report = simulate_step(module, CostModel.of(module))
events = len(report.events)
spent = time.process_time() - begin
resident = max(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))
print(json.dumps({"ops": sum(1 for _ in module.main.ops()), "events": events, "seconds": spent, "kilobytes": resident, "time": report.time}))
"""
LIMIT = 5.0  # seconds of processor time, after import
MEMORY = 2_000_000  # kilobytes


def measured(text: str, folder: Path) -> dict:
    (folder / "step.mlir").write_text(text)
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(folder / "step.mlir")], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def test_a_step_of_seven_billion_parameters_on_64_devices(tmp_path: Path) -> None:
    found = measured(llama_text(32, 8, 8), tmp_path)
    print(found)
    assert found["ops"] > 9000 and found["events"] > 7000
    assert found["seconds"] < LIMIT and found["kilobytes"] < MEMORY


def test_layers_add_up() -> None:
    """Each layer takes as long as the others, and the bounds hold."""
    times = []
    for layers in (1, 2, 3):
        module = llama_step(layers)
        verify(module)
        report = simulate_step(module, CostModel.of(module))
        assert report.time >= report.bounds.best and report.peak >= sum(report.memory[k] for k in ("parameters", "states"))
        times.append(report.time)
    one, two = times[1] - times[0], times[2] - times[1]
    assert abs(one - two) < 0.1 * one
