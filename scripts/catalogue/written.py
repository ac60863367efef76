"""Hyper-parameters written by hand from what was published with the models; the number of parameters checks each."""

from __future__ import annotations

from typing import Any

Fields = dict[str, Any]
BFLOAT16, FLOAT32, FLOAT16 = "bfloat16", "float32", "float16"
FP8_IN_BLOCKS = {  # of the published weights of Kimi-K2
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
LLAMA3_ROPE = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def decoder(kind: str, head: str, sizes: tuple[int, int, int, int, int, int], **other: Any) -> Fields:
    """A decoder: hidden size, layers, heads, heads of keys and values, width of the MLP, vocabulary."""
    hidden, layers, heads, kv_heads, mlp, words = sizes
    return {
        "architectures": [head],
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": mlp,
        "vocab_size": words,
        "torch_dtype": BFLOAT16,
        **other,
    }


def llama(*sizes: int, **other: Any) -> Fields:
    given = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False, **other}
    return decoder("llama", "LlamaForCausalLM", sizes, **given)  # type: ignore[arg-type]


def llama32_3b() -> Fields:
    rope = {**LLAMA3_ROPE, "factor": 32.0}
    own = {"head_dim": 128, "max_position_embeddings": 131072, "rope_scaling": rope, "rope_theta": 500000.0}
    return llama(3072, 28, 24, 8, 8192, 128256, tie_word_embeddings=True, **own)


def llama32_vision_instruct() -> Fields:
    """Tiles of 560 pixels, where the default of the class and the base model have 448."""
    return {
        "architectures": ["MllamaForConditionalGeneration"],
        "model_type": "mllama",
        "text_config": {"model_type": "mllama_text_model"},
        "vision_config": {"model_type": "mllama_vision_model", "image_size": 560},
    }


def glm41v_text() -> Fields:
    """The positions that the default of its configuration class leaves out: half of each head turns, in three parts."""
    rope = {"mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"}
    sizes = {"hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40, "vocab_size": 151552}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 2}
    return {"model_type": "glm4v_text", **sizes, **heads, "rms_norm_eps": 1e-5, "rope_parameters": rope}


def qwen2(*sizes: int, tied: bool = False, positions: int = 32768, **other: Any) -> Fields:
    given = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": tied}
    given |= {"max_position_embeddings": positions, "use_sliding_window": False}
    return decoder("qwen2", "Qwen2ForCausalLM", sizes, **given, **other)  # type: ignore[arg-type]


def qwen3(*sizes: int, tied: bool = False, positions: int = 40960, **other: Any) -> Fields:
    given = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": tied}
    given |= {"head_dim": 128, "max_position_embeddings": positions, "attention_bias": False}
    return decoder("qwen3", "Qwen3ForCausalLM", sizes, **given, **other)  # type: ignore[arg-type]


def mistral(*sizes: int, positions: int = 32768, theta: float = 1000000.0, **other: Any) -> Fields:
    given = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": theta, "sliding_window": None}
    given |= {"head_dim": 128, "max_position_embeddings": positions, "tie_word_embeddings": False}
    return decoder("mistral", "MistralForCausalLM", sizes, **given, **other)  # type: ignore[arg-type]


def gemma2(*sizes: int, head_dim: int, scalar: int) -> Fields:
    given: Fields = {"head_dim": head_dim, "query_pre_attn_scalar": scalar, "hidden_activation": "gelu_pytorch_tanh"}
    given |= {"sliding_window": 4096, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
    given |= {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "tie_word_embeddings": True}
    return decoder("gemma2", "Gemma2ForCausalLM", sizes, **given)  # type: ignore[arg-type]


def gemma3_text(*sizes: int, head_dim: int = 256, window: int = 1024, positions: int = 131072, **other: Any) -> Fields:
    given: Fields = {"head_dim": head_dim, "query_pre_attn_scalar": 256, "sliding_window": window}
    given |= {"sliding_window_pattern": 6, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh"}
    given |= {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "max_position_embeddings": positions}
    given |= {"tie_word_embeddings": True}
    return decoder("gemma3_text", "Gemma3ForCausalLM", sizes, **given, **other)  # type: ignore[arg-type]


def gemma3(*sizes: int) -> Fields:
    text = gemma3_text(*sizes, rope_scaling={"factor": 8.0, "rope_type": "linear"})
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "intermediate_size": 4304,
        "image_size": 896,
        "patch_size": 14,
        "vision_use_head": False,
    }
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "image_token_index": 262144,
        "mm_tokens_per_image": 256,
        "text_config": {name: value for name, value in text.items() if name not in ("architectures", "torch_dtype")},
        "vision_config": vision,
        "torch_dtype": BFLOAT16,
    }


def phi4() -> Fields:
    own = {"max_position_embeddings": 16384, "original_max_position_embeddings": 16384, "rope_theta": 250000}
    own |= {"bos_token_id": 100257, "eos_token_id": 100265, "pad_token_id": 100349}
    given = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
    return decoder("phi3", "Phi3ForCausalLM", (5120, 40, 40, 10, 17920, 100352), **given, **own)


def olmo2(*sizes: int) -> Fields:
    given = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 500000}
    return decoder("olmo2", "Olmo2ForCausalLM", sizes, max_position_embeddings=4096, **given)  # type: ignore[arg-type]


