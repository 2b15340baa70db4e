"""What `dmlc compile --train` asks for, as the module attributes that the passes read, and the evaluation program beside the training program."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import Builder
from dmlc.ir.core import BlockArgument, Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.suggest import did_you_mean
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context

LOSSES = ("cross-entropy", "mse", "bce")
OPTIMIZERS = ("sgd", "adam", "adamw")
RECOMPUTE = ("none", "auto", "all")
BATCH_NORM = ("global", "rank")
HELD = ("param", "buffer", "const")  # roles of what lies in the weights' file


@dataclass(frozen=True)
class Training:
    """A training request. `loss` empty: the model returns its loss; `class_dim` is the dim of the classes in the model's output;
    `no_decay` a regular expression over parameters' names; `loss_scale` none, dynamic or a number's text; `decouple`: new parameters are
    gathered in the next step, before their first use; without `clip` no update waits for the norm of all gradients, which the
    step then computes for a loss scale only."""

    loss: str = ""
    label_smoothing: float = 0.0
    ignore: int = -100
    class_dim: int = -1
    optimizer: str = "adamw"
    momentum: float = 0.0
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    no_decay: str = ""
    loss_scale: str = "none"
    recompute: str = "auto"
    batch_norm: str = "global"
    decouple: bool = False
    clip: bool = True

    def to_attr(self) -> AttrDict:
        """The module attribute `dmlc.train`. A loss function of the user's own is part of the imported model: its attribute is empty."""
        return AttrDict({**asdict(self), "loss": "" if ":" in self.loss else self.loss})

    def check(self) -> Training:
        """Itself. Raises `DmlcError` for values that no program could be trained with."""
        _known("--loss", self.loss, ("", *LOSSES), "or module:function", lambda text: ":" in text)
        _known("--optimizer", self.optimizer, OPTIMIZERS)
        _known("--recompute", self.recompute, RECOMPUTE)
        _known("--batch-norm", self.batch_norm, BATCH_NORM)
        _known("--loss-scale", self.loss_scale, ("none", "dynamic"), "or a positive number", _is_positive)
        for name in ("label_smoothing", "momentum", "beta1", "beta2"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise DmlcError(f"{_option(name)} must be at least 0 and below 1, not {value}")
        if not (self.eps > 0 and math.isfinite(self.eps)):
            raise DmlcError(f"--eps must be positive, not {self.eps}")
        if self.nesterov and not self.momentum:
            raise DmlcError("--nesterov needs a --momentum above 0")
        pattern("--no-decay", self.no_decay)
        return self


def _option(field: str) -> str:
    return "--betas" if field.startswith("beta") else f"--{field.replace('_', '-')}"


def _known(option: str, value: str, known: tuple[str, ...], more: str = "", also: Callable[[str], bool] = lambda text: False) -> None:
    if value in known or also(value):
        return
    named = [k for k in known if k]
    raise DmlcError(f"{option} takes {', '.join(named)}{f' {more}' if more else ''}, not '{value}'{did_you_mean(value, named)}")


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def pattern(option: str, text: str) -> re.Pattern[str]:
    """A regular expression that the user gave. Raises `DmlcError` when it is none."""
    try:
        return re.compile(text)
    except re.error as e:
        raise DmlcError(f"{option}: '{text}' is not a regular expression: {e}") from None


# ---------------------------------------------------------------- the imported program


def names_of(arg: BlockArgument) -> tuple[str, ...]:
    """The model's own names of an argument: several when weights are tied."""
    return tuple(arg.attrs.get("dmlc.names") or (arg.attrs.get("dmlc.name", arg.name),))


def freeze(module: Module, trainable: str | None, frozen: str | None) -> None:
    """Mark the parameters that training leaves as they are: those that `frozen` matches, and where `trainable` is given all it does not match.
    Raises `DmlcError` for an expression that matches no parameter, and when none is left to train."""
    params = [a for a in module.main.args if a.attrs.get("dmlc.role") == "param"]
    for option, text, keeps in (("--freeze", frozen, False), ("--trainable", trainable, True)):
        if text is None:
            continue
        search = pattern(option, text).search
        hit = [any(search(name) for name in names_of(a)) for a in params]
        if not any(hit):
            raise DmlcError(f"{option} '{text}' matches no parameter; the model has {_listed([n for a in params for n in names_of(a)])}")
        for a, matches in zip(params, hit):
            if matches != keeps:
                a.attrs["dmlc.frozen"] = True
    if all("dmlc.frozen" in a.attrs for a in params):
        raise DmlcError("nothing is left to train: the model has no parameter that is not frozen")


def name_loss(module: Module) -> None:
    """The result that is the loss gets the name `loss`: the one the model calls so, or its first scalar.
    Raises `DmlcError` when the model returns no float scalar."""
    main = module.main
    scalars = [a for a, v in zip(main.result_attrs, main.results) if not v.tensor.rank and v.tensor.is_float and "dmlc.updates" not in a]
    if any(a.get("dmlc.name") == "loss" for a in scalars):
        return
    if not scalars:
        returned = [f"{a.get('dmlc.name', f'result{i}')}: {v.type}" for i, (a, v) in enumerate(zip(main.result_attrs, main.results))]
        raise DmlcError(f"the model returns no loss (a float scalar) but {_listed(returned)}; give one with --loss {'|'.join(LOSSES)}|module:function")
    for a in main.result_attrs:
        if a.get("dmlc.name") == "loss":
            a["dmlc.name"] = "loss_1"
    scalars[0]["dmlc.name"] = "loss"


def batch_of(module: Module) -> dict[str, int]:
    """The number of samples the program was imported for, where an input tells it."""
    args = [a for a in module.main.args if "dmlc.batch_dim" in a.attrs]
    return {"batch": int(args[0].shape[args[0].attrs["dmlc.batch_dim"]])} if args else {}


def mark_ranges(module: Module) -> None:
    """Say of integer inputs that index something (tokens, classes) how far: made-up samples then are valid ones."""
    from dmlc.passmanager.check import indexed

    for a in module.main.args:
        if a.attrs.get("dmlc.role", "input") == "input" and a.dtype in ("i64", "i32") and "dmlc.range" not in a.attrs:
            bound = indexed(a)
            if bound is not None:
                a.attrs["dmlc.range"] = (0, bound)


def unused_parameters(module: Module) -> list[str]:
    """Names of parameters that the program never reads: they get no gradient and stay as they are on every rank."""
    return [n for a in module.main.args if a.attrs.get("dmlc.role") == "param" and not a.uses for n in names_of(a)]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "none"


# ---------------------------------------------------------------- the evaluation program


@dataclass(frozen=True)
class Pin(Pass):
    """Gives an evaluation program, about to be planned, the mesh of the compiled training `program`, and its arguments the places of the
    weights there (also of parts of weights, which earlier passes make)."""

    program: Module
    name: ClassVar[str] = "pin"
    numerics: ClassVar[Numerics] = "exact"

    def run(self, module: Module, context: Context) -> bool:
        if self.program.mesh_op is not None:
            mesh, first = self.program.mesh_op.clone(), module.body.first
            assert first is not None
            module.body.insert_before(first, mesh)
        main = self.program.main
        storage = {a.name: a.attrs["dmlc.storage"] for a in main.args if "dmlc.storage" in a.attrs and a.attrs.get("dmlc.role") in HELD}
        for a in module.main.args:
            if a.name in storage and a.attrs.get("dmlc.role") in HELD:
                a.attrs["dmlc.storage"] = storage[a.name]
        return True


def degrees_of(program: Module) -> str:
    """The degrees of a planned program as a plan's text, without what concerns training alone."""
    plan = program.attrs.get("dmlc.plan")
    return f"dp={plan['dp']},tp={plan['tp']}" if plan is not None else ""


def same_weights(trained: Module, evaluated: Module) -> None:
    """Both programs of a folder read one dictionary of weights by name. Raises `DmlcError` where they understand a name differently."""
    from dmlc.interpret.arguments import global_type, signature_sharding

    known: dict[str, Any] = {a.name: a for a in trained.main.args}
    for a in evaluated.main.args:
        other = known.get(a.name)
        if other is None or a.attrs.get("dmlc.role") not in ("param", "buffer"):
            continue
        mine, theirs = global_type(a.tensor, a.attrs), global_type(other.tensor, other.attrs)
        if mine != theirs or signature_sharding(a.attrs) != signature_sharding(other.attrs):
            raise DmlcError(f"%{a.name} is a {theirs} in the training program and a {mine} in the evaluation program, or lies elsewhere")


def evaluation_form(module: Module) -> Module:
    """A copy of an imported training program as it is evaluated: no dropout, running statistics in batch norms that keep some, no updates.
    It serves models that come in one form only (a text, an exported program)."""
    evaluated = module.clone()
    main = evaluated.main
    for op in list(main.ops()):
        if op.name in ("dmlc.dropout", "dmlc.stop_gradient"):
            op.result.replace_uses(op.operands[0])
        elif op.name == "dmlc.batch_norm_train" and (running := _running_statistics(op)) is not None:
            made = Builder.before(op).op("dmlc.batch_norm", [*op.operands, *running], {k: op.attrs[k] for k in ("eps", "dmlc.name") if k in op.attrs})
            op.results[0].replace_uses(made.result)
    kept = [i for i, attrs in enumerate(main.result_attrs) if "dmlc.updates" not in attrs]
    results, attrs = main.results, main.result_attrs
    main.return_op.operands = [results[i] for i in kept]
    main.result_attrs[:] = [attrs[i] for i in kept]
    for op in reversed(list(main.ops())):
        if op.results and op.unused:
            op.erase()
    for arg in [a for a in main.args if not a.uses and a.attrs.get("dmlc.role", "input") != "input"]:
        main.body.erase_arg(arg)
    return evaluated


def _running_statistics(op: Op) -> list[Value] | None:
    """The running mean and variance that a batch norm in training keeps: what its own mean and variance are averaged into."""
    found = []
    for statistic in op.results[1:]:
        through_casts = [u for first in statistic.users if first.name == "dmlc.cast" for u in first.result.users]
        kept = [u.operands[0] for u in [*statistic.users, *through_casts] if u.name == "dmlc.running_average"]
        if not kept:
            return None
        found.append(kept[0])
    return found
