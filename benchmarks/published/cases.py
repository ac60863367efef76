"""Traces of DeepSeek-OCR that the predictions start from, each made once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.core.plugins import MODELS, TRACERS
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.predict import StageTime, predict
from llm_perf_opt.timing.rates import Band

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


EAGER, FUSED = Execution.EAGER, Execution.FUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published figure beside its prediction, both in `unit`; `bound` is the best that no run can beat."""

    record: str
    metric: str
    unit: str
    published: tuple[float, ...]  # one figure, or the ends of a range
    bound: float
    low: float
    high: float
    device: str
    execution: str
    assumed: str

    @classmethod
    def of_time(
        cls, record: str, metric: str, published_ms: Iterable[float], bound_s: float, band: Band, **more: str
    ) -> Row:
        """In milliseconds; `more` are the device, how it ran and what is assumed."""
        figures, ends = tuple(map(float, published_ms)), {"low": band.low * 1e3, "high": band.high * 1e3}
        return cls(record=record, metric=metric, unit="ms", published=figures, bound=bound_s * 1e3, **ends, **more)

    @property
    def is_inside(self) -> bool:
        """Whether the band holds every published figure."""
        return all(self.low <= figure <= self.high for figure in self.published)

    @property
    def is_possible(self) -> bool:
        """Whether the bound holds: below a time, above a rate."""
        is_rate = self.unit.endswith("/s")
        return all(figure <= self.bound if is_rate else figure >= self.bound for figure in self.published)


DECODE_STEPS = {  # record -> device, context, sequences in a step, dtype, metric, what is assumed
    "dsocr-sglang-mi300x-c1": ("mi300x", 336, 1, "float16", "tpot_ms_mean", "197 tokens in, half of 278 out"),
    "dsocr-sglang-mi300x-c100": ("mi300x", 396, 86, "float16", "itl_ms_median", "302 in, half of 188 out, 86 at once"),
    "dsocr2-sglang-h200-c1": ("h200-sxm", 336, 1, "bfloat16", "tpot_ms_mean", "lengths as on MI300X"),
    "dsocr2-sglang-h200-c100": ("h200-sxm", 396, 87, "bfloat16", "itl_ms_median", "lengths as on MI300X, 87 at once"),
    "dsocr2-hf-rtx3090": ("rtx-3090", 1400, 1, "bfloat16", "ms_per_token", "a page of 2 x 3 crops, half of 1,000 out"),
}
TEXT_FIRST_TOKENS = ("dsocr-sglang-mi300x-c1", "dsocr2-sglang-h200-c1")
SERVED = "; published with server, network and image preprocessing, which are not predicted"
JINA_OUT, JINA_DEVICE = 620, "rtx-pro-6000-bw-server"
README_OUT, README_AT_ONCE = 1080, 100

REASONS = {
    "dsocr-paper-1xA100-40G": "workload not stated; the README's figure for the same pipeline is in the table",
    "dsocr-paper-160xA100-40G": "likewise, for 160 devices",
    "dsocr-vllm-a100-80g-hf": "output tokens per page not stated",
    "dsocr-vllm-l40s-sagemaker": "output tokens per page not stated",
    "dsocr-vllm-l4-cloudrun": "output tokens per page not stated",
    "dsocr-kvcache-capacity": "memory, not time: see the table of capacities",
    "dsocr-lightonocr-h100": "a ratio of two figures; mode and concurrency not given",
    "dsocr-unlimitedocr-omnidocbench": "device not stated",
    "dsocr-unlimitedocr-table4": "device not stated",
    "dsocr-hf-rtx5090-llmperfopt": "the same runs as the RTX 5090 records above, less precise",
    "dsocr-flops-llmperfopt": "FLOPs, no time",
    "dsocr-candle-a100-40g": "an engine that is neither eager PyTorch nor optimised; its launches are unknown",
    "dsocr-vllm-ascend-910b": "the device's public figures differ by a factor of four",
    "dsocr-iluvatar-mrv100": "device not in the table",
    "dsocr-vllm-b200-smoke": "output tokens of each image not stated",
    "dsocr-mlx-swift": "device not stated",
    "dsocr-rs-macos": "device not stated",
    "dsocr-4090-design-claim": "a claim, not a measurement",
    "dsocr-encoder-cudagraph": "no figure",
}
OTHER_MODELS = "models that are not DeepSeek-OCR: their code and configurations are not part of this project"


