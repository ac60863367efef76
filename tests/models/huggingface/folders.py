"""Tiny Hugging Face folders, written by the tests: a configuration and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 200,
    "max_position_embeddings": 256,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 32,
}
LLAMA: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **TEXT}
MIXTRAL: dict[str, Any] = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, **TEXT}
T5: dict[str, Any] = {
    "model_type": "t5",
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 200,
}
LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "image_token_index": 199,
    "text_config": {"model_type": "llama", **TEXT},
    "vision_config": {"model_type": "clip_vision_model", **VISION},
}


def write_folder(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder
