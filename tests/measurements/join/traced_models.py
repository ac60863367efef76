"""The models of the recordings in `tests/facts/gpu_traces`, traced without weights with the batch and sizes recorded.

Hyper-parameters are those that the models were published with; batch and lengths are read off the recorded shapes.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph

CONFIGS: dict[str, dict[str, Any]] = {
    "vit-base-224": {
        "architectures": ["ViTModel"],
        "model_type": "vit",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "image_size": 224,
        "patch_size": 16,
    },
    "qwen1.5-0.5b": {
        "architectures": ["Qwen2Model"],
        "model_type": "qwen2",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 2816,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
    },
    "owlv2-large": {
        "architectures": ["Owlv2ForObjectDetection"],
        "model_type": "owlv2",
        "projection_dim": 768,
        "text_config": {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 16,
        },
        "vision_config": {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "image_size": 1008,
            "patch_size": 14,
        },
    },
}
WORKLOADS: dict[str, dict[str, Any]] = {
    "vit-base-224": {"batch": 4},
    "qwen1.5-0.5b": {"batch": 16, "prompt_tokens": 559, "decode_steps": 0},
    "owlv2-large": {"prompt_tokens": 5, "attention": "eager"},
}


@cache
def traced(name: str) -> CallGraph:
    """The call graph of the recorded forward."""
    if name == "timesformer-base":
        return _timesformer()
    if name == "bert-small":
        return _bert()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, name)
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIGS[name]), "utf-8")
        return lpo.trace(model, **WORKLOADS[name]).graphs[0]


def _timesformer() -> CallGraph:
    """One video of 128 frames, of which the configuration expects 8: the recorded run passed them all at once."""
    import torch
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    with torch.device("meta"):
        model = TimesformerForVideoClassification(TimesformerConfig(num_labels=400)).to(torch.bfloat16).eval()
        video = torch.empty(1, 128, 3, 224, 224, dtype=torch.bfloat16)
    return lpo.trace(model, args=(video,)).graphs[0]


def _bert() -> CallGraph:
    """The head runs at every position, as in the recording."""
    import torch
    from transformers import BertConfig, BertLMHeadModel

    config = BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)
    with torch.device("meta"):
        model = BertLMHeadModel(config).to(torch.bfloat16).eval()
    zeros, ones = torch.zeros(1, 141, dtype=torch.long), torch.ones(1, 141, dtype=torch.long)
    inputs = {"input_ids": zeros, "token_type_ids": zeros, "attention_mask": ones}
    return lpo.trace(model, kwargs={**inputs, "position_ids": torch.arange(141)[None]}).graphs[0]
