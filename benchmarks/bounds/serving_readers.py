"""Reads the smaller files of measured serving: throughput at full load, latencies, and what was published of OCR."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bounds.measured_run import MeasuredRun, ServedPlan

Record = Mapping[str, Any]

OVERVIEW_MODELS = {
    "DeepSeek-R1-0528": "deepseek-r1",
    "GPT-OSS-120B": "gpt-oss-120b",
    "GPT-OSS-20B": "gpt-oss-20b",
    "Llama-3.3-70B": "llama-3.1-70b",  # the same shapes
    "Llama-4-Maverick": "llama-4-maverick",
    "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
}
OVERVIEW_DEVICES = {
    "B200": "b200-sxm",
    "GB200": "gb200",
    "H100": "h100-sxm",
    "H200": "h200-sxm",
    "RTX-PRO-6000-Server": "rtx-pro-6000-bw-server",
}
VLLM_MODELS = {
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": "llama-4-scout",
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "mistralai/Mistral-Nemo-Instruct-2407": "mistral-nemo",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "01-ai/Yi-34B": "yi-34b",
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "codellama/CodeLlama-34b-Instruct-hf": "codellama-34b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "mistralai/Mixtral-8x22B-Instruct-v0.1": "mixtral-8x22b",
    "Qwen/Qwen3-14B": "qwen3-14b",
}
PRECISIONS = {"fp16": "bf16", "fp8": "fp8", "fp4": "fp4"}  # 16-bit types are alike here
ONE_TOKEN = 1  # of a prompt whose length is not recorded


def records_of(file: Path) -> list[Record]:
    """The records of a file of facts."""
    records: list[Record] = json.loads(file.read_text(encoding="utf-8"))["records"]
    return records


def tensor_parallel(text: str) -> ServedPlan:
    """The plan of `TP8`; any other text names one of which nothing is certain to be sent."""
    size = text.removeprefix("TP")
    return ServedPlan(tensor=int(size)) if size != text and size.isdigit() else ServedPlan()


def read_overview(file: Path) -> Iterator[MeasuredRun]:
    """TensorRT-LLM's own table: output per GPU with every request queued at once."""
    for record in records_of(file):
        gpus = record["gpus"]
        yield MeasuredRun(
            name=f"{record['model']} {record['gpu']} {record['parallel']} "
            f"{record['input_tokens']}/{record['output_tokens']}",
            source=file.stem,
            model=OVERVIEW_MODELS[record["model"]],
            device=OVERVIEW_DEVICES[record["gpu"]],
            engine="trtllm",
            precision=PRECISIONS[record["precision"]],
            prompt_tokens=record["input_tokens"],
            output_tokens=record["output_tokens"],
            prefill_gpus=gpus,
            decode_gpus=gpus,
            in_flight=None,
            prefill_plan=tensor_parallel(record["parallel"]),
            decode_plan=tensor_parallel(record["parallel"]),
            tokens_per_s_per_gpu=record["output_tokens_per_s_per_gpu"],
        )


def read_vllm_latencies(file: Path) -> Iterator[MeasuredRun]:
    """Mean latencies of vLLM under mixes of requests."""
    for record in records_of(file):
        yield lengths_not_recorded(
            record,
            MeasuredRun(
                name=f"{record['experiment']} {record['model']} {record['workload']}",
                source=file.stem,
                model=VLLM_MODELS[record["model"]],
                device="h100-sxm",
                engine="vllm",
                precision=PRECISIONS[record["precision"]],
                prompt_tokens=0,
                output_tokens=0,
                prefill_gpus=record["tensor_parallel"],
                decode_gpus=record["tensor_parallel"],
                in_flight=None,
                prefill_plan=ServedPlan(tensor=record["tensor_parallel"]),
                decode_plan=ServedPlan(tensor=record["tensor_parallel"]),
                ttft_s=record["ttft_mean_ms"] / 1e3,
                tpot_s=record["itl_mean_ms"] / 1e3,
            ),
        )


def lengths_not_recorded(record: Record, run: MeasuredRun) -> MeasuredRun:
    """Where neither lengths nor load are recorded: one prompt token, alone on its GPUs, output from the latencies."""
    decode_ms = record["e2e_mean_ms"] - record["ttft_mean_ms"]
    return replace(
        run,
        prompt_tokens=ONE_TOKEN,
        output_tokens=int(decode_ms / record["itl_mean_ms"]),
        in_flight=1,
        touched=(*run.touched, "lengths_not_recorded"),
    )


def read_nim(file: Path) -> Iterator[MeasuredRun]:
    """One model over concurrencies, past the point where the cache is full."""
    for record in records_of(file):
        yield MeasuredRun(
            name=f"{record['model']} {record['parallel']} c{record['concurrency']}",
            source=file.stem,
            model="llama-3.1-70b",
            device="h100-sxm",
            engine="trtllm",
            precision=record["precision"],
            prompt_tokens=record["input_tokens"],
            output_tokens=record["output_tokens"],
            prefill_gpus=record["gpus"],
            decode_gpus=record["gpus"],
            in_flight=record["concurrency"],
            prefill_plan=tensor_parallel(record["parallel"]),
            decode_plan=tensor_parallel(record["parallel"]),
            ttft_s=record["ttft_ms"] / 1e3,
            tpot_s=record["itl_ms"] / 1e3,
        )


def read_two_nodes(file: Path) -> Iterator[MeasuredRun]:
    """DeepSeek-R1 on 16 GPUs, one request at a time, in the checkpoint's own fp8."""
    for record in records_of(file):
        yield MeasuredRun(
            name=f"{record['model']} {record['engine']} {record['input_tokens']}/{record['output_tokens']}",
            source=file.stem,
            model="deepseek-r1",
            device="h100-sxm",
            engine="sglang" if record["engine"].startswith("SGLang") else "not named",
            precision="fp8",
            prompt_tokens=record["input_tokens"],
            output_tokens=record["output_tokens"],
            prefill_gpus=record["gpus"],
            decode_gpus=record["gpus"],
            in_flight=record["concurrency"],
            ttft_s=record["ttft_ms"] / 1e3,
            tpot_s=record["tpot_ms"] / 1e3,
        )
