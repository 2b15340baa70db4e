"""Rows: vision and audio models of the transformers package, tiny, with random weights. How to add one stands in `models/catalogue.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dmlc.models.catalogue import Architecture, builders
from dmlc.models.common import normal, token_ids
from dmlc.models.from_transformers import BATCH, TIME, WORDS, model, part, pixels, samples

BOTH, EAGER = ("sdpa", "eager"), ("eager",)
FORWARD, EAGERLY, BACKWARD, EMITTED = ("forward",), ("forward", "eager"), ("backward",), ("emitted",)
HIDDEN = ("last_hidden_state",)

VIT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16, "patch_size": 4}
SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
CLIP_TEXT = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 16, "eos_token_id": 2}  # fmt: skip
SPEECH = {"vocab_size": 12, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "conv_dim": [8, 8], "conv_kernel": [5, 3], "conv_stride": [4, 2], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}  # fmt: skip
DETR = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_queries": 5, "num_labels": 3}  # fmt: skip


def text_and_image() -> Mapping[str, Any]:
    """input_ids i64 [batch, time], pixel_values f32 [batch, 3, 16, 16]."""
    return {"input_ids": token_ids(BATCH, TIME, WORDS), "pixel_values": normal(BATCH, 3, 16, 16)}


def mel_and_tokens() -> Mapping[str, Any]:
    """input_features f32 [batch, mel bins, 2 positions], decoder_input_ids i64 [batch, time]."""
    return {"input_features": normal(BATCH, 8, 16), "decoder_input_ids": token_ids(BATCH, TIME, WORDS)}


def spectrogram() -> Mapping[str, Any]:
    """input_values f32 [batch, time, mel bins]."""
    return {"input_values": normal(BATCH, 16, 16)}


ROWS = [
    Architecture("vit", "vision", model("ViTForImageClassification", pixels(16), **VIT), False, BOTH, "ce", tests=EAGERLY + BACKWARD),
    Architecture("deit", "vision", model("DeiTForImageClassificationWithTeacher", pixels(16), **VIT), False, BOTH, "ce"),
    Architecture("beit", "vision", model("BeitForImageClassification", pixels(16), **VIT, use_relative_position_bias=True), False, BOTH, "ce"),
    Architecture("dinov2", "vision", model("Dinov2ForImageClassification", pixels(16), **VIT, mlp_ratio=2, use_swiglu_ffn=True), False, BOTH, "ce"),
    Architecture("swin", "vision", model("SwinForImageClassification", pixels(16), **SWIN), False, BOTH, "ce"),
    Architecture("swinv2", "vision", model("Swinv2ForImageClassification", pixels(16), **SWIN), False, EAGER, "ce"),
    Architecture("convnext", "vision", model("ConvNextForImageClassification", pixels(16), **STAGES, num_stages=2, patch_size=2), False, (), "ce", tests=FORWARD),
    Architecture("convnextv2", "vision", model("ConvNextV2ForImageClassification", pixels(16), **STAGES, num_stages=2, patch_size=2), False, (), "ce"),
    Architecture("resnet", "vision", model("ResNetForImageClassification", pixels(32), **RESNET), False, (), "ce"),
    Architecture("regnet", "vision", model("RegNetForImageClassification", pixels(32), **STAGES, embedding_size=8, groups_width=4), False, (), "ce"),
    Architecture("mobilevit", "vision", model("MobileViTForImageClassification", pixels(32), image_size=32, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16], num_attention_heads=4), False, EAGER, "ce"),
    Architecture("poolformer", "vision", model("PoolFormerForImageClassification", pixels(32), hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]), False, (), "ce"),
    Architecture("pvt_v2", "vision", model("PvtV2ForImageClassification", pixels(32), image_size=32, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[3, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2]), False, EAGER, "ce"),
    Architecture("levit", "vision", model("LevitForImageClassification", pixels(32), image_size=32, hidden_sizes=[16, 24, 32], num_attention_heads=[2, 3, 4], depths=[1, 1, 1], key_dim=[8, 8, 8]), False, (), "ce"),
    Architecture("focalnet", "vision", model("FocalNetForImageClassification", pixels(16), image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3]), False, (), "ce"),
    Architecture("cvt", "vision", model("CvtForImageClassification", pixels(32), embed_dim=[8, 16, 16], num_heads=[1, 2, 2], depth=[1, 2, 3]), False, (), "ce"),
    Architecture("clip", "vision and text", model("CLIPModel", text_and_image, ("logits_per_image", "text_embeds"), text_config=CLIP_TEXT, vision_config=VIT, projection_dim=16), False, BOTH, "squares", tests=FORWARD),
    Architecture("siglip", "vision and text", model("SiglipModel", text_and_image, ("logits_per_image", "text_embeds"), text_config=CLIP_TEXT, vision_config=VIT), False, BOTH, "squares"),
    Architecture("wav2vec2", "audio", model("Wav2Vec2ForCTC", samples(100), **SPEECH), False, BOTH, "mse", tests=FORWARD + BACKWARD + EMITTED),
    Architecture("hubert", "audio", model("HubertForCTC", samples(100), **SPEECH), False, BOTH, "mse", tests=EAGERLY),
    Architecture("wavlm", "audio", model("WavLMForCTC", samples(100), **SPEECH, num_buckets=8, max_bucket_distance=16), False, EAGER, "mse"),
    Architecture("whisper", "audio", model("WhisperForConditionalGeneration", mel_and_tokens, vocab_size=WORDS, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=8, max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None), True, BOTH, "ce", tests=FORWARD),
    Architecture("ast", "audio", model("ASTForAudioClassification", spectrogram, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, patch_size=4, frequency_stride=4, time_stride=4, max_length=16, num_mel_bins=16), False, BOTH, "ce"),
    Architecture("detr", "detection", model("DetrForObjectDetection", pixels(32), ("logits", "pred_boxes"), **DETR, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=part("ResNetConfig", **RESNET, out_features=["stage2"])), False, BOTH, "squares", tests=FORWARD + EMITTED),
    Architecture("conditional_detr", "detection", model("ConditionalDetrForObjectDetection", pixels(32), ("logits", "pred_boxes"), **DETR, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=part("ResNetConfig", **RESNET, out_features=["stage2"])), False, BOTH, "squares"),
    Architecture("yolos", "detection", model("YolosForObjectDetection", pixels(16), ("logits", "pred_boxes"), **{**VIT, "image_size": [16, 16]}, num_detection_tokens=5, num_labels=3), False, BOTH, "squares", tests=FORWARD + BACKWARD),
    Architecture("segformer", "segmentation", model("SegformerForSemanticSegmentation", pixels(32), num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16), False, EAGER, "mse", tests=FORWARD + BACKWARD),
    Architecture("beit_segmentation", "segmentation", model("BeitForSemanticSegmentation", pixels(16), **{**VIT, "num_hidden_layers": 4}, out_indices=[1, 2, 3, 4], pool_scales=[1, 2], use_auxiliary_head=False), False, BOTH, "mse"),
    Architecture("upernet", "segmentation", model("UperNetForSemanticSegmentation", pixels(32), use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=part("ConvNextConfig", num_stages=4, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], patch_size=2, out_features=["stage1", "stage2", "stage3", "stage4"]), hidden_size=16, pool_scales=[1, 2], use_auxiliary_head=False), False, (), "mse"),
    Architecture("dpt", "segmentation", model("DPTForDepthEstimation", pixels(16), ("predicted_depth",), **{**VIT, "num_hidden_layers": 4}, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8, is_hybrid=False), False, BOTH, "mse"),
    Architecture("maskformer", "segmentation", model("MaskFormerForInstanceSegmentation", pixels(32), ("class_queries_logits", "masks_queries_logits"), backbone_config=part("SwinConfig", **{**SWIN, "image_size": 32, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]}, out_features=["stage1", "stage2", "stage3", "stage4"]), decoder_config=part("DetrConfig", **DETR, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None), fpn_feature_size=32, mask_feature_size=32), False, EAGER, "squares"),
]  # fmt: skip

globals().update(builders(ROWS))
