"""The tiny twin with weights large enough that a wrong path shows in the output."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from llm_perf_opt.models.deepseek_ocr.blueprint import DeepseekOCRForCausalLM
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.inputs import OcrInputs, PromptIds, make_inputs, placeholder_ids
from llm_perf_opt.models.deepseek_ocr.pages import cut_views, synthetic_page

TINY = DeepSeekOcrConfig.tiny()


def tiny_model(attention: str = "eager") -> DeepseekOCRForCausalLM:
    model = DeepseekOCRForCausalLM(TINY, attention).eval()
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = noise * 0.2 if parameter.dim() > 1 else 1 + noise * 0.1
    return model


def tiny_inputs(mode: str = "gundam", *, prompt_tokens: int = 6, batch: int = 1) -> OcrInputs:
    views = cut_views(synthetic_page(90, 130), TINY.modes[mode])
    return make_inputs(
        TINY,
        TINY.modes[mode],
        views,
        prompt=PromptIds(after=placeholder_ids(prompt_tokens)),
        batch=batch,
        dtype=torch.float32,
    )


def write_tiny_folder(place: Path) -> Path:
    """The configuration file of a released folder, with small sizes of everything but the vocabulary and the pages."""
    small = {"num_hidden_layers": 1, "vocab_size": 129280, "hidden_size": 16, "intermediate_size": 8}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 4, "moe_intermediate_size": 8}
    sam = {"downsample_channels": [8, 8], "global_attn_indexes": [0], "heads": 2, "layers": 1, "width": 8}
    clip = {"heads": 2, "image_size": 32, "layers": 1, "patch_size": 8, "width": 8}
    document = {"model_type": "DeepseekOCR", "eos_token_id": 1, **small}
    document["vision_config"] = {"image_size": 1024, "width": {"clip-l-14-224": clip, "sam_vit_b": sam}}
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(document), encoding="utf-8")
    return place
