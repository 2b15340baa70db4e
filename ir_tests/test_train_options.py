"""`dmlc compile --train`: which options go together, what is said of those that do not, and what reaches the passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dmlc.cli.compile import options_of, parser
from dmlc.cli.main import guarded
from dmlc.driver import Options, annotate, load
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.training import Training

torch.set_num_threads(1)

MODEL = """
import torch
import torch.nn.functional as F

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)

    def forward(self, x):
        return self.b(F.relu(self.a(x)))

def make():
    return Net(), (torch.randn(4, 6),)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "net.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


WRONG = {
    "without --train": ("--loss mse", "--loss is for training: add --train"),
    "an optimizer without --train": ("--optimizer sgd", "--optimizer is for training: add --train"),
    "microbatches without --train": ("--microbatches 2", "--microbatches is for training"),
    "a flag without --train": ("--nesterov", "--nesterov is for training"),
    "fp16 without --train": ("--precision fp16", "--precision fp16 is for training: add --train, or take bf16"),
    "misspelt loss": ("--train --loss cross-entrpy", "not 'cross-entrpy'; did you mean 'cross-entropy'?"),
    "misspelt optimizer": ("--train --optimizer adamv", "not 'adamv'; did you mean 'adam"),
    "misspelt option": ("--train --optimiser sgd", "unknown argument '--optimiser'; did you mean '--optimizer'?"),
    "misspelt recompute": ("--train --recompute al", "--recompute takes none, auto, all, not 'al'; did you mean 'all'?"),
    "misspelt batch norm": ("--train --batch-norm globl", "did you mean 'global'?"),
    "smoothing of another loss": ("--train --loss mse --label-smoothing 0.1", "--label-smoothing is for --loss cross-entropy"),
    "ignored target of another loss": ("--train --ignore 3", "--ignore is for --loss cross-entropy"),
    "classes of another loss": ("--train --loss bce --class-dim 1", "--class-dim is for --loss cross-entropy"),
    "too much smoothing": ("--train --loss cross-entropy --label-smoothing 1", "--label-smoothing must be at least 0 and below 1"),
    "momentum of adam": ("--train --momentum 0.9", "--momentum is for --optimizer sgd"),
    "nesterov alone": ("--train --optimizer sgd --nesterov", "--nesterov needs a --momentum above 0"),
    "betas of sgd": ("--train --optimizer sgd --betas 0.9,0.99", "--betas is for --optimizer adam or adamw"),
    "one beta": ("--train --betas 0.9", "--betas takes for example 0.9,0.999, not '0.9'"),
    "a beta of one": ("--train --betas 0.9,1.0", "--betas must be at least 0 and below 1"),
    "eps of zero": ("--train --eps 0", "--eps must be positive"),
    "no microbatches": ("--train --microbatches 0", "--microbatches must be at least 1, not 0"),
    "no loss scale": ("--train --loss-scale often", "--loss-scale takes none, dynamic or a positive number, not 'often'"),
    "negative loss scale": ("--train --loss-scale -2", "--loss-scale"),
    "broken pattern": ("--train --no-decay (", "--no-decay: '(' is not a regular expression"),
    "broken pattern of frozen ones": ("--train --freeze [", "--freeze: '[' is not a regular expression"),
    "learning rate": ("--train --lr 0.1", "--lr is given when the compiled program runs"),
    "steps": ("--train --steps=10", "--steps is given when the compiled program runs"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage_is_code_2_and_says_why(name, capsys):
    options, said = WRONG[name]
    assert guarded(["compile", "net.py:make", "-o", "out", *options.split()]) == 2
    err = capsys.readouterr().err
    assert said in err, err
    assert "Traceback" not in err and not Path("out").exists()


UNFIT = {
    "no loss": ("--train", "the model returns no loss (a float scalar) but output: tensor<4x3xf32>"),
    "freeze what is not there": ("--train --loss mse --freeze nothing", "--freeze 'nothing' matches no parameter; the model has a.weight"),
    "train what is not there": ("--train --loss mse --trainable nothing", "--trainable 'nothing' matches no parameter"),
    "freeze everything": ("--train --loss mse --freeze .", "nothing is left to train"),
    "no such loss function": ("--train --loss net.py:lose", "net.py has no function 'lose'"),
    "a loss function that takes no target": ("--train --loss net.py:make", "no example target fits the loss function"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_the_model_is_code_1(name, capsys):
    options, said = UNFIT[name]
    assert guarded(["compile", "net.py:make", "-o", "out", *options.split()]) == 1
    err = capsys.readouterr().err
    assert said in err, err
    assert "Traceback" not in err


def test_what_is_asked_for_is_in_the_text():
    words = "net.py:make --train --loss cross-entropy --label-smoothing 0.1 --ignore 7 --class-dim 1 --optimizer sgd --momentum 0.9 --nesterov --no-decay bias --microbatches 4 --loss-scale dynamic --recompute none --batch-norm rank"
    options = options_of(parser().parse(words.split()))
    module = load("net.py:make", Options()).module
    annotate(module, options)
    again = parse_module(print_module(module))
    said = again.attrs["dmlc.train"]
    assert again.attrs["dmlc.mode"] == "train" and again.attrs["dmlc.request"]["microbatches"] == 4
    assert {k: said[k] for k in ("loss", "label_smoothing", "ignore", "class_dim")} == {"loss": "cross-entropy", "label_smoothing": 0.1, "ignore": 7, "class_dim": 1}
    assert (said["optimizer"], said["momentum"], said["nesterov"], said["no_decay"]) == ("sgd", 0.9, True, "bias")
    assert (said["loss_scale"], said["recompute"], said["batch_norm"]) == ("dynamic", "none", "rank")


def test_a_text_that_says_how_it_is_trained_is_not_trained_otherwise(tmp_path, capsys):
    module = load("net.py:make", Options(train=Training(loss="mse"))).module
    annotate(module, Options(train=Training(loss="mse")))
    (tmp_path / "step.mlir").write_text(print_module(module))
    assert guarded(["compile", "step.mlir", "--train", "--loss", "bce", "-o", "out"]) == 1
    assert "the options for training are not what the text says" in capsys.readouterr().err


def test_frozen_parameters_are_marked():
    args = {a.name: a for a in load("net.py:make", Options(train=Training(loss="mse"), freeze=r"^a\.")).module.main.args}
    assert [n for n, a in args.items() if "dmlc.frozen" in a.attrs] == ["a_weight", "a_bias"]
    args = {a.name: a for a in load("net.py:make", Options(train=Training(loss="mse"), trainable="weight")).module.main.args}
    assert [n for n, a in args.items() if "dmlc.frozen" in a.attrs] == ["a_bias", "b_bias"]


def test_fp16_comes_with_a_dynamic_loss_scale() -> None:
    def scale(text: str) -> str:
        options = options_of(parser().parse(["net.py:make", "--train", "--loss", "mse", *text.split()]))
        assert options.train is not None
        return options.train.loss_scale

    assert [scale(t) for t in ("--precision fp16", "--precision fp16 --loss-scale 128", "--precision bf16")] == ["dynamic", "128", "none"]
