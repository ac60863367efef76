"""Reads `published.json`: what papers, documentation and issues say of OCR models, as far as a bound can be held to it.

A record is usable if it names a device of the table, a model whose decoder is written down here, and a time for a token
or a rate of tokens. Of a page only what is certain counts: the tokens of one view without crops, and no vision at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.bounds.measured_run import MeasuredRun

Record = Mapping[str, Any]

DEEPSEEK_OCR = "deepseek-ocr"
PAGE_TOKENS = 274  # BOS and the tokens of one view of 1024 x 1024
JINA_OUT = 605  # the fewest of its pages
README_OUT, README_AT_ONCE = 1080, 100
GUNDAM_TOKENS, PROFILED_OUT = 904, 64

DeepseekRun = tuple[str, int, int, int]  # device, prompt, output, sequences at once
DEEPSEEK_RUNS: dict[str, DeepseekRun] = {
    "dsocr-sglang-mi300x-c1": ("mi300x", 197, 278, 1),
    "dsocr-sglang-mi300x-c100": ("mi300x", 302, 188, 85),
    "dsocr2-sglang-h200-c1": ("h200-sxm", 197, 278, 1),
    "dsocr2-sglang-h200-c100": ("h200-sxm", 302, 188, 86),
    "dsocr-readme-pdf-2500tps": ("a100-sxm-40g", PAGE_TOKENS, README_OUT, README_AT_ONCE),
    "dsocr-hf-rtx5090-llmperfopt": ("rtx-5090", GUNDAM_TOKENS, PROFILED_OUT, 1),
    "dsocr2-hf-rtx3090": ("rtx-3090", PAGE_TOKENS, 1000, 1),
    "dsocr-candle-a100-40g": ("a100-sxm-40g", PAGE_TOKENS, 2000, 1),
}
JINA_DEVICE = "rtx-pro-6000-bw-server"
DECODERS = {
    "MinerU2-VLM 0.9B": "qwen2-0.5b",
    "MinerU2.5": "qwen2-0.5b",
    "MinerU2.5 (untuned vLLM)": "qwen2-0.5b",
    "dots.ocr": "dots-ocr",
    "MonkeyOCR-pro-3B": "qwen2.5-3b",
    "Nanonets-OCR-s": "qwen2.5-3b",
    "PaddleOCR-VL 0.9B": "paddleocr-vl",
    "olmOCR 7B": "qwen2.5-7b",
}
DEVICES = {
    "A100-80G": "a100-sxm-80g",
    "A100 (single)": "a100-sxm-80g",  # of the two A100 the faster memory
    "H200 141G": "h200-sxm",
    "RTX 4090 48G": "rtx-4090",
    "RTX 4090": "rtx-4090",
}
NO_RATE = "no time for a token and no rate of tokens"
NO_DEVICE = "the device is not named, or not in the table of devices"
NO_DECODER = "the decoder's hyper-parameters are not written down here"
NO_MEASUREMENT = "a claim, a capacity or a fact, not a measured time"
UNUSABLE = {
    "dsocr-paper-1xA100-40G": NO_RATE,
    "dsocr-paper-160xA100-40G": NO_RATE,
    "dsocr-vllm-a100-80g-hf": NO_RATE,
    "dsocr-vllm-l40s-sagemaker": NO_RATE,
    "dsocr-vllm-l4-cloudrun": NO_RATE,
    "dsocr-kvcache-capacity": NO_MEASUREMENT,
    "dsocr-lightonocr-h100": NO_RATE,
    "dsocr-unlimitedocr-omnidocbench": NO_DEVICE,
    "dsocr-unlimitedocr-table4": NO_DEVICE,
    "dsocr-flops-llmperfopt": NO_MEASUREMENT,
    "dsocr-vllm-ascend-910b": "the device's public figures differ by a factor of four",
    "dsocr-iluvatar-mrv100": NO_DEVICE,
    "dsocr-vllm-b200-smoke": NO_RATE,
    "dsocr-mlx-swift": NO_DEVICE,
    "dsocr-rs-macos": NO_DEVICE,
    "dsocr-4090-design-claim": NO_MEASUREMENT,
    "dsocr-encoder-cudagraph": NO_MEASUREMENT,
}


def read_published(file: Path) -> tuple[list[MeasuredRun], dict[str, str]]:
    """The runs that a bound can be held to, and for each other record the reason."""
    published = json.loads(file.read_text(encoding="utf-8"))
    runs = [_gpt_fast(published), *(run for record in published["deepseek_ocr"] for run in _deepseek(record))]
    unusable = {record["id"]: UNUSABLE[record["id"]] for record in published["deepseek_ocr"] if _is_unusable(record)}
    for number, record in enumerate(published["similar_ocr_vlms"]):
        name = f"{record['model']}, {record.get('hardware', 'device not named')}, {number}"
        reason = _reason(record)
        if reason is None:
            runs.append(_other_model(name, record))
        else:
            unusable[name] = reason
    return runs, unusable


def _gpt_fast(published: Record) -> MeasuredRun:
    """A compiled model alone on its device, the closest to the bandwidth of all: its context is not stated."""
    general = published["efficiency_priors"]["general"]
    values = next(entry for entry in general if entry["what"].startswith("gpt-fast"))["values"]
    return MeasuredRun(
        name="gpt-fast Llama-2-7B",
        source="published",
        model="llama-2-7b",
        device="a100-sxm-80g",
        engine="torch.compile",
        precision="bf16",
        prompt_tokens=1,
        output_tokens=1,
        prefill_gpus=1,
        decode_gpus=1,
        in_flight=1,
        tpot_s=1 / values["Llama-2-7B bf16"]["tok_s"],
    )


def _is_unusable(record: Record) -> bool:
    return record["id"] not in DEEPSEEK_RUNS and not record["id"].startswith("jinaocr")


def _deepseek(record: Record) -> Iterator[MeasuredRun]:
    name, metric = record["id"], record["metric"]
    if _is_unusable(record):
        return
    device, prompt, output, at_once = DEEPSEEK_RUNS.get(name) or _jina_run(name)
    yield MeasuredRun(
        name=name,
        source="published",
        model=DEEPSEEK_OCR,
        device=device,
        engine=_engine(record),
        precision="bf16",
        prompt_tokens=prompt,
        output_tokens=output,
        prefill_gpus=1,
        decode_gpus=1,
        in_flight=at_once,
        ttft_s=_seconds(metric, ("ttft_ms_mean", "ttft_s_mean", "prefill_ms_mean_incl_vision")),
        tpot_s=_seconds(metric, ("tpot_ms_mean", "tpot_ms", "ms_per_token", "ms_per_token_derived"))
        or _profiled_step(metric),
        tokens_per_s_per_gpu=metric.get("output_tokens_per_s"),
    )


def _jina_run(name: str) -> DeepseekRun:
    return JINA_DEVICE, PAGE_TOKENS, JINA_OUT, int(name.rpartition("-c")[2])


def _seconds(metric: Record, names: tuple[str, ...]) -> float | None:
    """The first of these that is recorded; of a range the fastest."""
    for name in names:
        if (value := metric.get(name)) is not None:
            fastest = min(value) if isinstance(value, list) else value
            return float(fastest) * (1 if "_s_" in name else 1e-3)
    return None


def _profiled_step(metric: Record) -> float | None:
    times = metric.get("decode_ms_for_64_tokens")
    return None if times is None else min(times) / 1e3 / PROFILED_OUT


def _engine(record: Record) -> str:
    text = str(record.get("engine", "")).lower()
    return next((name for name in ("sglang", "vllm", "transformers", "candle") if name in text), "not named")


def _reason(record: Record) -> str | None:
    if "tokens_per_s" not in record:
        return NO_RATE
    if record["model"] not in DECODERS:
        return NO_DECODER
    return None if record["hardware"] in DEVICES else NO_DEVICE


def _other_model(name: str, record: Record) -> MeasuredRun:
    return MeasuredRun(
        name=name,
        source="published",
        model=DECODERS[record["model"]],
        device=DEVICES[record["hardware"]],
        engine=_engine(record),
        precision="bf16",
        prompt_tokens=1,
        output_tokens=record.get("tokens_per_page_derived", 1100),
        prefill_gpus=1,
        decode_gpus=1,
        in_flight=None,
        tokens_per_s_per_gpu=record["tokens_per_s"],
    )
