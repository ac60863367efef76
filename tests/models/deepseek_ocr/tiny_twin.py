"""The tiny twin with weights large enough that a wrong path shows in the output."""

from __future__ import annotations

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
