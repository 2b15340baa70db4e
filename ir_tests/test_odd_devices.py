"""Three and seven devices: nothing divides, every model compiles all the same, and in float64 with NaN in all padding its ranks give the model's results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dmlc.driver import Loaded, Options, compile_model, load
from dmlc.interpret.run import run
from dmlc.ir.sharding import Mesh
from dmlc.passmanager.check import relative_error

torch.set_num_threads(1)
MODELS = ("gpt2", "llama", "bert", "vit", "resnet")


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[Loaded, dict]:
    loaded = load(f"dmlc.models.{request.param}:tiny", Options())
    with torch.no_grad():
        return loaded, run(loaded.module, loaded.examples, promote="f64", weights=loaded.weights)


@pytest.mark.parametrize("plan", ["auto", "tp"])
@pytest.mark.parametrize("devices", [3, 7])
def test_devices_that_divide_nothing(model: tuple[Loaded, dict], devices: int, plan: str) -> None:
    loaded, expected = model
    text = "auto" if plan == "auto" else f"tp={devices}"
    compiled = compile_model(replace(loaded, module=loaded.module.clone()), Options(devices=devices, plan=text))
    assert Mesh.of(compiled.module).devices == devices
    assert plan == "auto" or any(op.dialect == "comm" for op in compiled.module.main.ops()), "nothing is split"
    actual = run(compiled.module, loaded.examples, promote="f64", weights=compiled.weights, poison_pads=True)
    assert list(actual) == list(expected)
    for name, wanted in expected.items():
        assert relative_error(wanted, actual[name]) < 1e-9, name
