"""Models imported to be trained: dropout, running statistics, frozen, unused and tied parameters, losses; in ONNX what is trainable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx_files import model_of
from torch import nn
from torch.nn import functional as F

import dmlc.ops  # noqa: F401
from dmlc.driver import Loaded, Options, load
from dmlc.frontend.onnx.api import import_onnx
from dmlc.frontend.torch_export import import_exported
from dmlc.frontend.torch_training import TrainingStep
from dmlc.interpret.run import run
from dmlc.ir.core import Module
from dmlc.ir.verifier import verify
from dmlc.training import Training, evaluation_form

torch.set_num_threads(1)
node = helper.make_node
HERE = Path(__file__).name


class Net(nn.Module):
    """x [8, 6] -> logits [8, 4]: batch norm, dropout, a frozen bias, a layer that is never used, a weight that serves twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.25)
        self.b, self.c, self.unused = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False), nn.Linear(2, 2)
        self.c.weight = self.b.weight
        self.head = nn.Linear(5, 4)
        self.a.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.c(self.b(self.drop(F.relu(self.norm(self.a(x)))))))


class WithLoss(Net):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        logits = super().forward(x)
        return {"logits": logits, "size": logits.square().mean(), "loss": F.cross_entropy(logits, y)}


class Tuple(Net):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        logits = super().forward(x)
        return logits, F.cross_entropy(logits, y)


def net():
    torch.manual_seed(0)
    return Net(), (torch.randn(8, 6),)


def with_loss():
    torch.manual_seed(0)
    return WithLoss(), (torch.randn(8, 6), torch.randint(0, 4, (8,)))


def pair():
    torch.manual_seed(0)
    return Tuple(), (torch.randn(8, 6), torch.randint(0, 4, (8,)))


def own_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 2 * F.cross_entropy(output, target)


