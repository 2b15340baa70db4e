"""Rows: language models of the transformers package, tiny, with random weights. How to add one stands in `models/catalogue.py`."""

from __future__ import annotations

from typing import Any

from dmlc.models.catalogue import Architecture, builders
from dmlc.models.from_transformers import WORDS, in_half, model, padded, pairs, tokens

BOTH, EAGER = ("sdpa", "eager"), ("eager",)
FORWARD, EAGERLY, BACKWARD, EMITTED = ("forward",), ("forward", "eager"), ("backward",), ("emitted",)
HIDDEN = ("last_hidden_state",)


def sizes(**more: Any) -> dict[str, Any]:
    """What most configurations call their sizes."""
    usual = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 16}
    return {**usual, **more}


GROUPED = sizes(num_key_value_heads=2)
UNTIED = {**GROUPED, "tie_word_embeddings": False}
EXPERTS = {**UNTIED, "num_experts_per_tok": 2}
BART = {"vocab_size": WORDS, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 16}  # fmt: skip
T5 = {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
GPT2 = {"vocab_size": WORDS, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 4}

ROWS = [
    Architecture("gpt2", "decoder", model("GPT2LMHeadModel", tokens, **GPT2), True, BOTH, "ce", tests=FORWARD + BACKWARD),
    Architecture("llama", "decoder", model("LlamaForCausalLM", tokens, **UNTIED), False, BOTH, "ce", tests=EAGERLY + BACKWARD),
    Architecture("llama_tied", "decoder", model("LlamaForCausalLM", padded, **{**GROUPED, "tie_word_embeddings": True}), True, BOTH, "ce", tests=FORWARD),
    Architecture("mistral", "decoder", model("MistralForCausalLM", tokens, **UNTIED, sliding_window=4), False, BOTH, "ce", tests=FORWARD),
    Architecture("qwen2", "decoder", model("Qwen2ForCausalLM", tokens, **UNTIED), False, BOTH, "ce", tests=EAGERLY),
    Architecture("qwen3", "decoder", model("Qwen3ForCausalLM", tokens, **UNTIED, head_dim=8), False, BOTH, "ce"),
    Architecture("gemma", "decoder", model("GemmaForCausalLM", tokens, **GROUPED, head_dim=8), True, BOTH, "ce", tests=FORWARD),
    Architecture("gemma2", "decoder", model("Gemma2ForCausalLM", tokens, **{**GROUPED, "num_hidden_layers": 2}, head_dim=8, sliding_window=4), True, EAGER, "ce"),
    Architecture("gemma3", "decoder", model("Gemma3ForCausalLM", tokens, **{**GROUPED, "num_hidden_layers": 2}, head_dim=8, sliding_window=4), True, BOTH, "ce"),
    Architecture("opt", "decoder", model("OPTForCausalLM", padded, vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, ffn_dim=48, max_position_embeddings=16, word_embed_proj_dim=32), True, BOTH, "ce", tests=FORWARD + BACKWARD),
    Architecture("phi", "decoder", model("PhiForCausalLM", tokens, **UNTIED), False, BOTH, "ce", tests=FORWARD),
    Architecture("phi3", "decoder", model("Phi3ForCausalLM", tokens, **UNTIED, pad_token_id=0), False, BOTH, "ce"),
    Architecture("gpt_neox", "decoder", model("GPTNeoXForCausalLM", tokens, **sizes()), False, BOTH, "ce"),
    Architecture("gpt_neo", "decoder", model("GPTNeoForCausalLM", tokens, vocab_size=WORDS, hidden_size=32, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=4, window_size=4, max_position_embeddings=16), True, EAGER, "ce"),
    Architecture("gptj", "decoder", model("GPTJForCausalLM", tokens, **GPT2, rotary_dim=4), False, EAGER, "ce"),
    Architecture("codegen", "decoder", model("CodeGenForCausalLM", tokens, **GPT2, rotary_dim=4), False, EAGER, "ce"),
    Architecture("bloom", "decoder", model("BloomForCausalLM", tokens, vocab_size=WORDS, hidden_size=32, n_layer=1, n_head=4), True, EAGER, "ce"),
    Architecture("falcon", "decoder", model("FalconForCausalLM", tokens, vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=4), True, BOTH, "ce"),
    Architecture("mpt", "decoder", model("MptForCausalLM", tokens, vocab_size=WORDS, d_model=32, n_layers=1, n_heads=4, max_seq_len=16), True, EAGER, "ce"),
    Architecture("stablelm", "decoder", model("StableLmForCausalLM", tokens, **UNTIED), False, BOTH, "ce"),
    Architecture("cohere", "decoder", model("CohereForCausalLM", tokens, **GROUPED), True, BOTH, "ce"),
    Architecture("olmo2", "decoder", model("Olmo2ForCausalLM", tokens, **UNTIED), False, BOTH, "ce"),
    Architecture("granite", "decoder", model("GraniteForCausalLM", tokens, **UNTIED), False, BOTH, "ce"),
    Architecture("glm4", "decoder", model("Glm4ForCausalLM", tokens, **UNTIED, head_dim=8, pad_token_id=0), False, BOTH, "ce"),
    Architecture("starcoder2", "decoder", model("Starcoder2ForCausalLM", tokens, **GROUPED), True, BOTH, "ce"),
    Architecture("deepseek_v2", "decoder", model("DeepseekV2ForCausalLM", tokens, **{**UNTIED, "num_key_value_heads": 4}, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1), False, BOTH, "ce", tests=FORWARD),
    Architecture("bert", "encoder", model("BertForMaskedLM", padded, **sizes()), True, BOTH, "ce", tests=EAGERLY + BACKWARD),
    Architecture("roberta", "encoder", model("RobertaForSequenceClassification", padded, **sizes()), False, BOTH, "ce"),
    Architecture("albert", "encoder", model("AlbertForMaskedLM", padded, **sizes(embedding_size=16, num_hidden_layers=2)), True, BOTH, "ce", tests=FORWARD),
    Architecture("distilbert", "encoder", model("DistilBertForSequenceClassification", padded, vocab_size=WORDS, dim=32, n_layers=1, n_heads=4, hidden_dim=48, max_position_embeddings=16), False, BOTH, "ce", tests=FORWARD),
    Architecture("deberta", "encoder", model("DebertaForMaskedLM", padded, **sizes(relative_attention=True, pos_att_type=["c2p", "p2c"])), True, EAGER, "ce"),
    Architecture("deberta_v2", "encoder", model("DebertaV2ForSequenceClassification", padded, **sizes(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=4)), False, EAGER, "ce"),
    Architecture("electra", "encoder", model("ElectraForPreTraining", padded, **sizes(embedding_size=16)), False, BOTH, "mse", tests=FORWARD),
    Architecture("mpnet", "encoder", model("MPNetForMaskedLM", padded, **sizes()), True, EAGER, "ce"),
    Architecture("modernbert", "encoder", model("ModernBertForMaskedLM", padded, **sizes(num_hidden_layers=2, global_attn_every_n_layers=2, local_attention=4, pad_token_id=0)), True, BOTH, "ce"),
    Architecture("xlnet", "encoder", model("XLNetLMHeadModel", padded, vocab_size=WORDS, d_model=32, n_layer=1, n_head=4, d_inner=48), True, EAGER, "ce"),
    Architecture("roformer", "encoder", model("RoFormerForMaskedLM", padded, **sizes()), True, EAGER, "ce"),
    Architecture("convbert", "encoder", model("ConvBertForSequenceClassification", padded, **sizes(embedding_size=16)), False, EAGER, "ce"),
    Architecture("fnet", "encoder", model("FNetForMaskedLM", tokens, **sizes()), True, (), "ce", tests=FORWARD),
    Architecture("t5", "encoder-decoder", model("T5ForConditionalGeneration", pairs, **T5), True, EAGER, "ce"),
    Architecture("bart", "encoder-decoder", model("BartForConditionalGeneration", pairs, **BART), True, BOTH, "ce", tests=FORWARD + BACKWARD),
    Architecture("marian", "encoder-decoder", model("MarianMTModel", pairs, **BART, pad_token_id=0), True, BOTH, "ce", tests=EAGERLY),
    Architecture("pegasus", "encoder-decoder", model("PegasusForConditionalGeneration", pairs, **BART), True, BOTH, "ce"),
    Architecture("m2m_100", "encoder-decoder", model("M2M100ForConditionalGeneration", pairs, **BART), True, BOTH, "ce"),
    Architecture("blenderbot", "encoder-decoder", model("BlenderbotForConditionalGeneration", pairs, **BART), True, BOTH, "ce"),
    Architecture("mixtral", "mixture of experts", model("MixtralForCausalLM", tokens, **EXPERTS, num_local_experts=4, experts_implementation="batched_mm"), False, BOTH, "ce", tests=FORWARD + BACKWARD + EMITTED),
    Architecture("mixtral_grouped", "mixture of experts", model("MixtralForCausalLM", tokens, **EXPERTS, num_local_experts=4, experts_implementation="grouped_mm"), False, BOTH, "ce"),
    Architecture("qwen2_moe", "mixture of experts", model("Qwen2MoeForCausalLM", tokens, **EXPERTS, num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16, experts_implementation="batched_mm"), False, BOTH, "ce"),
    Architecture("olmoe", "mixture of experts", model("OlmoeForCausalLM", tokens, **EXPERTS, num_experts=4, experts_implementation="grouped_mm"), False, BOTH, "ce", tests=FORWARD),
    Architecture("gpt_oss", "mixture of experts", model("GptOssForCausalLM", tokens, **EXPERTS, num_local_experts=4, head_dim=8, sliding_window=4, layer_types=["sliding_attention"], experts_implementation="batched_mm"), False, EAGER, "ce"),
    Architecture("llama4", "mixture of experts", model("Llama4ForCausalLM", tokens, **EXPERTS, num_local_experts=4, intermediate_size_mlp=48, head_dim=8, interleave_moe_layer_step=1, no_rope_layers=[1]), False, BOTH, "ce"),
    Architecture("deepseek_v3", "mixture of experts", model("DeepseekV3ForCausalLM", tokens, **{**EXPERTS, "num_key_value_heads": 4}, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=0, n_routed_experts=4, n_group=2, topk_group=1, moe_intermediate_size=16, experts_implementation="batched_mm"), False, BOTH, "ce"),
    Architecture("gpt2_bf16", "decoder", in_half(model("GPT2LMHeadModel", tokens, **GPT2)), True, BOTH, half=True),
    Architecture("llama_bf16", "decoder", in_half(model("LlamaForCausalLM", padded, **UNTIED)), False, BOTH, half=True, tests=FORWARD),
    Architecture("bert_bf16", "encoder", in_half(model("BertForMaskedLM", padded, **sizes())), True, BOTH, half=True),
    Architecture("t5_bf16", "encoder-decoder", in_half(model("T5ForConditionalGeneration", pairs, **T5)), True, EAGER, half=True),
    Architecture("mixtral_bf16", "mixture of experts", in_half(model("MixtralForCausalLM", tokens, **EXPERTS, num_local_experts=4, experts_implementation="batched_mm")), False, BOTH, half=True),
    Architecture("olmoe_bf16", "mixture of experts", in_half(model("OlmoeForCausalLM", tokens, **EXPERTS, num_experts=4, experts_implementation="grouped_mm")), False, BOTH, half=True),
    Architecture("mamba", "state space", model("MambaForCausalLM", tokens, vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, state_size=4, expand=2), True, (), "ce", tests=FORWARD),
    Architecture("mamba2", "state space", model("Mamba2ForCausalLM", tokens, vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, state_size=4, expand=2, num_heads=8, head_dim=8, n_groups=2, chunk_size=4), False, (), "ce"),
    Architecture("rwkv", "state space", model("RwkvForCausalLM", tokens, vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, context_length=16, attention_hidden_size=32, rescale_every=0), False, (), "ce"),
]  # fmt: skip

globals().update(builders(ROWS))
