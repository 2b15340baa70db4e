"""Raising on whole programs: models with spelled-out attention, and formulas that only look like a composite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import dmlc.ops  # noqa: F401
from dmlc.frontend.torch_export import import_exported
from dmlc.interpret.run import run
from dmlc.ir.core import Module, Op
from dmlc.ir.verifier import verify
from dmlc.models import bert, gpt2, llama, vit
from dmlc.passmanager.context import Context
from dmlc.passmanager.pipeline import parse_pipeline
from dmlc.pipelines import INFERENCE

BEFORE_PLAN = ",".join(INFERENCE[: INFERENCE.index("mixed-precision")])
torch.set_num_threads(1)


class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def raised(model: torch.nn.Module, *args: torch.Tensor) -> tuple[Module, list[str]]:
    """The simplified program, checked against the original in float64, and the remarks."""
    with torch.no_grad():
        result = import_exported(torch.export.export(model.eval(), args), eager=model)
    expected, context = result.reference(result.inputs, double=True), Context(result.weights)
    for pass_ in parse_pipeline(BEFORE_PLAN):
        pass_.run(result.module, context)
    verify(result.module)
    actual = run(result.module, result.inputs, promote="f64", weights=result.weights)
    for key, value in expected.items():
        np.testing.assert_allclose(actual[key], value, rtol=1e-9, atol=1e-9)
    return result.module, [r.text for r in context.remarks]


def ops(module: Module, name: str) -> list[Op]:
    return [op for op in module.main.ops() if op.name == f"dmlc.{name}"]


def counts(module: Module) -> dict[str, int]:
    names = ("attention", "layer_norm", "rms_norm", "gelu", "silu", "softmax", "matmul", "linear")
    return {name: len(ops(module, name)) for name in names}


@pytest.mark.parametrize("builder", [gpt2, llama, bert, vit])
def test_spelled_out_attention_of_models_is_raised_to_the_same_program(builder):
    model, args = builder.tiny()
    fused, _ = raised(model, *args)
    model.set_attn_implementation("eager")
    spelled, remarks = raised(model, *args)
    assert counts(spelled) == counts(fused) and not ops(spelled, "softmax") and not remarks
    for a, b in zip(ops(fused, "attention"), ops(spelled, "attention"), strict=True):
        assert [v.shape for v in a.operands] == [v.shape for v in b.operands]
        assert a.attrs.get("causal") == b.attrs.get("causal") and a.attrs["scale"] == pytest.approx(b.attrs["scale"])


def seeded(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


Q, K, V = seeded(4, 4, 2, 8, seed=0), seeded(4, 4, 3, 8, seed=1), seeded(4, 4, 3, 8, seed=2)


def test_softmax_over_another_dim_is_not_attention():
    module, _ = raised(Call(lambda q, k, v: (q @ k.transpose(-2, -1) / 128).softmax(0) @ v), Q, K, V)
    assert not ops(module, "attention")


def test_the_scale_is_the_one_written():
    module, _ = raised(Call(lambda q, k, v: (q @ k.transpose(-2, -1) / 128).softmax(-1) @ v), Q, K, V)
    (attention,) = ops(module, "attention")
    assert attention.attrs["scale"] == 1 / 128


def test_a_hidden_row_stays_nan_or_zero_as_written():
    q, k = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4)
    v, seen = torch.tensor([[[[5.0], [6.0]]]]), torch.tensor([[False, False], [True, False]])
    spelled, remarks = raised(Call(lambda q, k, v, m: (q @ k.mT).masked_fill(~m, -math.inf).softmax(-1) @ v), q, k, v, seen)
    assert not ops(spelled, "attention") and any("hide a whole row" in r for r in remarks)
    fused, _ = raised(Call(lambda q, k, v, m: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m)), q, k, v, seen)
    assert len(ops(fused, "attention")) == 1


@pytest.mark.parametrize("shape", [(2, 1, 1, 5), (2, 1, 3, 5), (1, 4, 3, 1)])
def test_float_masks_broadcast(shape):
    q, k = seeded(2, 4, 3, 8, seed=0), seeded(2, 4, 5, 8, seed=1)
    hidden = seeded(*shape, seed=3) > 1

    def function(q, k, hidden):
        return (q @ k.mT * 0.3 + hidden * -1e9).softmax(-1) @ k

    module, _ = raised(Call(function), q, k, hidden)
    (attention,) = ops(module, "attention")
    assert attention.operands[3].shape == shape


def test_merged_batch_and_heads():
    """Old programs multiply [batch heads, sequence, size]."""

    def function(q, k, v):
        a, b, c = (x.reshape(16, x.shape[2], 8) for x in (q, k, v))
        return (torch.bmm(a * 0.2, b.transpose(1, 2)).softmax(-1) @ c).reshape(4, 4, 2, 8)

    module, _ = raised(Call(function), Q, K, V)
    (attention,) = ops(module, "attention")
    assert attention.attrs["scale"] == 0.2


def test_half_precision_norm_keeps_its_float32_inside():
    """A row of eight thousands overflows in half precision: the mean square is infinite there, and the result would be 0."""

    class Norm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8, dtype=torch.float16))

        def forward(self, x):
            wide = x.float()
            return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    with torch.no_grad():
        result = import_exported(torch.export.export(Norm(), (torch.full((1, 8), 1000.0, dtype=torch.float16),)))
    for pass_ in parse_pipeline(BEFORE_PLAN):
        pass_.run(result.module, Context(result.weights))
    (norm,) = ops(result.module, "rms_norm")
    assert norm.result.dtype == "f32"
    (value,) = run(result.module, result.inputs, weights=result.weights).values()
    assert value.dtype == np.float16 and (value == 1.0).all()


def test_constants_rounded_to_float32_are_the_formulas():
    root, cube = float(np.float32(math.sqrt(2))), float(np.float32(0.044715))

    def function(x):
        exact = x * 0.5 * (1 + torch.erf(x / root))
        return exact, 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + cube * x * x * x)))

    with torch.no_grad():
        result = import_exported(torch.export.export(Call(function), (Q,)))
    for pass_ in parse_pipeline(BEFORE_PLAN):
        pass_.run(result.module, Context(result.weights))
    assert [op.attrs.get("approximate", "none") for op in ops(result.module, "gelu")] == ["none", "tanh"]
    actual, expected = run(result.module, result.inputs), result.reference(result.inputs)
    for key, value in expected.items():
        np.testing.assert_allclose(actual[key], value, rtol=1e-5, atol=1e-6)


def test_a_value_inside_a_formula_that_is_returned_keeps_it():
    module, _ = raised(Call(lambda x: (x * torch.sigmoid(1.702 * x), 1.702 * x)), Q)
    assert not ops(module, "silu")
    module, _ = raised(Call(lambda x, w: (w * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 0.1), (x * x).mean(-1))), Q, seeded(8, seed=4))
    assert not ops(module, "rms_norm")
