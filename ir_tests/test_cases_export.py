"""Faults of torch.export that users met (E1, E3), and the PyTorch half of A6: models through the whole compiler on one and more ranks, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pipeline_cases import everywhere, exported, ops_of, run_exported, through
from torch_cases import Call

from dmlc.frontend.torch_export import import_exported, import_program
from dmlc.interpret.run import run
from dmlc.passmanager.context import Context

torch.set_num_threads(1)


def agrees(model: torch.nn.Module, *args: torch.Tensor, devices: int, plan: str) -> Any:
    """The compiled module; in float64 its results are eager's."""
    module, found = run_exported(model, *args, devices=devices, plan=plan, promote="f64")
    with torch.no_grad():
        eager = model.double()(*(a.double() if a.is_floating_point() else a for a in args))
    for wanted, got in zip(eager if isinstance(eager, tuple) else (eager,), found, strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), rtol=0, atol=1e-9 * max(1, wanted.abs().max().item()))
    return module


# ---------------------------------------------------------------- A6


@everywhere
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_a6_division_and_remainder_of_negative_integers(dtype, devices, plan):
    a, b = torch.tensor([8, -8, 7, -7], dtype=dtype), torch.tensor([-3, 3, -2, 2], dtype=dtype)

    def function(a, b):
        return torch.floor_divide(a, b), torch.div(a, b, rounding_mode="trunc"), torch.remainder(a, b), torch.fmod(a, b)

    _, found = run_exported(Call(function), a, b, devices=devices, plan=plan)
    assert [f.tolist() for f in found] == [[-3, -3, -4, -4], [-2, -2, -3, -3], [-1, 1, -1, 1], [2, -2, 1, -1]]


# ---------------------------------------------------------------- E1: views of attention's result

B, H, S, D = 2, 4, 6, 8
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reshape, view": lambda y: y.transpose(1, 2).reshape(B, S, H * D).view(-1, H * D),
    "contiguous, view": lambda y: y.transpose(1, 2).contiguous().view(B, S, H * D),
    "view of the result": lambda y: y.view(B, H, S * D),
    "flatten": lambda y: y.transpose(1, 2).flatten(2).view(B * S, H * D),
    "unflatten": lambda y: y.permute(0, 2, 1, 3).flatten(0, 1).unflatten(0, (B, S)).view(B, S, 2, -1),
    "view as another dtype's sizes": lambda y: y.transpose(1, 2).reshape(-1).view(B, -1),
}
FORMS: dict[str, dict[str, Any]] = {"plain": {}, "causal": {"is_causal": True}, "scaled": {"scale": 0.3}, "grouped": {"enable_gqa": True}}


@everywhere
@pytest.mark.parametrize("view", VIEWS)
def test_e1_views_of_attention(view, devices, plan):
    qkv = torch.randn(3, B, H, S, D, generator=torch.Generator().manual_seed(0)).unbind()
    module = agrees(Call(lambda q, k, v: VIEWS[view](F.scaled_dot_product_attention(q, k, v))), *qkv, devices=devices, plan=plan)
    assert len(ops_of(module, "dmlc.attention")) == 1


@pytest.mark.parametrize("form", FORMS)
def test_e1_views_of_every_form_of_attention(form, tmp_path):
    """Also from a file, where the program was traced by someone else."""
    q, k, v = torch.randn(3, B, H, S, D, generator=torch.Generator().manual_seed(1)).unbind()
    k, v = (k[:, :2], v[:, :2]) if form == "grouped" else (k, v)
    model = Call(lambda q, k, v: VIEWS["reshape, view"](F.scaled_dot_product_attention(q, k, v, **FORMS[form])))
    agrees(model, q, k, v, devices=2, plan="tp=2")
    torch.export.save(torch.export.export(model, (q, k, v)), tmp_path / "model.pt2")
    found = import_program(tmp_path / "model.pt2")
    assert found.reference is not None
    (y,) = run(found.module, dict(found.inputs), weights=found.weights).values()
    (wanted,) = found.reference(found.inputs).values()
    np.testing.assert_allclose(y, wanted, atol=1e-5)


# ---------------------------------------------------------------- E3: tied weights


