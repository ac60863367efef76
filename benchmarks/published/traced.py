"""Traces of DeepSeek-OCR that the predictions start from, each made once."""

from __future__ import annotations

from functools import cache

from llm_perf_opt.analyses.time.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.analyses.time.predict import StageTime, predict
from llm_perf_opt.analyses.time.rates import Band
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.plugins import MODELS, TRACERS
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrWorkload

GUNDAM_TOKENS = 904  # BOS, and the image tokens of a page cut into 2 x 3 crops
TINY_TOKENS = 74  # BOS, and the image tokens of a page of 512 pixels: a short context that a text can fill


@cache
def decode_graph(context: int, batch: int = 1, dtype: str = "bfloat16") -> CallGraph:
    """One decode step of `batch` sequences with `context` tokens each in the cache; no vision runs in it."""
    is_long = context > GUNDAM_TOKENS
    workload = DeepSeekOcrWorkload(
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
    return _trace(
        "prefill", DeepSeekOcrWorkload(mode="gundam", crops=(2, 3), prompt_tokens=prompt_tokens, attention="flash")
    )


@cache
def text_graph(tokens: int, dtype: str) -> CallGraph:
    """A prefill of `tokens` tokens; its last stage is the decoder, the others stand for the small page before it."""
    return _trace(
        "prefill", DeepSeekOcrWorkload(mode="tiny", prompt_tokens=tokens - TINY_TOKENS, dtype=dtype, attention="flash")
    )


def _trace(phase: str, workload: Workload) -> CallGraph:
    targets = {target.phase: target for target in MODELS.get("deepseek-ocr")().targets(workload)}
    return TRACERS.get("weightless")().trace(targets[phase])


def step(context: int, device: Device, execution: Execution, batch: int = 1, dtype: str = "bfloat16") -> StageTime:
    """One decode step."""
    (prediction,) = predict(decode_graph(context, batch, dtype), DataSheetRates(device, execution))
    return prediction


def text_prefill(tokens: int, device: Device, dtype: str) -> StageTime:
    """The decoder's part of a prefill."""
    return predict(text_graph(tokens, dtype), DataSheetRates(device, Execution.FUSED))[-1]


def page(device: Device, execution: Execution) -> tuple[Band, float]:
    """Vision and prefill of one page: the band, and the bound."""
    total, bound = Band(0, 0), 0.0
    for prediction in predict(prefill_graph(), DataSheetRates(device, execution)):
        total, bound = total + prediction.wall, bound + prediction.lower_bound.seconds
    return total, bound
