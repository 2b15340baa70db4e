"""The rest of a training step: gradient norm, clipping, loss scale, and each parameter's update by the optimizer that `dmlc.train` names.

Before: loss and gradients.   After: optimizer state and hyperparameters as arguments; loss, grad_norm and a new value for all that a step
replaces (`dmlc.updates`) as results. Every op of it has `dmlc.phase = "update"`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from dmlc.ir.builder import TERMINATORS, Builder, IdPool
from dmlc.ir.core import BlockArgument, Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.registry import lookup
from dmlc.ir.types import TensorType
from dmlc.ops.emit import NARROW, cast
from dmlc.ops.terms import Term
from dmlc.passes._optimizers import RULES, Scalars, Settings
from dmlc.passes._step import model_names, new_argument, new_state, request, scaling, set_results
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context

GROWTH_STEPS = 2000  # steps without overflow after which the loss scale doubles (torch.amp.GradScaler's default)
SMALL = 1e-6  # added to the norm in clipping, as torch.nn.utils.clip_grad_norm_ does


@dataclass(frozen=True)
class Optimizer(Pass):
    name: ClassVar[str] = "optimizer"
    numerics: ClassVar[Numerics] = "reordered"
    requires: ClassVar[tuple[str, ...]] = ("global",)
    results: ClassVar[Literal["kept", "changed"]] = "changed"

    def run(self, module: Module, context: Context) -> bool:
        Step(module, context).build()
        return True


class UpdateBuilder(Builder):
    """Marks all it emits as part of the update."""

    def insert(self, op: Op) -> Op:
        if op.name not in TERMINATORS:
            op.attrs["dmlc.phase"] = "update"
        return super().insert(op)


@dataclass
class Update:
    """The new value of an argument. `always`: also on a step whose gradients overflowed."""

    arg: BlockArgument
    value: Value
    always: bool = False


@dataclass
class Step:
    """Builds the update of one module."""

    module: Module
    context: Context
    updates: list[Update] = field(default_factory=list)

    def build(self) -> None:
        self.function = self.module.main
        gradients = [op for op in self.function.body if op.name == "dmlc.gradient"]
        if not gradients:
            raise DmlcError("there are no gradients; the pass autodiff makes them", self.function.op.loc)
        self.gradients = sorted(gradients, key=lambda op: op.operands[1].index)  # type: ignore[union-attr]
        self.settings = settings_of(self.module)
        self.b = UpdateBuilder(self.function.body, self.function.return_op, IdPool(self.function))
        self.dtype = "f64" if any(op.result.dtype == "f64" for op in gradients) else "f32"
        self._buffers()
        self._hyperparameters()
        norm, overflow = self._norm()
        self._parameters(norm)
        self._counters(overflow)
        self._return(norm, overflow)

    def _buffers(self) -> None:
        """New values that the model itself gives: running statistics."""
        for value, attrs in zip(self.function.results, self.function.result_attrs):
            if "dmlc.updates" in attrs:
                self.updates.append(Update(self.function.arg(attrs["dmlc.updates"]), value))

    def _hyperparameters(self) -> None:
        scalar = TensorType((), self.dtype)
        named = {name: new_argument(self.function, name, scalar, {"dmlc.role": "hyper"}) for name in self._hypers()}
        self.opt_step = new_state(self.function, "opt_step", "i64", 0)
        self.max_norm = named.get("max_norm")
        self.next_step = Term(self.b, self.opt_step) + 1
        count = cast(self.b, self.next_step.value, "f64")
        self.one = Term(self.b, named["lr"])  # whose type other numbers take
        self.scalars = {d: Scalars(self.settings, self.b, d, named["lr"], named["weight_decay"], count) for d in ("f32", "f64")}

    def _hypers(self) -> tuple[str, ...]:
        return ("lr", "weight_decay", "max_norm") if request(self.module, "clip", True) else ("lr", "weight_decay")

    # ------------------------------------------------------------ the norm of all gradients

    def _norm(self) -> tuple[Term | None, Term | None]:
        """The global norm before clipping, the loss scale taken out, and whether it is not finite (where there is a loss scale). None where nothing
        asks for it: no clipping, no loss scale.

        Tied and replicated parameters count once: there is one gradient a parameter.
        """
        self.unscale = self._unscale()
        if self.max_norm is None and self.unscale is None:
            return None, None
        squares = [self._squares(op.result) for op in self.gradients]
        norm = Term(self.b, self.b.emit("dmlc.add_n", *squares)).sqrt()
        if self.unscale is not None:
            norm = norm * self.unscale
        finite = norm < math.inf  # false for NaN too
        return norm, None if self.unscale is None else finite.logical_not()

    def _squares(self, gradient: Value) -> Value:
        return self.b.emit("dmlc.square_sum", cast(self.b, gradient, self.dtype))

    def _unscale(self) -> Term | None:
        """One over the loss scale."""
        scale = scaling(self.module)
        if scale == "dynamic":
            return 1.0 / Term(self.b, cast(self.b, self.function.arg("loss_scale"), self.dtype))
        return None if scale == 1 else self.one.number(1.0 / float(scale))

    def _factor(self, norm: Term | None) -> Term:
        """What gradients are multiplied by: min(1, max_norm / (norm + 1e-6)) over the loss scale. A ratio that is no number clips nothing.
        A program that never clips needs no norm here."""
        if self.max_norm is None or norm is None:
            return self.one.number(1.0) if self.unscale is None else self.unscale
        ratio = Term(self.b, self.max_norm) / (norm + SMALL)
        clip = (ratio < 1.0).select(ratio, 1.0)
        return clip if self.unscale is None else clip * self.unscale

    # ------------------------------------------------------------ parameters

    def _parameters(self, norm: Term | None) -> None:
        factor = self._factor(norm)
        factors = {d: Term(self.b, cast(self.b, factor.value, d)) for d in dict.fromkeys(self._wide(op.result.dtype) for op in self.gradients)}
        for op in self.gradients:
            with self.b.for_op(op):
                self._parameter(op, factors)

    @staticmethod
    def _wide(dtype: str) -> str:
        return "f32" if dtype in NARROW else dtype

    def _parameter(self, op: Op, factors: dict[str, Term]) -> None:
        """One parameter's new value and state; a narrow parameter is rounded from a wide master copy."""
        arg = op.operands[1]
        assert isinstance(arg, BlockArgument)
        dtype = self._wide(arg.dtype)
        gradient = Term(self.b, cast(self.b, op.result, dtype))
        slots = {name: self._slot(arg, name, 0.0) for name in self.settings.slots}
        master = self._slot(arg, "master", "param") if dtype != arg.dtype else None
        state = {name: Term(self.b, slot) for name, slot in slots.items()}
        parameter = Term(self.b, arg if master is None else master)
        new, states = RULES[self.settings.kind](self.scalars[dtype], parameter, gradient, factors[dtype], state, self._decay(arg))
        self.updates.append(Update(arg, cast(self.b, new.value, arg.dtype)))
        self.updates += [Update(slots[name], value.value) for name, value in states.items()]
        if master is not None:
            self.updates.append(Update(master, new.value))

    def _slot(self, arg: BlockArgument, slot: str, init: Any) -> BlockArgument:
        type_ = arg.tensor.with_dtype(self._wide(arg.dtype))
        times = {"dmlc.times": arg.attrs["dmlc.times"]} if "dmlc.times" in arg.attrs else {}  # of a layer that stands for several
        return new_argument(self.function, f"{arg.name}_{slot}", type_, {"dmlc.role": "state", "dmlc.of": arg.name, "dmlc.slot": slot, "dmlc.init": init, **times})

    def _decay(self, arg: BlockArgument) -> float:
        """The parameter's factor on the weight decay: none where `no_decay` matches one of its names."""
        pattern = request(self.module, "no_decay", "")
        if pattern and any(re.search(pattern, name) for name in model_names(arg)):
            arg.attrs.setdefault("dmlc.decay", 0.0)
        return arg.attrs.get("dmlc.decay", 1.0)

    # ------------------------------------------------------------ counters and results

    def _counters(self, overflow: Term | None) -> None:
        self.updates.append(Update(self.opt_step, self.next_step.value))
        for arg in random_steps(self.module):
            arg.attrs.update({"dmlc.role": "state", "dmlc.init": 0})
            self.updates.append(Update(arg, (Term(self.b, arg) + 1).value, always=True))
        if overflow is not None and scaling(self.module) == "dynamic":
            self._rescale(overflow)

    def _rescale(self, overflow: Term) -> None:
        """Halve the loss scale on overflow; double it after enough steps without."""
        scale = Term(self.b, self.function.arg("loss_scale"))
        steps = Term(self.b, new_state(self.function, "good_steps", "i64", 0)) + 1
        grow = steps >= GROWTH_STEPS
        scaled = overflow.select(scale * 0.5, grow.select(scale * 2.0, scale))
        self.updates.append(Update(self.function.arg("loss_scale"), scaled.value, always=True))
        self.updates.append(Update(self.function.arg("good_steps"), overflow.logical_or(grow).select(0 * steps, steps).value, always=True))

    def _return(self, norm: Term | None, overflow: Term | None) -> None:
        """Loss, norm, overflow, then what is replaced: on overflow by what it was, the random counter and the loss scale excepted."""
        values = [self.function.results[0]]
        attrs: list[dict[str, Any]] = [{"dmlc.name": "loss"}]
        if norm is not None:
            values.append(norm.value)
            attrs.append({"dmlc.name": "grad_norm"})
        if overflow is not None:
            values.append(overflow.value)
            attrs.append({"dmlc.name": "overflow"})
        for u in self.updates:
            kept = overflow is None or u.always
            with self.b.for_op(u.value.op) if u.value.op is not None else self.b.for_op(self.gradients[0]):
                values.append(u.value if kept else overflow.select(Term(self.b, u.arg), Term(self.b, u.value)).value)  # type: ignore[union-attr]
            attrs.append({"dmlc.name": u.arg.name, "dmlc.updates": u.arg.name})
        set_results(self.function, values, attrs)


def settings_of(module: Module) -> Settings:
    kind = request(module, "optimizer", Settings.kind)
    if kind not in RULES:
        raise DmlcError(f"there is no optimizer '{kind}'; there are {', '.join(RULES)}", module.op.loc)
    given = {k: type(getattr(Settings, k))(request(module, k, getattr(Settings, k))) for k in ("momentum", "nesterov", "beta1", "beta2", "eps")}
    return Settings(kind, **given)


def random_steps(module: Module) -> list[BlockArgument]:
    """The arguments that random ops read as their step."""
    found: dict[BlockArgument, None] = {}
    for op in module.main.ops():
        definition = lookup(op.name)
        if definition is None or definition.effects != "random":
            continue
        step = op.operands[definition.first + 1]  # type: ignore[attr-defined]
        if isinstance(step, BlockArgument) and step.attrs.get("dmlc.role") == "seed":
            found[step] = None
    return list(found)
