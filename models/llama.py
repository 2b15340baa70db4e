"""Llama with random weights: rotary positions, RMS norm, grouped-query attention, a gated MLP."""

from __future__ import annotations

from dmlc.models.common import quiet_transformers, seeded, token_ids
from dmlc.models.decoder import make_7b as make_7b  # the same shape as plain PyTorch, with its loss, on the meta device
from dmlc.models.decoder import make_70b as make_70b


def build(hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, vocabulary: int, sequence: int, batch: int, device: str = "cpu"):
    """input_ids i64 [batch, sequence] -> logits [batch, sequence, vocabulary]."""
    import torch

    transformers = quiet_transformers()

    class Llama(transformers.LlamaForCausalLM):
        def forward(self, input_ids):
            return super().forward(input_ids=input_ids, use_cache=False).logits

    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": mlp}
    config = transformers.LlamaConfig(**sizes, vocab_size=vocabulary, max_position_embeddings=max(sequence, 32), attn_implementation="sdpa")
    with torch.device(device):
        model = Llama(config)
    if device != "meta":
        seeded(model)
    return model.eval(), (token_ids(batch, sequence, vocabulary).to(device),)


def make():
    """Hidden 256, 4 layers, 8 heads over 2 key/value heads, MLP 688, vocabulary 4096, sequence 64, batch 8."""
    return build(256, 4, 8, 2, 688, 4096, 64, 8)


def tiny():
    """Hidden 64, 2 layers, 8 heads over 2 key/value heads, MLP 100, vocabulary 257, sequence 12, batch 6."""
    return build(64, 2, 8, 2, 100, 257, 12, 6)


def seven_billion():
    """The shape of Llama-7B (32 layers, hidden 4096) on the meta device: sizes without data; sequence 2048, batch 8."""
    return build(4096, 32, 32, 32, 11008, 32000, 2048, 8, device="meta")
