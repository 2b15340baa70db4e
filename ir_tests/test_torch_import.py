"""The PyTorch door: models and programs import as what they compute, and wrong input ends in one message."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_cases import check

import dmlc.ops  # noqa: F401
from dmlc.frontend.torch_export import import_exported, import_program
from dmlc.interpret.run import run
from dmlc.ir.core import Module, Op
from dmlc.ir.location import DmlcError
from dmlc.ir.verifier import verify
from dmlc.passes.canonicalize import Canonicalize
from dmlc.passes.cse import Cse
from dmlc.passes.dce import Dce
from dmlc.passes.fold import Fold
from dmlc.passes.raise_composites import RaiseComposites
from dmlc.passes.unflatten import Unflatten
from dmlc.passes.unfuse_projections import UnfuseProjections
from dmlc.passmanager.context import Context

MODELS = Path(__file__).parent.parent / "models"
NAMES = ("mlp", "gpt2", "llama", "bert", "vit", "resnet")
PASSES = (Canonicalize, Cse, Dce, Fold, Canonicalize, RaiseComposites, Unflatten, UnfuseProjections, Canonicalize, Cse, Dce)

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def imported():
    """Each tiny model imported once, with its outputs in float64."""
    made = {}

    def get(name: str):
        if name not in made:
            result = import_program(f"{MODELS / name}.py:tiny")
            made[name] = result, result.reference(result.inputs, double=True)
        return made[name]

    return get


def simplified(result) -> Module:
    module, context = result.module.clone(), Context(result.weights)
    for make in PASSES:
        make().run(module, context)
        verify(module)
    return module


def error(expected: dict, actual: dict) -> float:
    assert list(expected) == list(actual)
    return max(float(np.abs(actual[k] - v).max() / np.abs(v).max()) for k, v in expected.items())


def ops(module: Module, name: str) -> list[Op]:
    return [op for op in module.main.ops() if op.name == f"dmlc.{name}"]


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("name", NAMES)
def test_model_equals_eager(imported, name):
    result, expected = imported(name)
    verify(result.module)
    actual = run(result.module, result.inputs, promote="f64", weights=result.weights)
    assert error(expected, actual) < 1e-9
    assert all(v.std() > 0.05 for v in expected.values()), "an output that hardly varies proves nothing"


@pytest.mark.parametrize("name", NAMES)
def test_simplified_model_equals_eager(imported, name):
    result, expected = imported(name)
    actual = run(simplified(result), result.inputs, promote="f64", weights=result.weights)
    assert error(expected, actual) < 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_output_depends_on_every_input(imported, name):
    result, expected = imported(name)
    for key, value in result.inputs.items():
        other = {**result.inputs, key: np.flip(value, -1).copy()}
        assert error(expected, run(result.module, other, promote="f64", weights=result.weights)) > 1e-4


def test_gpt2_after_raising(imported):
    module = simplified(imported("gpt2")[0])
    attention = ops(module, "attention")
    assert [op.attrs.get("causal") for op in attention] == [True, True]
    assert all(len(op.operands) == 3 for op in attention), "the causal masks are gone"
    assert len(ops(module, "gelu")) == 2 and len(ops(module, "layer_norm")) == 5
    products = ops(module, "matmul") + ops(module, "linear")
    assert len(products) == 2 * (3 + 1 + 2) + 1, "q, k, v are projections of their own"
    assert all(op.result.tensor.rank == 3 for op in products), "batch and sequence are not flattened"
    assert not ops(module, "slice")


def test_llama_after_raising(imported):
    module = simplified(imported("llama")[0])
    attention = ops(module, "attention")
    assert [op.attrs.get("causal") for op in attention] == [True, True]
    assert all(op.operands[1].shape[1] == 2 and op.operands[0].shape[1] == 8 for op in attention), "key heads are not repeated"
    assert len(ops(module, "rms_norm")) == 5
    assert not any(op.name == "dmlc.broadcast" for op in module.main.ops())


def test_bert_and_vit_after_raising(imported):
    bert, vit = simplified(imported("bert")[0]), simplified(imported("vit")[0])
    masks = [op.operands[3] for op in ops(bert, "attention")]
    assert [m.shape for m in masks] == [(6, 1, 1, 12)] * 2, "the padding mask is neither repeated nor looked up"
    assert not ops(bert, "index") and not ops(bert, "iota")
    assert [len(op.operands) for op in ops(vit, "attention")] == [3, 3]


def test_names_locations_and_batch(imported):
    module = imported("gpt2")[0].module
    arg = module.main.arg("transformer_h_0_mlp_c_fc_weight")
    assert arg.attrs["dmlc.names"] == ("transformer.h.0.mlp.c_fc.weight",) and arg.attrs["dmlc.role"] == "param"
    product = next(op for op in module.main.ops() if arg in op.operands)
    assert product.attrs["dmlc.name"] == "transformer.h.0.mlp.c_fc"
    assert product.loc.name == "transformers/pytorch_utils.py" and product.loc.line > 0
    assert module.main.arg("input_ids").attrs["dmlc.batch_dim"] == 0
    assert module.main.result_attrs == [{"dmlc.name": "output"}]


def test_tied_weights_are_one_argument(imported):
    main = imported("gpt2")[0].module.main
    tied = [a for a in main.args if len(a.attrs.get("dmlc.names", ())) > 1]
    assert [a.attrs["dmlc.names"] for a in tied] == [("transformer.wte.weight", "lm_head.weight")]
    assert {op.name for op in tied[0].users} == {"dmlc.embedding", "dmlc.linear"}


def test_ties_survive_a_file_and_equal_values_are_no_tie(tmp_path):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (torch.nn.Linear(4, 4, bias=False) for _ in range(3))
            self.b.weight = self.a.weight
            self.c.weight = torch.nn.Parameter(self.a.weight.detach().clone())

        def forward(self, x):
            return self.c(self.b(self.a(x)))

    program = torch.export.export(Net(), (torch.randn(2, 4),))
    torch.export.save(program, tmp_path / "net.pt2")
    result = import_program(tmp_path / "net.pt2")
    names = [a.attrs["dmlc.names"] for a in result.module.main.args if a.attrs["dmlc.role"] == "param"]
    assert names == [("a.weight", "b.weight"), ("c.weight",)]
    assert error(result.reference(result.inputs), run(result.module, result.inputs, weights=result.weights)) < 1e-5


def test_free_batch_is_bound(imported):
    result = import_program(f"{MODELS / 'resnet'}.py:tiny", dims={"batch": 3})
    assert result.dims == {"batch": 3} and result.module.main.arg("x").shape[0] == 3
    expected = result.reference(result.inputs, double=True)
    assert error(expected, run(result.module, result.inputs, promote="f64", weights=result.weights)) < 1e-9
    with pytest.raises(DmlcError, match="no free size 'bach'; did you mean 'batch'"):
        import_program(f"{MODELS / 'resnet'}.py:tiny", dims={"bach": 3})
    with pytest.raises(DmlcError, match="outside the range"):
        import_program(f"{MODELS / 'resnet'}.py:tiny", dims={"batch": 0})


# ---------------------------------------------------------------- single operators


F = torch.nn.functional
X, Y = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0)), torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1))
N = torch.tensor([[8, -8, 7, -7]]), torch.tensor([[-3, 3, -2, 2]])
IMAGE = torch.randn(2, 4, 7, 6, generator=torch.Generator().manual_seed(2))

OPERATORS = {
    "arithmetic": lambda x, y: (x + 2 * y, torch.add(x, y, alpha=3), torch.sub(x, y, alpha=0.5), torch.rsub(x, y, alpha=2), 1 - x, x / y, x**2, 2**x, x.square()),
    "unary": lambda x, y: (x.exp(), x.abs().log10(), x.erfc(), F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.elu(x, 0.7), F.celu(x, 0.7), F.selu(x), F.leaky_relu(x, 0.2)),
    "more_unary": lambda x, y: (F.softplus(x, 2.0), F.logsigmoid(x), F.hardsigmoid(x), F.hardswish(x), F.mish(x), F.relu6(3 * x), x.round(), x.trunc(), x.sign(), torch.round(x, decimals=1)),
    "clamps": lambda x, y: (x.clamp(-0.5), x.clamp(max=0.5), x.clamp(-0.1, 0.1), x.clamp(y, y + 1), F.hardtanh(x), x.clamp_min(0.3)),
    "choices": lambda x, y: (torch.where(x > y, x, 0.0), x.masked_fill(x > 0, 1.5), torch.where(x > 0, 1, 2), torch.nan_to_num(x / (x > 0), 0.5, 9.0, -9.0), torch.maximum(x, y), torch.lerp(x, y, 0.3)),
    "comparisons": lambda x, y: (x < y, x.ge(0), x == 0.5, (x > 0) & (y > 0), torch.logical_or(x > 0, y > 0), (x > 0) ^ (y > 0), ~(x > 0), (x > 0) == (y > 0)),
    "addcmul": lambda x, y: (torch.addcmul(x, x, y, value=0.3), torch.addcdiv(x, x, y.abs() + 1, value=2.0)),
    "views": lambda x, y: (x.view(12, 6), x.reshape(-1), x.flatten(1), x.unflatten(2, (2, 3)), x[:, None], x.squeeze(), x.unsqueeze(-1), x.expand(2, 3, 4, 6), x.view_as(y)),
    "moves": lambda x, y: (x.transpose(0, 2), x.permute(2, 0, 1), x.mT, x.movedim(0, -1), x.movedim((0, 1), (2, 0)), x.flip(0, -1), x.roll(1, 2), x.roll((1, -2), (0, 1)), x.tril(1), x.triu(-1)),
    "slices": lambda x, y: (x[1:], x[:, ::2], x[..., -2:], x[:, 1], x[:, -1], x.narrow(2, 1, 3), *x.split(3, -1), *x.split([1, 3], 1), *x.chunk(2, 2), *x.unbind(0)),
    "joins": lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y], -1), F.pad(x, (1, 2, 0, 1)), F.pad(x, (1, 2), value=3.0), F.pad(x, (2, 1), mode="reflect"), F.pad(x, (1, 1), mode="replicate"), F.pad(x, (1, 1), mode="circular")),
    "repeats": lambda x, y: (x.repeat(2, 1, 3), x.repeat(2, 1, 1, 1), x.repeat_interleave(3, 1), x.repeat_interleave(2), x.tile(2), x.unfold(2, 3, 2)),
    "reductions": lambda x, y: (x.sum(), x.sum(1), x.mean((0, 2), keepdim=True), x.prod(1), x.amax(2), x.amin((0, 1)), x.max(), (x > 0).any(1), (x > 0).all(), x.argmax(1), x.argmax(), x.argmin(2, keepdim=True)),
    "statistics": lambda x, y: (x.var(1), x.std(dim=-1, correction=0), *torch.var_mean(x, (0, 1)), x.norm(dim=1), x.norm(p=1, dim=2), x.norm(p=float("inf"), dim=2), x.norm(p=3, dim=0), F.normalize(x, dim=1), x.logsumexp(1)),
    "scans": lambda x, y: (x.cumsum(1), x.cumprod(2), x.diff(dim=1), x.diff(n=2, dim=2, prepend=y), *x.max(1), *x.min(2, keepdim=True), *x.topk(2, 1), *x.sort(2, descending=True), x.argsort(1)),
    "soft": lambda x, y: (x.softmax(1), F.log_softmax(x, -1), F.glu(x, 2), F.softmin(x, 1)),
    "products": lambda x, y: (x @ y.mT, x @ y[0].mT, x[0] @ y[0, 0], y[0, 0] @ y[0].mT, torch.dot(x[0, 0], y[0, 0]), torch.bmm(x, y.mT), torch.outer(x[0, 0], y[0, 0])),
    "products_with_addend": lambda x, y: (torch.addmm(x[0, :, :4], x[0], y[0].mT, beta=0.5, alpha=2), torch.baddbmm(x[:, :, :4], x, y.mT), torch.addmv(x[0, :, 0], x[0], y[0, 0])),
    "einsum": lambda x, y: (torch.einsum("bij,bkj->bik", x, y), torch.einsum("...ij,...ij->...i", x, y), torch.einsum("bij,bij", x, y), torch.einsum("b...,b...->...b", x, y)),
    "sources": lambda x, y: (torch.arange(2, 9, 3) + x[0, 0, :3], torch.arange(0, 1, 0.25), torch.linspace(0, 1, 5), torch.eye(3, 4), torch.zeros_like(x), torch.ones(2), torch.full((2,), 7), x.new_ones(3), torch.tensor(3.0) + x),
    "casts": lambda x, y: (x.to(torch.float64), (x * 3).int(), (x > 0).float(), (x > 0).long() + 1, x.bool(), x.half().float()),
    "losses": lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y, reduction="sum"), F.smooth_l1_loss(x, y, reduction="none"), F.huber_loss(x, y, delta=0.4)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    check(OPERATORS[name], X, Y)


def test_division_and_remainder_of_negative_integers():
    def function(a, b):
        return torch.floor_divide(a, b), torch.div(a, b, rounding_mode="trunc"), torch.remainder(a, b), torch.fmod(a, b)

    check(function, *N)


def test_lookups():
    ids = torch.tensor([[0, 2, -1], [1, 1, -2]])

    def function(x, ids):
        at = ids % 3
        picked = (x[ids], x[:, ids], x[:, at, ids], x[at, :, ids], x.gather(1, at[None].expand(3, -1, -1)), x.index_select(2, at[0]), F.one_hot(at, 4))
        written = (x.scatter(1, at[None], 2.0), x.scatter_add(1, at[None], x), x.index_put((ids, ids), x[:2, :3]), x.slice_scatter(x[:, :2] * 2, 1, 1, 3), x.select_scatter(x[0], 0, 1))
        return *picked, *written

    check(function, X, ids)


def test_image_operators():
    weight, transposed = torch.randn(6, 2, 3, 3), torch.randn(4, 3, 3, 2)

    def function(x, w, t):
        convolved = (F.conv2d(x, w, torch.ones(6), groups=2), F.conv2d(x, w, stride=2, padding=1, dilation=2, groups=2), F.conv2d(x, w, padding="same", groups=2), F.conv2d(x[0], w, groups=2))
        turned = (F.conv_transpose2d(x, t, torch.ones(3), stride=2, padding=1, output_padding=1), F.conv1d(x[:, :, 0], w[:, :, 0], groups=2))
        pooled = (F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(x, 2, count_include_pad=False), F.max_pool1d(x[0], 2))
        adaptive = (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (7, 3)), F.adaptive_avg_pool2d(x, (3, 4)))
        return *convolved, *turned, *pooled, *adaptive, F.pixel_shuffle(x, 2), F.pixel_unshuffle(x[:, :, :6], 2)

    check(function, IMAGE, weight, transposed)


@pytest.mark.parametrize("size", [{"scale_factor": 2}, {"size": (5, 9)}, {"scale_factor": 1.5}])
def test_interpolation(size):
    def function(x):
        smooth = [F.interpolate(x, mode=mode, align_corners=corners, **size) for mode in ("bilinear", "bicubic") for corners in (False, True)]
        return F.interpolate(x, **size), *smooth

    check(function, IMAGE)


def test_norms():
    def function(x, w):
        return F.layer_norm(x, (4, 6), eps=0.1), F.rms_norm(x, (6,), w, eps=0.01), F.rms_norm(x, (4, 6), eps=0.1), F.group_norm(x, 2, w[:4], w[:4]), F.instance_norm(x)

    check(function, X, torch.rand(6))


def test_attention_forms():
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8)
    seen = torch.rand(2, 1, 5, 7) > 0.3
    seen[:, :, 0] = False  # a row that sees nothing is 0

    def function(q, k, seen):
        plain = F.scaled_dot_product_attention(q, k, k), F.scaled_dot_product_attention(q, q, q, is_causal=True), F.scaled_dot_product_attention(q, k, k, attn_mask=seen, scale=0.3)
        float_mask = F.scaled_dot_product_attention(q, k, k, attn_mask=q[0, 0, :, :7])
        grouped = F.scaled_dot_product_attention(q, k[:, :2], k[:, :2], enable_gqa=True)
        three = F.scaled_dot_product_attention(q[0], k[0], k[0])
        viewed = F.scaled_dot_product_attention(q, k, k).transpose(1, 2).reshape(2, 5, 32).view(-1, 32)
        return *plain, float_mask, grouped, three, viewed

    module = check(function, q, k, seen)
    assert len(ops(module, "attention")) == 7


def test_layers_that_hide_their_operators():
    net = torch.nn.Sequential(torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True), torch.nn.Linear(16, 3))
    assert len(ops(check(net, torch.randn(2, 5, 16)), "attention")) == 1


def test_fused_projection_of_multihead_attention_comes_apart():
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    torch.nn.init.normal_(layer.in_proj_bias)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = layer

        def forward(self, x):
            return self.attn(x, x, x, need_weights=False)[0]

    result = import_exported(torch.export.export(Net().eval(), (torch.randn(2, 5, 16),)), eager=Net().eval())
    module = simplified(result)
    assert len(ops(module, "linear")) == 4 and not ops(module, "slice")
    assert error(result.reference(result.inputs, double=True), run(module, result.inputs, promote="f64", weights=result.weights)) < 1e-9


def test_losses_of_classes():
    x, t = torch.randn(6, 9), torch.tensor([0, 8, -100, 3, -100, 1])

    def function(x, t):
        image = x[:, :, None].expand(6, 9, 2), t[:, None].expand(6, 2)
        return F.cross_entropy(x, t), F.cross_entropy(x, t, reduction="sum", label_smoothing=0.1), F.cross_entropy(x, t, reduction="none"), F.cross_entropy(*image), F.nll_loss(F.log_softmax(x, 1), t)

    check(function, x, t)


def test_structured_outputs_are_named():
    module = check(lambda x, y: {"sum": x + y, "parts": [x, (y, x - y)]}, X, Y)
    assert [a["dmlc.name"] for a in module.main.result_attrs] == ["sum", "parts.0", "parts.1.0", "parts.1.1"]


# ---------------------------------------------------------------- training


def test_running_statistics_are_updates():
    net = torch.nn.Sequential(torch.nn.Conv2d(4, 5, 3), torch.nn.BatchNorm2d(5, momentum=0.3)).train()
    result = import_exported(torch.export.export(net, (IMAGE,)), eager=None)
    updates = {a["dmlc.updates"]: i for i, a in enumerate(result.module.main.result_attrs) if "dmlc.updates" in a}
    assert set(updates) == {"_1_running_mean", "_1_running_var", "_1_num_batches_tracked"}
    outputs = list(run(result.module, result.inputs, promote="f64", weights=result.weights).values())
    double = torch.nn.Sequential(*(layer for layer in net)).double().train()
    expected = double(IMAGE.double()).detach()
    np.testing.assert_allclose(outputs[next(i for i, a in enumerate(result.module.main.result_attrs) if a["dmlc.name"] == "output")], expected, atol=1e-9)
    np.testing.assert_allclose(outputs[updates["_1_running_mean"]], net[1].running_mean, atol=1e-7)
    np.testing.assert_allclose(outputs[updates["_1_running_var"]], net[1].running_var, atol=1e-6)


def test_dropout_in_training_takes_a_seed():
    net = torch.nn.Sequential(torch.nn.Dropout(0.25), torch.nn.Linear(6, 6), torch.nn.Dropout(0.5)).train()
    module = import_exported(torch.export.export(net, (X,))).module
    first, second = ops(module, "dropout")
    assert [a.name for a in module.main.args if a.attrs["dmlc.role"] == "seed"] == ["rng_seed", "rng_step"]
    assert (first.attrs["p"], second.attrs["p"]) == (0.25, 0.5) and first.attrs.get("stream", 0) != second.attrs.get("stream", 0)
    assert not ops(import_exported(torch.export.export(net.eval(), (X,))).module, "dropout")


# ---------------------------------------------------------------- wrong input


def test_all_unsupported_operators_at_once():
    def function(x):
        return torch.linalg.inv(x), torch.special.bessel_j0(x), torch.linalg.inv(x + 1)

    with pytest.raises(DmlcError) as caught:
        check(function, X[:, :, :4])
    text = str(caught.value)
    assert "2 operators are not supported: aten.linalg_inv.default, aten.special_bessel_j0.default" in text
    assert "aten.linalg_inv.default at" in text and "torch_cases.py" in text and "and 1 more" in text


def test_result_sizes_that_depend_on_data():
    with pytest.raises(DmlcError, match="torch.export cannot trace|not known|depends on data"):
        check(lambda x: x[x > 0], X)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.pt2", "no such file"),
        ("missing.py:make", "no such file"),
        ("nothing", "expected a .pt2 file"),
        (f"{MODELS / 'mlp'}.py:mak", "has no function 'mak'; did you mean 'make'"),
        ("dmlc.models.none:make", "cannot be imported"),
    ],
)
def test_wrong_sources(source, message):
    with pytest.raises(DmlcError, match=message):
        import_program(source)


def test_damaged_files(tmp_path):
    for i, content in enumerate([b"", b"not a program", b"PK\x03\x04" + bytes(50)]):
        path = tmp_path / f"{i}.pt2"
        path.write_bytes(content)
        with pytest.raises(DmlcError, match="not a program saved by torch.export.save"):
            import_program(path)
    broken = tmp_path / "model.py"
    broken.write_text("def make(:\n")
    with pytest.raises(DmlcError, match=r"model.py:1:"):
        import_program(f"{broken}:make")
    broken.write_text("def make():\n    return 3\n")
    with pytest.raises(DmlcError, match="must return"):
        import_program(f"{broken}:make")


def test_weights_on_the_meta_device():
    from dmlc.models import llama

    module, args = llama.build(64, 1, 8, 2, 100, 257, 12, 6, device="meta")
    with torch.no_grad():
        result = import_exported(torch.export.export(module, args))
    counts = Counter(op.name for op in result.module.main.ops())
    assert counts["dmlc.linear"] == 8
    with pytest.raises(DmlcError, match="meta device"):
        result.weights.get("model.norm.weight")
