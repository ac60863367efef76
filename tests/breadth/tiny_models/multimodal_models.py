"""Images with text: dual encoders and language models that read images through placeholder tokens."""

from __future__ import annotations

from .model_case import TinyModel, floats, given, ids, ones, with_placeholders

_VISION = {
    "image_size": 16,
    "patch_size": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_TEXT_ENCODER = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
_DECODER = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
_LLAMA = _DECODER | {"model_type": "llama"}
_MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
_QWEN_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
}
_QWEN_TOKENS = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
_QWEN_PROMPT = {
    "pixel_values": floats(16, 96),
    "image_grid_thw": given([1, 4, 4]),
    "input_ids": with_placeholders(9, 60, 4),
    "mm_token_type_ids": given([0, 1, 1, 1, 1, 0, 0, 0, 0]),
    "attention_mask": ones(1, 9),
}
_IMAGE = {"pixel_values": floats(1, 3, 16, 16)}
_CAPTIONS = {"input_ids": ids(2, 7), "attention_mask": ones(2, 7), "pixel_values": floats(2, 3, 16, 16)}

MULTIMODAL = (
    TinyModel(
        model="CLIPModel",
        config="CLIPConfig",
        family="vision-language",
        sizes={"text_config": _TEXT_ENCODER | {"eos_token_id": 63}, "vision_config": _VISION, "projection_dim": 16},
        inputs=_CAPTIONS,
    ),
    TinyModel(
        model="SiglipModel",
        config="SiglipConfig",
        family="vision-language",
        sizes={"text_config": _TEXT_ENCODER, "vision_config": _VISION},
        inputs=_CAPTIONS,
    ),
    TinyModel(
        model="BlipForConditionalGeneration",
        config="BlipConfig",
        family="vision-language",
        sizes={"text_config": _TEXT_ENCODER | {"encoder_hidden_size": 32}, "vision_config": _VISION},
        inputs=_CAPTIONS,
    ),
    TinyModel(
        model="LlavaForConditionalGeneration",
        config="LlavaConfig",
        family="vision-language",
        sizes={
            "text_config": _LLAMA,
            "vision_config": _VISION | {"model_type": "clip_vision_model"},
            "image_token_index": 60,
        },
        inputs=_IMAGE | {"input_ids": with_placeholders(22, 60, 16), "attention_mask": ones(1, 22)},
    ),
    TinyModel(
        model="PaliGemmaForConditionalGeneration",
        config="PaliGemmaConfig",
        family="vision-language",
        sizes={
            "text_config": _DECODER | {"model_type": "gemma"},
            "vision_config": _VISION | {"model_type": "siglip_vision_model", "projection_dim": 32},
            "projection_dim": 32,
            "hidden_size": 32,
            "image_token_index": 60,
        },
        inputs=_IMAGE | {"input_ids": with_placeholders(22, 60, 16), "attention_mask": ones(1, 22)},
    ),
    TinyModel(
        model="Idefics3ForConditionalGeneration",
        config="Idefics3Config",
        family="vision-language",
        sizes={"text_config": _LLAMA, "vision_config": _VISION, "scale_factor": 2, "image_token_id": 60},
        inputs={
            "pixel_values": floats(1, 2, 3, 16, 16),
            "input_ids": with_placeholders(12, 60, 8),
            "attention_mask": ones(1, 12),
        },
    ),
    TinyModel(
        model="Qwen2VLForConditionalGeneration",
        config="Qwen2VLConfig",
        family="vision-language",
        sizes=_QWEN_TOKENS
        | {
            "text_config": _DECODER | {"rope_parameters": _MROPE},
            "vision_config": _QWEN_VISION | {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2},
        },
        inputs=_QWEN_PROMPT,
    ),
    TinyModel(
        model="Qwen2_5_VLForConditionalGeneration",
        config="Qwen2_5_VLConfig",
        family="vision-language",
        sizes=_QWEN_TOKENS
        | {
            "text_config": _DECODER | {"rope_parameters": _MROPE},
            "vision_config": _QWEN_VISION | {"out_hidden_size": 32, "window_size": 8, "fullatt_block_indexes": [1]},
        },
        inputs=_QWEN_PROMPT,
    ),
    TinyModel(
        model="Qwen3VLForConditionalGeneration",
        config="Qwen3VLConfig",
        family="vision-language",
        sizes=_QWEN_TOKENS
        | {
            "text_config": _DECODER | {"rope_parameters": _MROPE},
            "vision_config": _QWEN_VISION
            | {"out_hidden_size": 32, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        },
        inputs=_QWEN_PROMPT,
    ),
    TinyModel(
        model="LayoutLMv3ForTokenClassification",
        config="LayoutLMv3Config",
        family="vision-language",
        sizes=_TEXT_ENCODER
        | {
            "coordinate_size": 4,
            "shape_size": 8,
            "input_size": 16,
            "patch_size": 4,
            "max_2d_position_embeddings": 64,
            "rel_pos_bins": 8,
            "rel_2d_pos_bins": 8,
        },
        inputs={
            "input_ids": ids(1, 7),
            "bbox": given([[1, 2, 30, 40]] * 7),
            "attention_mask": ones(1, 7),
            "pixel_values": floats(1, 3, 16, 16),
        },
    ),
)
