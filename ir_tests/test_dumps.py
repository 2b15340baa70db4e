"""`--dump-ir` leaves one file a pass; each reads back equal in both forms, xDSL reads it, and `dmlc opt` on dump N repeats dump N+1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from text_helpers import xdsl_accepts

import dmlc.ops  # noqa: F401
from dmlc.cli import opt
from dmlc.driver import Options, compile_model, load
from dmlc.ir.equality import structurally_equal
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.passmanager.pipeline import parse_pipeline, print_pass
from dmlc.pipelines import PIPELINES
from dmlc.training import Training

PERCEPTRON = """
func.func @main(%x: tensor<6x64xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %w1: tensor<256x64xf32> {dmlc.role = "param"}, %b1: tensor<256xf32> {dmlc.role = "param"}, %w2: tensor<64x256xf32> {dmlc.role = "param"}) -> tensor<6x64xf32> {
  %one = dmlc.full {value = 1.0 : f64} : () -> tensor<f32>
  %h = dmlc.linear %x, %w1 {dmlc.name = "up"} : (tensor<6x64xf32>, tensor<256x64xf32>) -> tensor<6x256xf32>
  %a = dmlc.add %h, %b1 {dmlc.name = "bias"} : (tensor<6x256xf32>, tensor<256xf32>) -> tensor<6x256xf32>
  %g = dmlc.gelu %a {dmlc.name = "gelu"} : (tensor<6x256xf32>) -> tensor<6x256xf32>
  %s = dmlc.mul %g, %one : (tensor<6x256xf32>, tensor<f32>) -> tensor<6x256xf32>
  %y = dmlc.linear %s, %w2 {dmlc.name = "down"} : (tensor<6x256xf32>, tensor<64x256xf32>) -> tensor<6x64xf32>
  func.return %y : tensor<6x64xf32>
}
"""
CASES = {
    "perceptron_tp2": ("", Options(devices=2, plan="tp=2")),
    "perceptron_dp2_tp2": ("", Options(devices=4, plan="dp=2,tp=2")),
    "perceptron_dp4_bf16": ("", Options(devices=4, plan="dp=4", precision="bf16")),
    "gpt2_dp2_tp4_bf16": ("dmlc.models.gpt2:tiny", Options(devices=8, plan="dp=2,tp=4", precision="bf16")),
    "llama_tp8": ("dmlc.models.llama:tiny", Options(devices=8, plan="tp=8")),
    "resnet_dp2_tp4": ("dmlc.models.resnet:tiny", Options(devices=8, plan="dp=2,tp=4")),
    "train_gpt_dp2_tp2_zero3": (
        "dmlc.models.gpt_text:tiny",
        Options(devices=4, plan="dp=2,tp=2,zero=3", microbatches=2, train=Training(recompute="all")),
    ),
}


@pytest.fixture(scope="module", params=CASES)
def dumps(request, tmp_path_factory) -> list[Path]:
    """The numbered files of one compile, in order."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "mlp.mlir").write_text(PERCEPTRON)
    source, options = CASES[request.param]
    compile_model(load(source or str(folder / "mlp.mlir"), options), replace(options, dump=folder / "ir"))
    return sorted((folder / "ir").glob("*.mlir"))


@pytest.fixture
def passes(request):
    """The pipeline that a case runs through."""
    trained = request.node.callspec.params["dumps"].startswith("train")
    return parse_pipeline("training" if trained else "inference", PIPELINES)


def different(dumps: list[Path]) -> list[Path]:
    """Without the files of passes that changed nothing."""
    return list({path.read_text(): path for path in reversed(dumps)}.values())[::-1]


def test_one_file_a_pass(dumps, passes):
    assert [p.stem for p in dumps] == ["00-input", *(f"{n:02}-{p.name}" for n, p in enumerate(passes, 1))]


def test_both_forms_read_back(dumps):
    for path in different(dumps):
        module = parse_module(path.read_text(), str(path))
        assert print_module(module) == path.read_text()
        generic = print_module(module, generic=True)
        again = parse_module(generic)
        assert print_module(again) == path.read_text(), f"{path.name} through the generic form"
        assert structurally_equal(module, again) is None, path.name


def test_xdsl_reads_every_dump(dumps):
    for path in different(dumps):
        xdsl_accepts(print_module(parse_module(path.read_text(), str(path)), generic=True))


def test_opt_repeats_each_step(dumps, passes):
    for before, after, pass_ in zip(dumps, dumps[1:], passes):
        code, out, err = opt.run([str(before), "--passes", print_pass(pass_)])
        assert code == 0, f"{pass_.name} on {before.name}: {err}"
        assert out == after.read_text(), f"{pass_.name} on {before.name} differs from {after.name}"
