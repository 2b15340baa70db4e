"""The update rules: from a parameter, its gradient and its state to the new ones. PyTorch's formulas, epsilon and bias correction included.

A rule sees values of one accumulation dtype (f32, or f64 for an f64 model). Numbers that a step needs once (bias corrections, the step size)
are computed in f64: 1 - 0.999 in f32 is off by 1e-5 of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dmlc.ir.builder import Builder
from dmlc.ir.core import Value
from dmlc.ops.emit import cast
from dmlc.ops.terms import Term


@dataclass(frozen=True)
class Settings:
    """What the optimizer was compiled with (`dmlc.train`)."""

    kind: str = "adamw"
    momentum: float = 0.0
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of a parameter."""
        return {"sgd": ("momentum",) if self.momentum else ()}.get(self.kind, ("m", "v"))


@dataclass
class Scalars:
    """Values that all parameters of one dtype share: `rate` the learning rate, `decay` the weight decay, `step` of this update (from 1, f64)."""

    settings: Settings
    b: Builder
    dtype: str
    lr: Value
    weight_decay: Value
    step: Value
    _known: dict[str, Term] = field(default_factory=dict)

    def shared(self, name: str, make: Callable[[], Term]) -> Term:
        """A scalar made once, on behalf of no parameter, in the update's dtype."""
        if name not in self._known:
            origin, self.b.origin = self.b.origin, None
            self._known[name] = Term(self.b, cast(self.b, make().value, self.dtype))
            self.b.origin = origin
        return self._known[name]

    @property
    def rate(self) -> Term:
        return self.shared("rate", lambda: Term(self.b, self.lr))

    @property
    def decay(self) -> Term:
        return self.shared("decay", lambda: Term(self.b, self.weight_decay))

    def correction(self, beta: float) -> Term:
        """1 - beta^step, f64."""
        step = Term(self.b, self.step)
        return 1 - step.number(beta).pow(step)

    @property
    def step_size(self) -> Term:
        """lr / (1 - beta1^step)."""
        return self.shared("step_size", lambda: Term(self.b, cast(self.b, self.lr, "f64")) / self.correction(self.settings.beta1))

    @property
    def root_correction(self) -> Term:
        """sqrt(1 - beta2^step)."""
        return self.shared("root_correction", lambda: self.correction(self.settings.beta2).sqrt())


Updated = tuple[Term, dict[str, Term]]
Rule = Callable[[Scalars, Term, Term, Term, dict[str, Term], float], Updated]  # (scalars, parameter, gradient, its factor, state, decay factor)


def _decayed(s: Scalars, p: Term, g: Term, factor: float) -> Term:
    """Weight decay as the gradient of half the squared norm."""
    if not factor:
        return g
    return g + p * (s.decay if factor == 1 else s.decay * factor)


def sgd(s: Scalars, p: Term, g: Term, clip: Term, state: dict[str, Term], factor: float) -> Updated:
    """torch.optim.SGD. Its buffer begins as the first gradient: that is what a buffer of zeros gives."""
    g = _decayed(s, p, g * clip, factor)
    if not s.settings.momentum:
        return p - g * s.rate, {}
    buffer = state["momentum"] * s.settings.momentum + g
    direction = g + buffer * s.settings.momentum if s.settings.nesterov else buffer
    return p - direction * s.rate, {"momentum": buffer}


def _adam_step(s: Scalars, p: Term, g: Term, clip: Term, shrink: Term, state: dict[str, Term]) -> Updated:
    operands = [t.value for t in (p, g, state["m"], state["v"], clip, shrink, s.step_size, s.root_correction)]
    attrs = {"beta1": s.settings.beta1, "beta2": s.settings.beta2, "eps": s.settings.eps}
    new, m, v = (Term(s.b, r) for r in s.b.op("dmlc.adam_update", operands, attrs).results)
    return new, {"m": m, "v": v}


def _one(s: Scalars) -> Term:
    return s.shared("one", lambda: s.rate.number(1.0))


def adam(s: Scalars, p: Term, g: Term, clip: Term, state: dict[str, Term], factor: float) -> Updated:
    """torch.optim.Adam (Kingma, Ba 2015): weight decay is part of the gradient."""
    if factor:
        g, clip = _decayed(s, p, g * clip, factor), _one(s)
    return _adam_step(s, p, g, clip, _one(s), state)


def adamw(s: Scalars, p: Term, g: Term, clip: Term, state: dict[str, Term], factor: float) -> Updated:
    """torch.optim.AdamW (Loshchilov, Hutter 2019): the parameter shrinks by lr * weight_decay beforehand."""
    shrink = s.shared(f"shrink {factor}", lambda: 1 - s.rate * (s.decay if factor == 1 else s.decay * factor)) if factor else _one(s)
    return _adam_step(s, p, g, clip, shrink, state)


RULES: dict[str, Rule] = {"sgd": sgd, "adam": adam, "adamw": adamw}
