"""Builders of the transformers package's models with tiny configurations and random weights, for rows of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dmlc.models.common import normal, quiet_transformers, seeded, token_ids

BATCH, TIME, WORDS = 2, 8, 67

Inputs = Callable[[], Mapping[str, Any]]


def model(name: str, inputs: Inputs, take: tuple[str, ...] = ("logits",), /, **settings: Any) -> Callable[..., tuple]:
    """A builder for the class `name` with a configuration of `settings`, which returns the outputs that `take` names. Dropout is off.
    A setting may be a function: it is called when the model is built (configurations of parts)."""

    def build(attention: str = "eager") -> tuple:
        transformers = quiet_transformers()
        base = getattr(transformers, name)
        given = {k: make() if callable(make) else make for k, make in settings.items()}
        config = base.config_class(**given)
        with_attention(config, attention)
        without_randomness(config)

        def forward(self: Any, **given: Any) -> Any:
            output = base.forward(self, **given)
            found = tuple(getattr(output, t) for t in take)
            return found[0] if len(take) == 1 else found  # type: ignore[reportGeneralTypeIssues]

        made = seeded(type(name, (base,), {"forward": forward, "__module__": base.__module__})(config))
        return made, (), dict(inputs())

    return build


def in_half(build: Callable[..., tuple]) -> Callable[..., tuple]:
    """The same model with weights and inputs in bf16."""

    def halved(*given: str) -> tuple:
        made, args, examples = build(*given)
        return made.bfloat16(), args, {k: x.bfloat16() if x.is_floating_point() else x for k, x in examples.items()}

    return halved


def without_randomness(config: Any) -> None:
    """No dropout, no noise, no layers left out; in the configurations of parts too. No cache of keys and values, which would be an output."""
    config.use_cache = False
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            without_randomness(value)
        elif ("drop" in key or "noise" in key or "jitter" in key) and isinstance(value, float):
            setattr(config, key, 0.0)
        elif key == "apply_spec_augment":
            setattr(config, key, False)


def part(name: str, **settings: Any) -> Callable[[], Any]:
    """A configuration inside a configuration; its attention, if any, is the eager one."""
    return lambda: getattr(quiet_transformers(), name)(**settings)


def with_attention(config: Any, attention: str) -> None:
    """`attention` in the model itself, and in parts as far as they have it."""
    parts = {k: "eager" for k, v in vars(config).items() if hasattr(v, "to_dict") and k == "backbone_config"}
    config._attn_implementation = {"": attention, **parts} if parts else attention


# ---------------------------------------------------------------- inputs


def tokens() -> Mapping[str, Any]:
    """input_ids i64 [batch, time]."""
    return {"input_ids": token_ids(BATCH, TIME, WORDS)}


def padded() -> Mapping[str, Any]:
    """input_ids and attention_mask i64 [batch, time]: the second sample is shorter."""
    from dmlc.models.bert import padding_mask

    return {**tokens(), "attention_mask": padding_mask(BATCH, TIME)}


def pairs() -> Mapping[str, Any]:
    """input_ids i64 [batch, time], decoder_input_ids i64 [batch, time - 2]."""
    return {**tokens(), "decoder_input_ids": token_ids(BATCH, TIME - 2, WORDS, seed=2)}


def pixels(size: int) -> Inputs:
    """pixel_values f32 [batch, 3, size, size]."""
    return lambda: {"pixel_values": normal(BATCH, 3, size, size)}


def samples(count: int) -> Inputs:
    """input_values f32 [batch, count]: sound."""
    return lambda: {"input_values": normal(BATCH, count)}