def granite33_8b() -> Fields:
    given = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "rope_theta": 10000000.0}
    given |= {"max_position_embeddings": 131072, "attention_multiplier": 0.0078125, "embedding_multiplier": 12.0}
    given |= {"logits_scaling": 16.0, "residual_multiplier": 0.22}
    return decoder("granite", "GraniteForCausalLM", (4096, 40, 32, 8, 12800, 49159), **given)


def deepseek_v2_lite() -> Fields:
    given: Fields = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 10000}
    given |= {"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    given |= {"v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6}
    given |= {"moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 1}
    given |= {"topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False}
    given |= {"routed_scaling_factor": 1.0, "max_position_embeddings": 163840}
    return decoder("deepseek_v2", "DeepseekV2ForCausalLM", (2048, 27, 16, 16, 10944, 102400), **given)


def bert(hidden: int, layers: int, heads: int, mlp: int, words: int = 30522) -> Fields:
    return encoder("bert", "BertModel", (hidden, layers, heads, mlp, words), max_position_embeddings=512)


def xlm_roberta(hidden: int, layers: int, heads: int, mlp: int, positions: int = 514) -> Fields:
    own = {"max_position_embeddings": positions, "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
    return encoder("xlm-roberta", "XLMRobertaModel", (hidden, layers, heads, mlp, 250002), **own)


def encoder(kind: str, head: str, sizes: tuple[int, int, int, int, int], **other: Any) -> Fields:
    hidden, layers, heads, mlp, words = sizes
    return {
        "architectures": [head],
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": mlp,
        "vocab_size": words,
        "torch_dtype": FLOAT32,
        **other,
    }


def whisper(width: int, layers: int, heads: int, *, decoder_layers: int | None = None, **other: Any) -> Fields:
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "d_model": width,
        "encoder_layers": layers,
        "decoder_layers": layers if decoder_layers is None else decoder_layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * width,
        "decoder_ffn_dim": 4 * width,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "num_mel_bins": 80,
        "vocab_size": 51865,
        "torch_dtype": FLOAT32,
        **other,
    }


def t5(width: int, layers: int, heads: int, mlp: int) -> Fields:
    """T5 of 2019. Later ones have an output head of their own, which transformers 5 does not build."""
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "d_model": width,
        "d_ff": mlp,
        "d_kv": 64,
        "num_heads": heads,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": True,
        "decoder_start_token_id": 0,
        "vocab_size": 32128,
        "torch_dtype": FLOAT32,
    }


def vit(hidden: int, layers: int, heads: int, patch: int) -> Fields:
    """Of 224 x 224 pixels, with the head of 1,000 classes."""
    own = {"image_size": 224, "patch_size": patch, "num_labels": 1000}
    fields = encoder("vit", "ViTForImageClassification", (hidden, layers, heads, 4 * hidden, 0), **own)
    del fields["vocab_size"]
    return fields


def dinov2(hidden: int, layers: int, heads: int, *, swiglu: bool = False) -> Fields:
    return {
        "architectures": ["Dinov2Model"],
        "model_type": "dinov2",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "mlp_ratio": 4,
        "use_swiglu_ffn": swiglu,
        "image_size": 518,
        "patch_size": 14,
        "torch_dtype": FLOAT32,
    }


def clip_large() -> Fields:
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24}
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": 768,
        "text_config": {"model_type": "clip_text_model", "projection_dim": 768, **text},
        "vision_config": {"model_type": "clip_vision_model", "projection_dim": 768, "patch_size": 14, **vision},
        "torch_dtype": FLOAT32,
    }


def siglip_so400m() -> Fields:
    sizes = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27}
    return {
        "architectures": ["SiglipModel"],
        "model_type": "siglip",
        "text_config": {"model_type": "siglip_text_model", "vocab_size": 32000, "max_position_embeddings": 64, **sizes},
        "vision_config": {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14, **sizes},
        "torch_dtype": FLOAT32,
    }


def qwen2_vl(*sizes: int, tied: bool = False) -> Fields:
    """The tower of Qwen2-VL is the same in every size; what it hands over has the width of the decoder."""
    text = qwen2(*sizes, tied=tied, max_window_layers=28)
    rope = {"type": "mrope", "mrope_section": [16, 24, 24]}
    vision = {"depth": 32, "embed_dim": 1280, "hidden_size": sizes[0], "mlp_ratio": 4, "num_heads": 16}
    vision |= {"in_chans": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    own: Fields = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"}
    own |= {"image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652}
    own |= {"vision_end_token_id": 151653, "rope_scaling": rope, "vision_config": vision}
    return {**text, **own}


def qwen25_vl(*sizes: int, tied: bool = False, tower_mlp: int = 3420) -> Fields:
    text = qwen2(*sizes, tied=tied, positions=128000)
    vision = {"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": tower_mlp, "num_heads": 16}
    vision |= {"in_chans": 3, "out_hidden_size": sizes[0], "patch_size": 14, "spatial_merge_size": 2}
    window = {"window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "temporal_patch_size": 2}
    own: Fields = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl"}
    own |= {"image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652}
    own |= {"vision_end_token_id": 151653, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    return {**text, **own, "vision_config": {**vision, **window}}
