"""Results in the form that load generators write them, with the keys that matter and some that do not."""

from __future__ import annotations

import json
from typing import Any


def vllm_result(**changed: Any) -> dict[str, Any]:
    """`vllm bench serve --save-result`: 10 requests of 2,048 + 128 tokens, 16 in flight."""
    return {
        "date": "20261116-120000",
        "endpoint_type": "vllm",
        "backend": "vllm",
        "label": None,
        "model_id": "Qwen/Qwen3-8B",
        "tokenizer_id": "Qwen/Qwen3-8B",
        "num_prompts": 10,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 16,
        "duration": 3.1,
        "completed": 10,
        "failed": 0,
        "total_input_tokens": 20_480,
        "total_output_tokens": 1_280,
        "request_throughput": 3.2,
        "request_goodput": None,
        "mean_ttft_ms": 510.0,
        "median_ttft_ms": 480.0,
        "std_ttft_ms": 20.0,
        "p99_ttft_ms": 600.0,
        "mean_tpot_ms": 21.0,
        "median_tpot_ms": 20.0,
        "std_tpot_ms": 0.4,
        "p99_tpot_ms": 22.0,
        **changed,
    }


def detailed_vllm_result() -> dict[str, Any]:
    """The same with `--save-detailed`."""
    return vllm_result(
        input_lens=[2048] * 10,
        output_lens=[128] * 10,
        ttfts=[0.48] * 10,
        itls=[[0.02] * 127] * 10,
        generated_texts=["text"] * 10,
        errors=[""] * 10,
    )


def _statistics(average: float, median: float, unit: str) -> dict[str, Any]:
    return {
        "unit": unit,
        "avg": average,
        "p99": 2 * average,
        "p50": median,
        "min": median / 2,
        "max": 3 * median,
        "std": 1.0,
    }


def genai_perf_result(**changed: Any) -> dict[str, Any]:
    """`profile_export_genai_perf.json` of version 0.0.16."""
    return {
        "request_throughput": {"unit": "requests/sec", "avg": 3.2},
        "request_latency": _statistics(3050.0, 3020.0, "ms"),
        "request_count": {"unit": "count", "avg": 10.0},
        "time_to_first_token": _statistics(510.0, 480.0, "ms"),
        "time_to_second_token": _statistics(21.0, 20.0, "ms"),
        "inter_token_latency": _statistics(21.0, 20.0, "ms"),
        "output_sequence_length": _statistics(128.0, 128.0, "tokens"),
        "input_sequence_length": _statistics(2048.0, 2048.0, "tokens"),
        "input_config": {
            "model_names": ["Qwen/Qwen3-8B"],
            "subcommand": "profile",
            "perf_analyzer": {"path": "perf_analyzer", "stimulus": {"concurrency": 16}},
        },
        **changed,
    }


def aiperf_result() -> dict[str, Any]:
    """`profile_export_aiperf.json`, which has the form of genai-perf and another configuration."""
    return genai_perf_result(
        schema_version="1.4",
        aiperf_version="0.13.0",
        input_config={
            "models": {"items": [{"name": "Qwen/Qwen3-8B"}]},
            "phases": [{"name": "profiling", "type": "concurrency", "requests": 10, "concurrency": 16}],
        },
    )


def _outcomes(mean: float, median: float) -> dict[str, Any]:
    one = {"mean": mean, "median": median, "std_dev": 1.0, "count": 10, "percentiles": {"p50": median, "p99": 2 * mean}}
    nothing = {"mean": 0.0, "median": 0.0, "std_dev": 0.0, "count": 0, "percentiles": {"p50": 0.0, "p99": 0.0}}
    return {"successful": one, "incomplete": nothing, "errored": nothing, "total": one}


def guidellm_benchmark(streams: int, ttft_ms: float, itl_ms: float) -> dict[str, Any]:
    """One load; its time per output token includes the first token, and its inter-token latency does not."""
    return {
        "type_": "generative_benchmark",
        "config": {"strategy": {"type_": "concurrent", "streams": streams}},
        "metrics": {
            "request_totals": {"successful": 10, "incomplete": 0, "errored": 0, "total": 10},
            "request_concurrency": _outcomes(streams * 0.97, streams),
            "prompt_token_count": _outcomes(2048.0, 2048.0),
            "output_token_count": _outcomes(128.0, 128.0),
            "time_to_first_token_ms": _outcomes(ttft_ms * 1.1, ttft_ms),
            "time_per_output_token_ms": _outcomes(itl_ms + ttft_ms / 128, itl_ms + ttft_ms / 128),
            "inter_token_latency_ms": _outcomes(itl_ms * 1.1, itl_ms),
        },
    }


def guidellm_report(*benchmarks: dict[str, Any]) -> dict[str, Any]:
    """`benchmarks.json` of version 0.8."""
    return {
        "metadata": {"version": 2, "guidellm_version": "0.8.1"},
        "config": {"spec": {"backend": {"kind": "openai_http", "model": "Qwen/Qwen3-8B"}}},
        "benchmarks": list(benchmarks or [guidellm_benchmark(16, 480.0, 20.0)]),
    }


def text_of(document: Any) -> bytes:
    return json.dumps(document).encode()
