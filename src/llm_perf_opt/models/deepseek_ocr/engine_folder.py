"""A folder that a serving engine takes for the model: its configuration, from the sizes of the blueprint.

An engine that only schedules reads no weights and no words: it needs the sizes of the cache.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.models.deepseek_ocr.configuration import ClipConfig, DecoderConfig, DeepSeekOcrConfig, SamConfig

_MODEL_TYPE = "deepseek_vl_v2"  # as the released configuration calls itself


def write_engine_folder(config: DeepSeekOcrConfig, folder: Path) -> None:
    """The configuration, as `from_pretrained` of other programs reads it."""
    write_whole(folder / "config.json", [json.dumps(_configuration(config)).encode()])


def _configuration(config: DeepSeekOcrConfig) -> dict[str, Any]:
    decoder, side = config.decoder, config.sam.image_size
    language = _language(decoder)
    return {
        **language,
        "architectures": ["DeepseekOCRForCausalLM"],
        "candidate_resolutions": [[side, side]],
        "global_view_pos": "head",
        "language_config": {"architectures": ["DeepseekV2ForCausalLM"], **language},
        "model_type": _MODEL_TYPE,
        "projector_config": {
            "input_dim": config.projector_input_size,
            "model_type": "mlp_projector",
            "n_embed": decoder.hidden_size,
            "projector_type": "linear",
        },
        "rms_norm_eps": decoder.rms_norm_eps,
        "rope_theta": decoder.rope_theta,
        "tie_word_embeddings": False,
        "tile_tag": "2D",
        "vision_config": _vision(config.sam, config.clip),
    }


def _language(decoder: DecoderConfig) -> dict[str, Any]:
    same = (
        "bos_token_id",
        "first_k_dense_replace",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "moe_intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "num_attention_heads",
        "num_experts_per_tok",
        "num_hidden_layers",
        "vocab_size",
    )
    return {
        **{name: getattr(decoder, name) for name in same},
        "eos_token_id": 1,
        "kv_lora_rank": None,
        "n_group": 1,
        "num_key_value_heads": decoder.num_attention_heads,
        "q_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "topk_group": 1,
        "topk_method": "greedy",
        "torch_dtype": "bfloat16",
        "use_mla": False,
        "v_head_dim": 0,
    }


def _vision(sam: SamConfig, clip: ClipConfig) -> dict[str, Any]:
    return {
        "image_size": sam.image_size,
        "model_type": "vision",
        "width": {
            "clip-l-14-224": {
                "heads": clip.num_heads,
                "image_size": clip.image_size,
                "layers": clip.num_layers,
                "patch_size": clip.patch_size,
                "width": clip.hidden_size,
            },
            "sam_vit_b": {
                "downsample_channels": list(sam.downsample_channels),
                "global_attn_indexes": list(sam.global_attn_indexes),
                "heads": sam.num_heads,
                "layers": sam.num_layers,
                "width": sam.hidden_size,
            },
        },
    }
