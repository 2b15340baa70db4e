"""Rows of the transformers package: tiny configurations with random weights. How to add one stands in `models/catalogue.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dmlc.models.catalogue import Architecture, builders
from dmlc.models.common import quiet_transformers, seeded, token_ids

BOTH, EAGER = ("sdpa", "eager"), ("eager",)
BATCH, TIME, WORDS = 2, 8, 67

Inputs = Callable[[], Mapping[str, Any]]


def model(name: str, inputs: Inputs, take: tuple[str, ...] = ("logits",), /, **settings: Any) -> Callable[..., tuple]:
    """A builder for the class `name` with a configuration of `settings`, which returns the outputs that `take` names. Dropout is off."""

    def build(attention: str = "eager", experts: str = "") -> tuple:
        transformers = quiet_transformers()
        base = getattr(transformers, name)
        config = base.config_class(**settings, attn_implementation=attention, **({"experts_implementation": experts} if experts else {}))
        without_dropout(config)

        def forward(self: Any, **given: Any) -> Any:
            output = base.forward(self, **given)
            found = tuple(getattr(output, t) for t in take)
            return found[0] if len(take) == 1 else found  # type: ignore[reportGeneralTypeIssues]

        made = type(name, (base,), {"forward": forward, "__module__": base.__module__})
        return seeded(made(config)), (), dict(inputs())

    return build


def without_dropout(config: Any) -> None:
    """Also in the configurations of parts."""
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            without_dropout(value)
        elif ("drop" in key or "noise" in key) and isinstance(value, float):
            setattr(config, key, 0.0)


# ---------------------------------------------------------------- inputs


def tokens(**more: Any) -> Inputs:
    return lambda: {"input_ids": token_ids(BATCH, TIME, WORDS), **{k: make() for k, make in more.items()}}


# ---------------------------------------------------------------- rows

ROWS = [
    Architecture("gpt2", "decoder", model("GPT2LMHeadModel", tokens(), vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=1, n_head=4, use_cache=False), True, BOTH, "ce", ("forward", "backward", "emitted")),
]  # fmt: skip

globals().update(builders(ROWS))
