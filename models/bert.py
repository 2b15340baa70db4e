"""BERT for sequence classification with random weights; takes an attention mask."""

from __future__ import annotations

from dmlc.models.common import quiet_transformers, seeded, token_ids


def build(hidden: int, layers: int, heads: int, mlp: int, vocabulary: int, sequence: int, batch: int, labels: int = 4):
    """input_ids, attention_mask i64 [batch, sequence] -> logits [batch, labels]."""
    transformers = quiet_transformers()

    class Bert(transformers.BertForSequenceClassification):
        def forward(self, input_ids, attention_mask):
            return super().forward(input_ids=input_ids, attention_mask=attention_mask).logits  # type: ignore[reportAttributeAccessIssue]

    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": mlp, "vocab_size": vocabulary}
    config = transformers.BertConfig(**sizes, max_position_embeddings=max(sequence, 32), num_labels=labels, attn_implementation="sdpa")
    return seeded(Bert(config)), (token_ids(batch, sequence, vocabulary), padding_mask(batch, sequence))


def padding_mask(batch: int, sequence: int):
    """1 for tokens, 0 for padding, i64 [batch, sequence]; row i ends i % 4 tokens early."""
    import torch

    lengths = sequence - torch.arange(batch) % 4
    return (torch.arange(sequence) < lengths[:, None]).to(torch.int64)


def make():
    """Hidden 256, 4 layers, 8 heads, MLP 1024, vocabulary 4096, sequence 64, batch 8."""
    return build(256, 4, 8, 1024, 4096, 64, 8)


def tiny():
    """Hidden 64, 2 layers, 8 heads, MLP 100, vocabulary 257, sequence 12, batch 6."""
    return build(64, 2, 8, 100, 257, 12, 6)


def base():
    """The published sizes of BERT-base: hidden 768, 12 layers, 12 heads, vocabulary 30522; sequence 128, batch 8."""
    return build(768, 12, 12, 3072, 30522, 128, 8)