def distance(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.l1_loss(output, target)


def imported(function: str, **training) -> Loaded:
    loaded = load(f"{Path(__file__)}:{function}", Options(train=Training(**training)))
    for each in (loaded, loaded.evaluation):
        assert each is not None
        verify(each.module)
    return loaded


def names(module: Module) -> list[str]:
    return [op.name for op in module.main.ops()]


def updates(module: Module) -> list[str]:
    return [a["dmlc.updates"] for a in module.main.result_attrs if "dmlc.updates" in a]


# ---------------------------------------------------------------- PyTorch


def test_training_and_evaluation_mode_are_two_programs():
    loaded = imported("net", loss="cross-entropy")
    trained, evaluated = loaded.module, loaded.evaluation.module  # type: ignore[union-attr]
    assert {"dmlc.dropout", "dmlc.batch_norm_train", "dmlc.running_average"} <= set(names(trained))
    assert sorted(updates(trained)) == ["norm_num_batches_tracked", "norm_running_mean", "norm_running_var"]
    assert "dmlc.batch_norm" in names(evaluated) and not {"dmlc.dropout", "dmlc.batch_norm_train"} & set(names(evaluated)) and not updates(evaluated)


def test_the_state_is_complete_and_named():
    loaded = imported("net", loss="cross-entropy")
    args = {a.name: a for a in loaded.module.main.args if a.attrs["dmlc.role"] in ("param", "buffer")}
    assert {n for a in args.values() for n in a.attrs["dmlc.names"]} == set(net()[0].state_dict())
    assert args["b_weight"].attrs["dmlc.names"] == ("b.weight", "c.weight") and len(args["b_weight"].users) == 2
    assert [n for n, a in args.items() if "dmlc.frozen" in a.attrs] == ["a_bias"]
    assert not args["unused_weight"].uses and any("unused.weight, unused.bias" in r.text for r in loaded.remarks)


def test_running_statistics_and_outputs_are_those_of_pytorch():
    loaded = imported("with_loss")
    eager, (x, y) = with_loss()
    eager.drop.p = 0.0
    without = evaluation_like_training(loaded.module)
    eager.double().train()
    wanted = eager(x.double(), y)["loss"]
    found = run(without, {"x": x.numpy(), "y": y.numpy()}, promote="f64", weights=loaded.weights)
    assert abs(found["loss"] - float(wanted.detach())) < 1e-9
    assert np.abs(found["norm.running_var.new"] - eager.norm.running_var.numpy()).max() < 1e-7  # type: ignore[union-attr]


def evaluation_like_training(module: Module) -> Module:
    """The training program with its dropout left out."""
    copy = module.clone()
    for op in copy.main.ops():
        if op.name == "dmlc.dropout":
            op.result.replace_uses(op.operands[0])
    return copy


@pytest.mark.parametrize("function", ["with_loss", "pair"])
def test_the_loss_that_a_model_returns_is_called_loss(function):
    loaded = imported(function)
    for module in (loaded.module, loaded.evaluation.module):  # type: ignore[union-attr]
        at = [i for i, a in enumerate(module.main.result_attrs) if a.get("dmlc.name") == "loss"]
        assert len(at) == 1 and module.main.results[at[0]].op.name == "dmlc.div"  # the cross entropy's sum over its count


@pytest.mark.parametrize(("loss", "dtype", "shape"), [("own_loss", "i64", (8,)), ("distance", "f32", (8, 4))])
def test_a_loss_of_ones_own_is_traced_with_the_model(loss, dtype, shape):
    loaded = imported("net", loss=f"{Path(__file__)}:{loss}")
    target = loaded.module.main.arg("target")
    assert (target.dtype, target.shape, target.attrs["dmlc.batch_dim"]) == (dtype, shape, 0)
    assert loaded.module.main.arg("a_weight").attrs["dmlc.names"] == ("a.weight",) and loaded.module.main.arg("x").shape == (8, 6)
    eager, (x,) = net()
    inputs = {"x": x.numpy(), "target": loaded.examples["target"]}
    found = run(loaded.evaluation.module, inputs, promote="f64", weights=loaded.evaluation.weights)  # type: ignore[union-attr]
    wanted = globals()[loss](eager.eval().double()(x.double()), torch.as_tensor(inputs["target"]))
    assert abs(found["loss"] - float(wanted.detach())) < 1e-9


def test_inputs_that_index_say_how_far():
    loaded = imported("with_loss")
    assert loaded.module.main.arg("y").attrs["dmlc.range"] == (0, 4)


class Attending(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5 if self.training else 0.0)


def test_dropout_inside_attention_is_spelled_out_in_training_only():
    q = torch.randn(2, 3, 4, 8)
    for train, wanted in ((True, "dmlc.dropout"), (False, "dmlc.attention")):
        program = torch.export.export(Attending().train(train), (q, q, q))
        assert wanted in names(import_exported(program, train=train).module)


def test_a_program_exported_in_evaluation_mode_is_told(tmp_path):
    module, args = net()
    torch.export.save(torch.export.export(module.eval(), args), tmp_path / "net.pt2")
    loaded = load(str(tmp_path / "net.pt2"), Options(train=Training(loss="cross-entropy")))
    (said,) = [r.text for r in loaded.remarks if "evaluation mode" in r.text]
    assert "1 dropout and 1 batch norm stay as in evaluation" in said
    assert "dmlc.dropout" not in names(loaded.module) and loaded.module.main.arg("a_bias").attrs["dmlc.role"] == "param"


def test_a_program_exported_in_training_mode_is_evaluated_with_running_statistics(tmp_path):
    module, args = net()
    torch.export.save(torch.export.export(module.train(), args), tmp_path / "net.pt2")
    loaded = load(str(tmp_path / "net.pt2"), Options(train=Training(loss="cross-entropy")))
    assert not any("evaluation mode" in r.text for r in loaded.remarks)
    form = evaluation_form(loaded.module)
    verify(form)
    wanted = module.eval().double()(args[0].double()).detach().numpy()
    found = run(form, {"x": args[0].numpy()}, promote="f64", weights=loaded.weights)
    assert np.abs(found["output"] - wanted).max() < 1e-7


# ---------------------------------------------------------------- ONNX


def weights(**arrays: np.ndarray) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]


