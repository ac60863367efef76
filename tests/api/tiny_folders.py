"""Folders of models small enough to trace in a fraction of a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LAYERS = 3
TOKENS = 16
HIDDEN = 64
VOCABULARY = 256
BF16 = 2

_DECODER: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 2048,
}


def llama_folder(folder: Path, **changed: Any) -> Path:
    """A dense decoder of three layers."""
    fields = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": LAYERS}
    return _written(folder, {**_DECODER, **fields, **changed})


def mixtral_folder(folder: Path, **changed: Any) -> Path:
    """Two layers of four experts, of which each token takes two."""
    fields = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_hidden_layers": 2}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return _written(folder, {**_DECODER, **fields, **experts, **changed})


def _written(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