def usable_rows(records: dict[str, dict[str, Any]]) -> Iterator[Row]:
    """Every figure that can be predicted, in the order of the records."""
    for name, record in records.items():
        if name in DECODE_STEPS:
            yield decode_step_row(name, record["metric"])
            if name in TEXT_FIRST_TOKENS:
                yield _text_first_token(name, record["metric"])
        elif name == "dsocr-readme-pdf-2500tps":
            yield _readme(name, record["metric"])
        elif name.startswith("jinaocr"):
            yield from _jina(name, record["metric"])


def decode_step_row(name: str, metric: dict[str, Any]) -> Row:
    """One step of the record's engine."""
    device, context, sequences, dtype, key, assumed = DECODE_STEPS[name]
    execution = EAGER if "-hf-" in name else FUSED
    found = step(context, find_device(device), execution, sequences, dtype)
    more = {"device": device, "execution": execution, "assumed": assumed}
    return Row.of_time(name, "time per decode step", (metric[key],), found.lower_bound.seconds, found.wall, **more)


def _text_first_token(name: str, metric: dict[str, Any]) -> Row:
    device, _, _, dtype, _, _ = DECODE_STEPS[name]
    found = text_prefill(197, find_device(device), dtype)
    more = {"device": device, "execution": FUSED, "assumed": "197 tokens in" + SERVED}
    figures = (metric["ttft_ms_mean"],)
    return Row.of_time(name, "time to first token", figures, found.lower_bound.seconds, found.wall, **more)


def _pages_per_s(device: Device, at_once: int, out_tokens: int) -> tuple[Band, float]:
    """A page costs its own vision and prefill, and its share of steps that `at_once` pages make together."""
    decode = step(904 + 9 + out_tokens // 2, device, FUSED, at_once)
    vision_and_prefill, bound = page(device, FUSED)
    seconds = vision_and_prefill + decode.wall.times(out_tokens / at_once)
    return Band(1 / seconds.high, 1 / seconds.low), 1 / (bound + decode.lower_bound.seconds * out_tokens / at_once)


def _readme(name: str, metric: dict[str, Any]) -> Row:
    device = "a100-sxm-40g"
    pages, bound = _pages_per_s(find_device(device), README_AT_ONCE, README_OUT)
    return Row(
        record=name,
        metric="output",
        unit="tokens/s",
        published=(float(metric["output_tokens_per_s"]),),
        bound=bound * README_OUT,
        low=pages.low * README_OUT,
        high=pages.high * README_OUT,
        device=device,
        execution=FUSED,
        assumed="2 x 3 crops, 1,080 tokens out, 100 sequences at once, SXM card",
    )


def _jina(name: str, metric: dict[str, Any]) -> Iterator[Row]:
    """A step of one page while others wait for their prefill: each page in flight stops the steps once."""
    device, at_once = find_device(JINA_DEVICE), int(name.rpartition("-c")[2])
    pages, best = _pages_per_s(device, at_once, JINA_OUT)
    shared = {"device": JINA_DEVICE, "execution": FUSED, "assumed": "2 x 3 crops, 620 tokens out, Server Edition"}
    rate = (float(metric["pages_per_s"]),)
    ends = {"bound": best, "low": pages.low, "high": pages.high}
    yield Row(record=name, metric="pages", unit="pages/s", published=rate, **ends, **shared)
    if metric["tpot_ms"] is None:
        return
    decode = step(904 + 9 + JINA_OUT // 2, device, FUSED, at_once)
    vision_and_prefill, bound = page(device, FUSED)
    if at_once == 1:
        assumed = {**shared, "assumed": shared["assumed"] + SERVED}
        yield Row.of_time(
            name, "time to first token", (metric["ttft_s_mean"] * 1e3,), bound, vision_and_prefill, **assumed
        )
    waits = (at_once - 1) / JINA_OUT
    band, bound_s = decode.wall + vision_and_prefill.times(waits), decode.lower_bound.seconds + bound * waits
    yield Row.of_time(name, "time per output token", (metric["tpot_ms"],), bound_s, band, **shared)
