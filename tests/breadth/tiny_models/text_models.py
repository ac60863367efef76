"""Dense text models: decoders, encoders, encoder-decoders."""

from __future__ import annotations

from .model_case import TinyModel, given, ids, ones

_DECODER = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
_ENCODER = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_PROMPT = {"input_ids": ids(2, 9), "attention_mask": ones(2, 9)}
_BART = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}

DECODERS = (
    TinyModel(model="LlamaForCausalLM", config="LlamaConfig", family="dense", sizes=_DECODER, inputs=_PROMPT),
    TinyModel(model="Qwen3ForCausalLM", config="Qwen3Config", family="dense", sizes=_DECODER, inputs=_PROMPT),
    TinyModel(
        model="Gemma3ForCausalLM",
        config="Gemma3TextConfig",
        family="dense",
        sizes=_DECODER | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
        inputs=_PROMPT,
    ),
    TinyModel(
        model="Phi3ForCausalLM",
        config="Phi3Config",
        family="dense",
        sizes=_DECODER | {"eos_token_id": 1, "bos_token_id": 2},
        inputs=_PROMPT,
    ),
    TinyModel(
        model="GPT2LMHeadModel",
        config="GPT2Config",
        family="dense",
        sizes={"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4},
        inputs=_PROMPT,
    ),
    TinyModel(
        model="FalconForCausalLM",
        config="FalconConfig",
        family="dense",
        sizes={"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True},
        inputs=_PROMPT,
    ),
    TinyModel(
        model="BloomForCausalLM",
        config="BloomConfig",
        family="dense",
        sizes={"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        inputs=_PROMPT,
    ),
)

ENCODERS = (
    TinyModel(model="BertForMaskedLM", config="BertConfig", family="encoder", sizes=_ENCODER, inputs=_PROMPT),
    TinyModel(
        model="ModernBertForMaskedLM",
        config="ModernBertConfig",
        family="encoder",
        sizes=_ENCODER | {"local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 0},
        inputs=_PROMPT,
    ),
    TinyModel(
        model="DebertaV2ForSequenceClassification",
        config="DebertaV2Config",
        family="encoder",
        sizes=_ENCODER | {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]},
        inputs=_PROMPT,
    ),
    TinyModel(
        model="LongformerModel",
        config="LongformerConfig",
        family="encoder",
        sizes=_ENCODER | {"attention_window": 4},
        inputs=_PROMPT | {"global_attention_mask": given([1] + [0] * 8, [1] + [0] * 8)},
    ),
    TinyModel(
        model="CanineModel",
        config="CanineConfig",
        family="encoder",
        sizes=_ENCODER | {"num_hash_buckets": 32, "max_position_embeddings": 64, "local_transformer_stride": 8},
        inputs={"input_ids": ids(2, 32, high=1000), "attention_mask": ones(2, 32)},
    ),
    TinyModel(
        model="ReformerModelWithLMHead",
        config="ReformerConfig",
        family="encoder",
        sizes={
            "vocab_size": 64,
            "hidden_size": 32,
            "feed_forward_size": 48,
            "num_attention_heads": 4,
            "attention_head_size": 8,
            "attn_layers": ["local", "lsh"],
            "axial_pos_shape": [4, 8],
            "axial_pos_embds_dim": [16, 16],
            "lsh_attn_chunk_length": 8,
            "local_attn_chunk_length": 8,
            "num_buckets": 4,
            "num_hashes": 2,
            "max_position_embeddings": 32,
            "is_decoder": True,
        },
        inputs={"input_ids": ids(2, 32)},
    ),
    TinyModel(
        model="EsmForMaskedLM",
        config="EsmConfig",
        family="encoder",
        sizes=_ENCODER | {"pad_token_id": 1, "mask_token_id": 3, "position_embedding_type": "rotary"},
        inputs=_PROMPT,
    ),
)

ENCODER_DECODERS = (
    TinyModel(
        model="T5ForConditionalGeneration",
        config="T5Config",
        family="encoder-decoder",
        sizes={"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        inputs=_PROMPT | {"decoder_input_ids": ids(2, 5)},
    ),
    TinyModel(
        model="BartForConditionalGeneration",
        config="BartConfig",
        family="encoder-decoder",
        sizes=_BART,
        inputs=_PROMPT,
    ),
    TinyModel(
        model="LEDForConditionalGeneration",
        config="LEDConfig",
        family="encoder-decoder",
        sizes=_BART | {"attention_window": [4, 4], "max_encoder_position_embeddings": 64},
        inputs=_PROMPT | {"decoder_input_ids": ids(2, 5)},
    ),
    TinyModel(
        model="ProphetNetForConditionalGeneration",
        config="ProphetNetConfig",
        family="encoder-decoder",
        sizes={
            "vocab_size": 64,
            "hidden_size": 32,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 64,
        },
        inputs=_PROMPT | {"decoder_input_ids": ids(2, 5)},
    ),
)
