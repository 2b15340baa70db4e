"""How evenly plans divide a model over eight ranks, measured on the text of `program.mlir` by the independent counter.

Sizes: hidden 256, 4 layers, 8 heads, MLP 1024 (Llama: 2 key/value heads, MLP 688), vocabulary 4096, sequence 64, batch 8; two ResNets.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest
import torch
from model_cases import TRANSFORMERS, compile_copy, difference, in_double, loaded

from dmlc.driver import Compiled
from dmlc.ir.printer import print_module
from dmlc.models.onnx_light import write_light_model
from dmlc.pipelines import INFERENCE
from dmlc.tools.count_shares import Shares, count

torch.set_num_threads(1)

RESNETS = ("resnet:make", "resnet:small")
SEQUENCE = {"vit": 65}  # 64 patches and the class token
BEFORE_PLAN = ",".join(INFERENCE[: INFERENCE.index("plan")])
TWELVE_HEADS = """from dmlc.models.gpt2 import build


def make():
    return build(192, 1, 12, 256, 512, 16, 8)
"""


@dataclass
class Counted:
    compiled: Compiled
    shares: Shares


@functools.cache
def global_text(source: str) -> str:
    """The program before `plan`."""
    model = loaded(f"dmlc.models.{source}")
    return print_module(compile_copy(model, pipeline=BEFORE_PLAN).module)


@functools.cache
def counted(source: str, plan: str) -> Counted:
    compiled = compile_copy(loaded(f"dmlc.models.{source}"), plan=plan)
    name = source.split(":")[0]
    activation = (8, SEQUENCE.get(name, 64), 256) if name in TRANSFORMERS else None
    return Counted(compiled, count(print_module(compiled.module), global_text(source), activation))


def sources() -> list[str]:
    return [*(f"{name}:make" for name in TRANSFORMERS), *RESNETS]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_tensor_parallel_transformers_hold_and_do_an_eighth(name):
    shares = counted(f"{name}:make", "tp=8").shares
    limit = 0.17 if name == "llama" else 0.14
    assert shares.bytes <= limit and shares.work <= limit


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_layer_has_at_most_two_full_activation_collectives(name):
    """On average; a gather that ends a layer's second reduction may stand in the next layer, the last one's stands in that itself."""
    shares = counted(f"{name}:make", "tp=8").shares
    layers = shares.full_a_layer()
    assert list(layers) == [0, 1, 2, 3] and min(layers.values()) > 0 and sum(layers.values()) <= 2 * len(layers) and max(layers.values()) <= 2.5
    reductions = [t.layer for t in shares.traffic if t.kind in ("reduce_scatter", "all_reduce") and t.full > 0.5]
    assert all(reductions.count(layer) <= 2 for layer in layers)


def test_weights_cast_to_bf16_are_split_as_well():
    model = loaded("dmlc.models.gpt2:make")
    before, after = (print_module(compile_copy(model, plan="tp=8", precision="bf16", **options).module) for options in ({"pipeline": BEFORE_PLAN}, {}))
    shares = count(after, before)
    assert shares.bytes <= 0.14 and shares.work <= 0.14


@pytest.mark.parametrize("source", RESNETS)
def test_tensor_parallel_convolutions(source):
    assert counted(source, "tp=8").shares.work <= 0.35


def test_the_onnx_resnet50_of_one_image(tmp_path):
    model = loaded(str(write_light_model("resnet50", tmp_path / "resnet50.onnx")))
    before, after = (print_module(compile_copy(model, plan="tp=8", **options).module) for options in ({"pipeline": BEFORE_PLAN}, {}))
    assert count(after, before).work <= 0.35


@pytest.mark.parametrize("source", sources())
def test_every_large_weight_that_stays_whole_has_a_reason(source):
    case = counted(source, "tp=8")
    reasons = [r.text for r in case.compiled.remarks if r.pass_name == "plan"]
    for name in case.shares.whole:
        assert any(r.startswith(f"{name} stays whole on every rank of the model axis: ") for r in reasons), name


@pytest.mark.parametrize("source", sources())
def test_data_parallel_computes_an_eighth_and_sends_nothing(source):
    shares = counted(source, "dp=8").shares
    assert shares.work <= 0.13 and not shares.traffic


def test_counting_starts_from_the_model_itself():
    """The program before `plan` holds what the imported one holds: no pass before it adds or loses weights or work."""
    model = loaded("dmlc.models.gpt2:make")
    shares = count(global_text("gpt2:make"), print_module(model.module))
    assert shares.work == pytest.approx(1, rel=0.02)
    parts = count(global_text("gpt2:make"), global_text("gpt2:make"))
    assert (parts.bytes, parts.work) == (1, 1)


def test_twelve_heads_on_eight_ranks_compile_and_say_what_is_gathered(tmp_path):
    """Two heads on six ranks, none on two: nothing has to be gathered for attention; what else is gathered has a remark."""
    (tmp_path / "twelve.py").write_text(TWELVE_HEADS)
    model = loaded(f"{tmp_path / 'twelve.py'}:make")
    compiled = compile_copy(model, plan="tp=8")
    assert difference(*(in_double(m, model.weights, dict(model.examples)) for m in (model.module, compiled.module))) < 1e-9
    text = print_module(compiled.module)
    assert "tensor<8x2x16x16xf32>" in next(line for line in text.splitlines() if "dmlc.attention" in line)
    gathered = [op for op in compiled.module.main.ops() if op.name.startswith("comm.all_gather")]
    remarks = [r.text for r in compiled.remarks if r.pass_name == "plan" and "gathered" in r.text]
    assert gathered and remarks
