"""A workload becomes the prefill and the decode of DeepSeek-OCR, ready for any tracer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from llm_perf_opt.core.protocols import Json, Target, Workload
from llm_perf_opt.models.deepseek_ocr.blueprint import DeepseekOCRForCausalLM
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.inputs import OcrInputs, PromptIds, make_inputs, placeholder_ids
from llm_perf_opt.models.deepseek_ocr.pages import cut_views, open_page
from llm_perf_opt.models.deepseek_ocr.patches import patched
from llm_perf_opt.models.deepseek_ocr.phases import decode, prefill, prepare_decode
from llm_perf_opt.models.deepseek_ocr.plan import BYTES_PER_VALUE, Plan, make_plan
from llm_perf_opt.models.deepseek_ocr.stages import STAGES

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in BYTES_PER_VALUE}


def make_targets(
    config: DeepSeekOcrConfig, workload: Workload, *, name: str = "deepseek-ocr", build: Callable[[], Any] | None = None
) -> tuple[Target, ...]:
    """Prefill of page and prompt; then, if any steps are asked for, decode on a cache of that length.

    Both share one build: the blueprint's, unless another is given that takes the same arguments in its forward. The
    decode target stands alone: its cache holds zeros, so it needs no prefill before it.
    """
    plan = make_plan(config, workload)
    inputs = _inputs(plan, config)
    first = Target(
        model=name,
        phase="prefill",
        workload=plan.described(),
        build=cache(build or partial(build_blueprint, config, plan.attention, DTYPES[plan.dtype])),
        invoke=partial(prefill, inputs=inputs),
        stages=STAGES,
        runtime=_runtime(config, crops_per_image=[plan.tiles] * plan.batch, decode_steps=0),
        observe=patched,
    )
    steps = plan.decode_steps
    if steps == 0:
        return (first,)
    second = replace(
        first,
        phase="decode",
        prepare=partial(prepare_decode, inputs=inputs, config=config.decoder, steps=steps),
        invoke=partial(decode, inputs=inputs),
        runtime=_runtime(config, crops_per_image=[], decode_steps=steps),
    )
    return first, second


def build_blueprint(config: DeepSeekOcrConfig, attention: str, dtype: torch.dtype) -> DeepseekOCRForCausalLM:
    """The model in evaluation mode, its weights created in `dtype`; rotary frequencies stay in float32."""
    with _default_dtype(dtype):
        return DeepseekOCRForCausalLM(config, attention).eval()


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def _inputs(plan: Plan, config: DeepSeekOcrConfig) -> OcrInputs:
    views = cut_views(open_page(plan.image), plan.mode, plan.grid)
    prompt = PromptIds(after=placeholder_ids(plan.prompt_tokens))
    return make_inputs(config, plan.mode, views, prompt=prompt, batch=plan.batch, dtype=DTYPES[plan.dtype])


def _runtime(config: DeepSeekOcrConfig, *, crops_per_image: list[int], decode_steps: int) -> dict[str, Json]:
    """What the loops of one phase do; a decode looks at no images."""
    return {
        "images": len(crops_per_image),
        "crops_per_image": crops_per_image,
        "decoder_depth": config.decoder.num_hidden_layers,
        "decode_steps": decode_steps,
    }
