"""The options of `dmlc compile --train`: their parser and the request they make. Given without --train they are wrong usage."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from dmlc.cli.arguments import Parser
from dmlc.ir.location import DmlcError
from dmlc.training import Training, pattern

PAIR = 2  # --betas a,b

# option of training -> the program's own argument for it, and where it is given
RUN_TIME = ("--lr", "--weight-decay", "--max-norm", "--clip", "--steps", "--schedule", "--warmup", "--seed", "--data", "--eval-data", "--log", "--checkpoint", "--resume")


def add_options(p: Parser) -> None:
    """Defaults are None, so that what was given can be told from what was not."""
    group = p.add_argument_group("training")
    group.add_argument("--train", action="store_true", help="compile a training step: loss, gradients, optimizer")
    group.add_argument("--loss", metavar="LOSS", help="cross-entropy, mse, bce or module:function of (output, target); default: the model returns its loss")
    group.add_argument("--label-smoothing", type=float, metavar="X", help="of cross-entropy, 0 to 1")
    group.add_argument("--ignore", type=int, metavar="N", help="target that counts nothing in cross-entropy; default -100")
    group.add_argument("--class-dim", type=int, metavar="D", help="dim of the classes in the model's output; default: the last")
    group.add_argument("--optimizer", metavar="NAME", help="sgd, adam or adamw (the default)")
    group.add_argument("--momentum", type=float, metavar="X", help="of sgd")
    group.add_argument("--nesterov", action="store_const", const=True, help="of sgd")
    group.add_argument("--betas", metavar="A,B", help="of adam and adamw; default 0.9,0.999")
    group.add_argument("--eps", type=float, metavar="X", help="of adam and adamw; default 1e-8")
    group.add_argument("--no-decay", metavar="REGEX", help="parameters without weight decay")
    group.add_argument("--freeze", metavar="REGEX", help="parameters that stay as they are")
    group.add_argument("--microbatches", type=int, metavar="M", help="parts that a batch is worked through in, gradients added up; default 1")
    group.add_argument("--loss-scale", metavar="S", help="none (the default), dynamic or a number")
    group.add_argument("--recompute", metavar="HOW", help="none, auto (what memory asks for; the default) or all: values computed again in the backward pass")
    group.add_argument("--batch-norm", metavar="OVER", help="statistics over the global batch (the default) or each rank's part: global or rank")
    group.add_argument("--no-clip", dest="clip", action="store_const", const=False, help="the program never clips gradients, so that updates need not wait for the norm of them all; without a loss scale it is not computed")
    group.add_argument("--decouple", action="store_const", const=True, help="with zero=1 or 2: gather new parameters before their first use, not at the end of the step")


FIELDS = ("loss", "label_smoothing", "ignore", "class_dim", "optimizer", "momentum", "nesterov", "eps", "no_decay", "loss_scale", "recompute", "batch_norm", "decouple", "clip")


def training_of(args: argparse.Namespace) -> Training | None:
    """The training request, None without --train. fp16 comes with a dynamic loss scale unless another is asked for. Raises `DmlcError` for values and combinations that make no sense."""
    given = {name: value for name in (*FIELDS, "betas", "freeze", "microbatches") if (value := getattr(args, name)) is not None}
    if not args.train:
        if given:
            name = next(iter(given))
            raise DmlcError(f"{'--no-clip' if name == 'clip' else _option(name)} is for training: add --train")
        if args.precision == "fp16":
            raise DmlcError("--precision fp16 is for training: add --train, or take bf16")
        return None
    if args.precision == "fp16":
        given.setdefault("loss_scale", "dynamic")  # small gradients vanish in fp16 without one
    refuse_mixed(given)
    if given.get("microbatches", 1) < 1:
        raise DmlcError(f"--microbatches must be at least 1, not {given['microbatches']}")
    pattern("--freeze", given.get("freeze", ""))
    fields: dict[str, Any] = {name: given[name] for name in FIELDS if name in given}
    if "betas" in given:
        fields["beta1"], fields["beta2"] = _betas(given["betas"])
    return Training(**fields).check()


def refuse_mixed(given: dict[str, Any]) -> None:
    """An option that the chosen loss or optimizer would ignore is refused."""
    loss, optimizer = given.get("loss", ""), given.get("optimizer", Training.optimizer)
    for name in ("label_smoothing", "ignore"):
        if name in given and loss != "cross-entropy":
            raise DmlcError(f"{_option(name)} is for --loss cross-entropy")
    if "class_dim" in given and not (loss == "cross-entropy" or ":" in loss):
        raise DmlcError("--class-dim is for --loss cross-entropy or a function")
    for name in ("momentum", "nesterov"):
        if name in given and optimizer != "sgd":
            raise DmlcError(f"{_option(name)} is for --optimizer sgd")
    for name in ("betas", "eps"):
        if name in given and optimizer == "sgd":
            raise DmlcError(f"{_option(name)} is for --optimizer adam or adamw")


def parse_compilation(p: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command that compiles. Ends in a usage error for learning rate, steps and the like, which are arguments of the
    program."""
    try:
        _refuse_run_time(argv)
    except DmlcError as e:
        p.error(e.message)
    return p.parse(argv)


def _refuse_run_time(argv: Sequence[str]) -> None:
    for word in argv:
        name = word.split("=")[0]
        if name in RUN_TIME:
            raise DmlcError(f"{name} is given when the compiled program runs (dmlc run OUT {name} …), not when it is compiled")


def _betas(text: str) -> tuple[float, float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != PAIR:
        raise DmlcError(f"--betas takes for example 0.9,0.999, not '{text}'")
    return found[0], found[1]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
