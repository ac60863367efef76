"""A workload becomes the prefill and the decode of DeepSeek-OCR; what the model cannot mean is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from llm_perf_opt.errors import UsageError
from llm_perf_opt.models.deepseek_ocr.attention import ATTENTION_CLASSES
from llm_perf_opt.models.deepseek_ocr.blueprint import DeepseekOCRForCausalLM
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.inputs import OcrInputs, make_inputs
from llm_perf_opt.models.deepseek_ocr.pages import NO_TILES, cut_views, open_page
from llm_perf_opt.models.deepseek_ocr.patches import patched
from llm_perf_opt.models.deepseek_ocr.phases import decode, prefill
from llm_perf_opt.models.deepseek_ocr.stages import STAGES
from llm_perf_opt.plugins import Json, Target, Workload

DEFAULT_IMAGE = "1240x1754"  # A4 at 150 dots per inch
DEFAULT_MODE = "gundam"  # what the released inference does when told nothing
DEFAULT_PROMPT_TOKENS = 20
DEFAULT_ATTENTION = "eager"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def make_targets(
    config: DeepSeekOcrConfig, workload: Workload, *, name: str = "deepseek-ocr", build: Callable[[], Any] | None = None
) -> tuple[Target, ...]:
    """Prefill of page and prompt; then, if any steps are asked for, decode on a cache of that length.

    Both share one build: the blueprint's, unless another is given that takes the same arguments in its forward. The
    decode target stands alone: its cache holds zeros, so it needs no prefill before it.
    """
    _refuse_nonsense(workload, config)
    inputs = _inputs(workload, config)
    attention = workload.attention or DEFAULT_ATTENTION
    first = Target(
        model=name,
        phase="prefill",
        workload=_resolved(workload, inputs),
        build=cache(build or partial(build_blueprint, config, attention, DTYPES[workload.dtype])),
        invoke=partial(prefill, inputs=inputs),
        stages=STAGES,
        runtime=_runtime(config, crops_per_image=[_num_tiles(inputs)] * workload.batch, decode_steps=0),
        observe=patched,
    )
    steps = workload.decode_steps
    if steps == 0:
        return (first,)
    second = replace(
        first,
        phase="decode",
        invoke=partial(decode, inputs=inputs, config=config.decoder, steps=steps),
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


def _inputs(workload: Workload, config: DeepSeekOcrConfig) -> OcrInputs:
    mode = config.modes[workload.mode or DEFAULT_MODE]
    views = cut_views(open_page(workload.image or DEFAULT_IMAGE), mode, workload.crops)
    prompt_tokens = DEFAULT_PROMPT_TOKENS if workload.prompt_tokens is None else workload.prompt_tokens
    dtype = DTYPES[workload.dtype]
    return make_inputs(config, mode, views, prompt_tokens=prompt_tokens, batch=workload.batch, dtype=dtype)


def _resolved(workload: Workload, inputs: OcrInputs) -> dict[str, Json]:
    """The workload with every default filled in, and the lengths that follow from it."""
    return {
        "image": workload.image or DEFAULT_IMAGE,
        "mode": workload.mode or DEFAULT_MODE,
        "crops": inputs.images_spatial_crop[0].tolist(),
        "prompt_tokens": inputs.num_tokens - inputs.num_image_tokens - 1,
        "image_tokens": inputs.num_image_tokens,
        "context_tokens": inputs.num_tokens,
        "decode_steps": workload.decode_steps,
        "batch": workload.batch,
        "dtype": workload.dtype,
        "attention": workload.attention or DEFAULT_ATTENTION,
    }


def _runtime(config: DeepSeekOcrConfig, *, crops_per_image: list[int], decode_steps: int) -> dict[str, Json]:
    """What the loops of one phase do; a decode looks at no images."""
    return {
        "images": len(crops_per_image),
        "crops_per_image": crops_per_image,
        "decoder_depth": config.decoder.num_hidden_layers,
        "decode_steps": decode_steps,
    }


def _num_tiles(inputs: OcrInputs) -> int:
    columns, rows = inputs.images_spatial_crop[0].tolist()
    return 0 if (columns, rows) == NO_TILES else columns * rows


def _refuse_nonsense(workload: Workload, config: DeepSeekOcrConfig) -> None:
    mode = workload.mode or DEFAULT_MODE
    _require_known("mode", mode, config.modes)
    _require_known("attention", workload.attention or DEFAULT_ATTENTION, ATTENTION_CLASSES)
    _require_known("dtype", workload.dtype, DTYPES)
    _require_at_least("batch", workload.batch, 1)
    _require_at_least("decode_steps", workload.decode_steps, 0)
    _require_at_least("prompt_tokens", workload.prompt_tokens or 0, 0)
    if workload.crops is None:
        return
    _require_at_least("crops", min(workload.crops), 1)
    if config.modes[mode].crop_size is None:
        raise UsageError(
            f"Mode {mode!r} has no crops.",
            why="it shows the model one view of the whole page",
            fix=f"leave out the crops, or use mode {DEFAULT_MODE!r}",
        )


def _require_known(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise UsageError(
            f"DeepSeek-OCR has no {what} named {name!r}.", why=f"known: {', '.join(known)}", fix="pick one of these"
        )


def _require_at_least(what: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"{what} cannot be {value}.", why=f"it must be at least {least}", fix="give a larger number")