def trainable_model(tmp_path: Path, training: int = 1, ratio: float = 0.5) -> Path:
    """x [4, 6] -> y [4, 3]: matrix product, a causal-like mask, batch norm and dropout in training form, a bias."""
    rng = np.random.default_rng(0)
    mask = np.where(np.arange(5) < 4, 0.0, -np.inf)
    constants = {"w": rng.standard_normal((6, 5)), "mask": mask, "s": np.ones(5), "b": np.zeros(5), "m": np.zeros(5), "v": np.ones(5), "u": rng.standard_normal((5, 3)), "bias": np.ones(3)}
    nodes = [
        node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "mask"], ["k"]), node("Softmax", ["k"], ["p"]),
        node("BatchNormalization", ["p", "s", "b", "m", "v"], ["n", "rm", "rv"] if training else ["n"], training_mode=training, momentum=0.8),
        node("Dropout", ["n", "ratio", "mode"], ["d"]), node("MatMul", ["d", "u"], ["z"]), node("Add", ["z", "bias"], ["y"]),
    ]  # fmt: skip
    model = model_of(nodes, {"x": (4, 6)}, ["y"], {}, opset=15)
    scalars = [numpy_helper.from_array(np.float32(ratio), "ratio"), numpy_helper.from_array(np.bool_(training), "mode")]
    model.graph.initializer.extend([*weights(**constants), *scalars])
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_onnx_roles(tmp_path):
    result = import_onnx(trainable_model(tmp_path), mode="train")
    roles = {a.attrs["dmlc.names"][0]: a.attrs["dmlc.role"] for a in result.module.main.args if "dmlc.names" in a.attrs}
    assert roles["mask"] == "const"  # infinite: nothing that a gradient moves
    assert {n for n, r in roles.items() if r == "param"} == {"w", "s", "b", "u", "bias"} and {n for n, r in roles.items() if r == "buffer"} == {"m", "v"}
    assert set(result.trainable) == {"w", "s", "b", "u", "bias"}


def test_onnx_training_forms(tmp_path):
    trained = import_onnx(trainable_model(tmp_path), mode="train").module
    evaluated = import_onnx(trainable_model(tmp_path), mode="eval").module
    for module in (trained, evaluated):
        verify(module)
    (drop,) = [op for op in trained.main.ops() if op.name == "dmlc.dropout"]
    assert drop.attrs["p"] == 0.5 and "dmlc.batch_norm_train" in names(trained) and updates(trained) == ["m", "v"]
    assert "dmlc.batch_norm" in names(evaluated) and not {"dmlc.dropout", "dmlc.batch_norm_train"} & set(names(evaluated)) and not updates(evaluated)


def test_onnx_inference_forms_stay_and_are_told(tmp_path):
    result = import_onnx(trainable_model(tmp_path, training=0), mode="train")
    said = " ".join(r.text for r in result.remarks)
    assert "batch norm (1 node) keeps its running statistics" in said and "dropout (1 node) leaves everything in" in said
    assert "dmlc.batch_norm" in names(result.module) and not {"dmlc.dropout", "dmlc.batch_norm_train"} & set(names(result.module))


def test_onnx_dropout_whose_mode_is_an_input(tmp_path):
    nodes = [node("Dropout", ["x", "ratio", "mode"], ["d", "mask"]), node("Identity", ["d"], ["y"])]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6]), helper.make_tensor_value_info("mode", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 6]), helper.make_tensor_value_info("mask", TensorProto.BOOL, [4, 6])],
        [numpy_helper.from_array(np.float32(0.25), "ratio")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8), tmp_path / "drop.onnx")
    result = import_onnx(tmp_path / "drop.onnx", mode="train")
    x = np.ones((4, 6), np.float32)
    found = run(result.module, {"x": x, "mode": np.bool_(True)}, seed=3)
    assert 0 < found["mask"].sum() < 24 and np.allclose(found["y"], np.where(found["mask"], 1 / 0.75, 0))
    assert names(import_onnx(tmp_path / "drop.onnx", mode="eval").module) == ["dmlc.full", "func.return"]


def test_onnx_trainable_by_name(tmp_path):
    loaded = load(str(trainable_model(tmp_path)), Options(train=Training(loss="cross-entropy"), trainable="^(u|bias)$"))
    roles = {a.attrs["dmlc.names"][0]: a.attrs["dmlc.role"] for a in loaded.module.main.args if "dmlc.names" in a.attrs}
    assert [n for n, r in roles.items() if r == "param"] == ["u", "bias"] and roles["m"] == "buffer"


class Decoder(nn.Module):
    """Its second input is called as the loss calls what it compares with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return x + self.table(target)


def decoder():
    torch.manual_seed(0)
    return Decoder(), (torch.randn(8, 4), torch.arange(8) % 5)


def test_a_model_may_have_an_input_called_target():
    loaded = imported("decoder", loss="cross-entropy")
    step = TrainingStep(loaded.reference, Training(loss="cross-entropy").to_attr())  # type: ignore[arg-type]
    numbers, _ = step({**loaded.examples, "target_1": np.zeros(8, np.int64)}, 0.1, 0.0, 1.0)
    module, (x, target) = decoder()
    assert numbers["loss"] == pytest.approx(float(F.cross_entropy(module(x, target), torch.zeros(8, dtype=torch.int64))), rel=1e-6)
