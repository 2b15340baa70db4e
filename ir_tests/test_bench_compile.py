"""tools/bench_compile.py: every stage and pass is measured once, sums are of what they say, growth is a power."""

from __future__ import annotations

import pytest
import torch

from dmlc.pipelines import INFERENCE
from dmlc.tools import bench_compile

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def stages() -> dict[str, list[float]]:
    return bench_compile.measure_compile("dmlc.models.mlp:tiny", 2)


def test_every_stage_is_measured(stages):
    assert {f"pass {name}" for name in INFERENCE} <= set(stages)
    assert {"torch.export", "import", "emit the program", "emit the kernels", "build the kernels for sm_80 and sm_90", "weights"} <= set(stages)
    assert all(wall >= 0 and processor >= 0 for wall, processor, _ in stages.values())
    assert stages["torch.export"][0] > 0 and stages["torch.export"][2] > 100, "PyTorch alone takes more than 100 MB"


def test_the_table_adds_up(stages):
    lines = bench_compile.stage_table("mlp", stages).splitlines()
    whole = next(line for line in lines if "in all" in line)
    assert float(whole.split()[-3]) == pytest.approx(bench_compile.total(stages), abs=0.01)
    assert whole == lines[-1] and any("other passes" in line for line in lines)


def test_growth():
    found = {n: {"start": [9.0, 9.0, 0.0], "torch.export": [0.0, 0.1 * n, 0.0], "pass plan": [0.0, 0.01 * n**2, 0.0]} for n in (8, 16, 64)}
    lines = {line.rsplit(None, 4)[0].strip(): line.split()[-1] for line in bench_compile.growth_table(found).splitlines()[2:]}
    assert lines["torch.export"] == "1.00" and lines["pass plan"] == "2.00" and "start" not in lines
    assert bench_compile.exponent({8: 1.0}) != bench_compile.exponent({8: 1.0}), "nothing to compare"


def test_models_without_data_compile():
    """The growth's models: same shape, only the number of layers differs; nothing of their weights exists."""
    module, args = bench_compile.llama_of(1)
    assert all(p.device.type == "meta" for p in module.parameters()) and args[0].shape == (8, 2048)
    assert bench_compile.layers_16.args == (16,) and len(bench_compile.LAYERS) == 4


def test_unknown_models_are_refused(capsys):
    assert bench_compile.main(["gpt3"]) == 2
    assert "known: gpt2, bert, llama" in capsys.readouterr().err