class Aliases(torch.nn.Module):
    """Four names of one table: looked up twice, multiplied with twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Embedding(11, 8), torch.nn.Embedding(11, 8)
        self.head, self.other = torch.nn.Linear(8, 11, bias=False), torch.nn.Linear(8, 11)
        self.second.weight = self.head.weight = self.other.weight = self.first.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.first(ids)) + self.other(self.second(ids.flip(-1)))


class Related(torch.nn.Module):
    """Parameters in one storage that are not one tensor: a transpose (of the same shape), a part, and a copy with equal values."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.randn(8, 8, generator=torch.Generator().manual_seed(3)))
        self.turned = torch.nn.Parameter(self.a.detach().t())
        self.part = torch.nn.Parameter(self.a.detach()[:, :4])
        self.rows = torch.nn.Parameter(self.a.detach()[1:5])
        self.copy = torch.nn.Parameter(self.a.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ self.a, x @ self.turned, x @ self.part, x @ self.rows.t(), x @ self.copy], -1)


def parameters(module: Any) -> list[tuple[str, ...]]:
    return [tuple(a.attrs["dmlc.names"]) for a in module.main.args if a.attrs["dmlc.role"] == "param"]


@everywhere
def test_e3_four_names_are_one_parameter(devices, plan):
    names = ("first.weight", "second.weight", "head.weight", "other.weight")
    ids = torch.arange(12).reshape(2, 6) % 11
    found = exported(Aliases(), ids)
    assert sorted(parameters(found.module), key=len) == [("other.bias",), names]
    module = agrees(Aliases(), ids, devices=devices, plan=plan)
    assert [n for n in parameters(module) if len(n) > 1] == [names]


@everywhere
def test_e3_what_shares_storage_is_not_always_one_parameter(devices, plan):
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(4))
    assert len(parameters(exported(Related(), x).module)) == 5
    agrees(Related(), x, devices=devices, plan=plan)


def test_e3_ties_survive_a_file(tmp_path):
    ids = torch.arange(12).reshape(2, 6) % 11
    for model, x, count in ((Aliases(), ids, 2), (Related(), torch.randn(3, 8), 5)):
        torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
        found = import_program(tmp_path / "model.pt2")
        assert found.reference is not None
        assert len(parameters(found.module)) == count
        (y,) = run(found.module, dict(found.inputs), promote="f64", weights=found.weights).values()
        (wanted,) = found.reference(found.inputs, double=True).values()
        np.testing.assert_allclose(y, wanted, atol=1e-9)


TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 37, "max_position_embeddings": 16}


def tied_model(name: str) -> Any:
    import transformers as t

    torch.manual_seed(0)
    made = {
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(vocab_size=37, n_positions=16, n_embd=16, n_layer=1, n_head=2)),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**TINY, tie_word_embeddings=True)),
        "bert": lambda: t.BertForMaskedLM(t.BertConfig(**TINY)),
        "albert": lambda: t.AlbertForMaskedLM(t.AlbertConfig(**TINY, embedding_size=8)),
        "t5": lambda: t.T5ForConditionalGeneration(t.T5Config(vocab_size=37, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)),
    }
    return made[name]().eval()


class Logits(torch.nn.Module):
    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self.decodes = model.config.is_encoder_decoder

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        more = {"decoder_input_ids": ids.flip(-1)} if self.decodes else {}
        return self.model(input_ids=ids, use_cache=False, **more).logits


@pytest.mark.parametrize(("name", "aliases"), [("gpt2", 2), ("llama", 2), ("bert", 2), ("albert", 2), ("t5", 4)])
def test_e3_tied_models(name, aliases, tmp_path):
    """One argument for each storage, whatever the exporter names it; right on two ranks; no tie is lost in a file."""
    model, ids = Logits(tied_model(name)), torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        program = torch.export.export(model, (ids,))
    torch.export.save(program, tmp_path / "model.pt2")
    found = import_exported(program)
    stored = {p.untyped_storage().data_ptr() for p in model.parameters()}
    for module in (found.module, import_program(tmp_path / "model.pt2").module):
        named = parameters(module)
        assert len(named) == len(stored) and max(map(len, named)) == aliases
    context = Context(found.weights)
    compiled = through(found.module, context, 2, "tp=2")
    (y,) = run(compiled, dict(found.inputs), promote="f64", weights=context.weights, poison_pads=True).values()
    with torch.no_grad():
        wanted = model.double()(ids).numpy()
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
    assert wanted.std() > 0
