"""GPT-2 with random weights: learned positions, one fused q|k|v projection a layer, tied input and output embeddings."""

from __future__ import annotations

from dmlc.models.common import quiet_transformers, seeded, token_ids


def build(hidden: int, layers: int, heads: int, mlp: int, vocabulary: int, sequence: int, batch: int, positions: int = 0, device: str = "cpu"):
    """input_ids i64 [batch, sequence] -> logits [batch, sequence, vocabulary]."""
    import torch

    transformers = quiet_transformers()

    class Gpt2(transformers.GPT2LMHeadModel):
        def forward(self, input_ids):
            return super().forward(input_ids=input_ids, use_cache=False).logits

    sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_inner": mlp, "vocab_size": vocabulary, "n_positions": positions or sequence}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, attn_implementation="sdpa")
    with torch.device(device):
        model = Gpt2(config)
    if device != "meta":
        seeded(model)
    return model.eval(), (token_ids(batch, sequence, vocabulary).to(device),)


def make():
    """Hidden 256, 4 layers, 8 heads, MLP 1024, vocabulary 4096, sequence 64, batch 8."""
    return build(256, 4, 8, 1024, 4096, 64, 8)


def tiny():
    """Hidden 64, 2 layers, 8 heads, MLP 100, vocabulary 257, sequence 12, batch 6: little divides."""
    return build(64, 2, 8, 100, 257, 12, 6, positions=32)


def base():
    """The published sizes of the smallest GPT-2: hidden 768, 12 layers, 12 heads, vocabulary 50257; sequence 128, batch 8."""
    return build(768, 12, 12, 3072, 50257, 128, 8, positions=1024)
