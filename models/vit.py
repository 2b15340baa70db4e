"""A vision transformer for classification with random weights: convolutional patches, a class token, learned positions."""

from __future__ import annotations

from dmlc.models.common import normal, quiet_transformers, seeded


def build(hidden: int, layers: int, heads: int, mlp: int, image: int, patch: int, batch: int, labels: int = 10):
    """pixel_values f32 [batch, 3, image, image] -> logits [batch, labels]; the sequence is (image / patch)² + 1."""
    transformers = quiet_transformers()

    class Vit(transformers.ViTForImageClassification):
        def forward(self, pixel_values):
            return super().forward(pixel_values=pixel_values).logits

    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": mlp}
    config = transformers.ViTConfig(**sizes, image_size=image, patch_size=patch, num_labels=labels, attn_implementation="sdpa")
    return seeded(Vit(config)), (normal(batch, 3, image, image),)


def make():
    """Hidden 256, 4 layers, 8 heads, MLP 1024, 64 patches of 8 x 8 pixels, batch 8."""
    return build(256, 4, 8, 1024, 64, 8, 8)


def tiny():
    """Hidden 64, 2 layers, 8 heads, MLP 100, 9 patches of 8 x 8 pixels, batch 6."""
    return build(64, 2, 8, 100, 24, 8, 6)
