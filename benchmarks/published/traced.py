"""Traces of DeepSeek-OCR that the predictions start from, each made once."""

from __future__ import annotations

from functools import cache

from llm_perf_opt.analyses.prediction import Band, Execution, StagePrediction, predict_stages
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.protocols import MODELS, TRACERS, Workload

GUNDAM_TOKENS = 904  # BOS, and the image tokens of a page cut into 2 x 3 crops
TINY_TOKENS = 74  # BOS, and the image tokens of a page of 512 pixels: a short context that a text can fill


@cache
def decode_graph(context: int, batch: int = 1, dtype: str = "bfloat16") -> CallGraph:
    """One decode step of `batch` sequences with `context` tokens each in the cache; no vision runs in it."""
    is_long = context > GUNDAM_TOKENS
    workload = Workload(
        mode="gundam" if is_long else "tiny",
        crops=(2, 3) if is_long else None,
        prompt_tokens=context - (GUNDAM_TOKENS if is_long else TINY_TOKENS),
        batch=batch,
        dtype=dtype,
        attention="flash",
    )
    return _trace("decode", workload)


@cache
def prefill_graph(prompt_tokens: int = 9) -> CallGraph:
    """One page of 2 x 3 crops: vision and prefill."""
    return _trace("prefill", Workload(mode="gundam", crops=(2, 3), prompt_tokens=prompt_tokens, attention="flash"))


@cache
def text_graph(tokens: int, dtype: str) -> CallGraph:
    """A prefill of `tokens` tokens; its last stage is the decoder, the others stand for the small page before it."""
    return _trace("prefill", Workload(mode="tiny", prompt_tokens=tokens - TINY_TOKENS, dtype=dtype, attention="flash"))


def _trace(phase: str, workload: Workload) -> CallGraph:
    targets = {target.phase: target for target in MODELS.get("deepseek-ocr")().targets(workload)}
    return TRACERS.get("weightless")().trace(targets[phase])


def step(
    context: int, device: Device, execution: Execution, batch: int = 1, dtype: str = "bfloat16"
) -> StagePrediction:
    """One decode step."""
    (prediction,) = predict_stages(decode_graph(context, batch, dtype), device, execution)
    return prediction


def text_prefill(tokens: int, device: Device, dtype: str) -> StagePrediction:
    """The decoder's part of a prefill."""
    return predict_stages(text_graph(tokens, dtype), device, Execution.FUSED)[-1]


def page(device: Device, execution: Execution) -> tuple[Band, float]:
    """Vision and prefill of one page: the band, and the bound."""
    total, bound = Band(0, 0), 0.0
    for prediction in predict_stages(prefill_graph(), device, execution):
        total, bound = total + prediction.wall, bound + prediction.light.seconds
    return total, bound
