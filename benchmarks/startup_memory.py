"""How near does the account of a rank's memory come to vLLM's own start-up? Writes docs/startup-memory.md with --docs.

    python -m benchmarks.startup_memory [--docs] [--part developed|set-aside]

Reads the 72 records in tests/facts/serving, traces a decode step of each model without weights. About four minutes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FACTS = Path(__file__).parents[1] / "tests" / "facts" / "serving"
GIB = 2**30

# The split, made before any figure of the part that is set aside was looked at. Developed on: the nine older records,
# whose figures `docs/does-it-fit.md` had already; of the 63 newer ones the models that the page named, and the first
# eight of the file, which were printed to learn its form. All other models are set aside, and were opened once.
DEVELOPED = frozenset(
    {
        "codellama/CodeLlama-7b-hf",
        "deepseek-ai/DeepSeek-V2-Lite-Chat",
        "google/gemma-2-27b-it",
        "google/gemma-2-2b-it",
        "google/gemma-2-9b-it",
        "google/gemma-3-12b-it",
        "google/gemma-3-27b-it",
        "google/gemma-3-4b-it",
        "meta-llama/Llama-3.1-8B-Instruct",
        "Qwen/Qwen3-30B-A3B",
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
        "openai/gpt-oss-20b",
    }
)
DEVELOPED_PART, SET_ASIDE = "developed", "set-aside"

_UTILISATION = 0.95  # of the newer records: with it weights, activation, non-torch and cache add up where all are given
_SEEN_GIB = {"79.18": 79.18, "79.19": 79.19}
# The planner whose errors the newer records print: 95 % of 80 GiB, and constants by kind of model.
_PLANNER_SHARE_GIB = 0.95 * 80


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """What one server printed at its start, per GPU, in GiB; None: the record does not say, nor can it be derived."""

    model: str
    part: str
    version: str
    tp: int
    pp: int
    dtype: str
    quantization: str
    cache_dtype: str
    seen_gib: float
    utilisation: float
    weights_gib: float | None
    activation_gib: float | None
    non_torch_gib: float | None
    cache_gib: float | None
    planner: Mapping[str, float]  # errors of the planner, as ratios; empty in the older records


def start_ups() -> Iterator[StartUp]:
    """Every record of both files."""
    older, newer = (
        json.loads((FACTS / name).read_text(encoding="utf-8"))["records"]
        for name in ("vllm_startup_memory.json", "vllm_startup_memory_more.json")
    )
    for record in older:
        yield _older(record)
    for record in newer:
        yield _newer(record)


def _older(record: Mapping[str, Any]) -> StartUp:
    # Listed at 0.9, where its parts and its cache add up to more than the share; at 0.95 they add up.
    share = 0.95 if record["model"].startswith("gpt-oss-120b") else record.get("gpu_memory_utilization", 0.95)
    return StartUp(
        model=record["model"],
        part=DEVELOPED_PART,
        version="0.11.0" if record["model"].startswith("Mistral") else "0.12",
        tp=record.get("tensor_parallel", 1),
        pp=1,
        dtype="bf16",
        quantization="",
        cache_dtype="auto",
        seen_gib=79.18,
        utilisation=share,
        weights_gib=record.get("weights_gib"),
        activation_gib=record.get("activation_gib"),
        non_torch_gib=record.get("non_torch_gib"),
        cache_gib=record["kv_cache_gib"],
        planner={},
    )


def _newer(record: Mapping[str, Any]) -> StartUp:
    errors = {
        name: float(record[f"planner_{name}_error"].rstrip("%")) / 100
        for name in ("weight", "activation", "non_torch", "kv")
        if f"planner_{name}_error" in record
    }
    return StartUp(
        model=record["model"],
        part=DEVELOPED_PART if record["model"] in DEVELOPED else SET_ASIDE,
        version=record["engine"].removeprefix("vLLM "),
        tp=record["tp"],
        pp=record["pp"],
        dtype=record.get("dtype") or "bf16",
        quantization=(record.get("quantization") or "").replace("—", ""),
        cache_dtype=record.get("kv_cache_dtype") or "auto",
        seen_gib=79.19,
        utilisation=record.get("gpu_memory_utilization", _UTILISATION),
        weights_gib=record.get("weights_gib"),
        activation_gib=record.get("activation_gib", record.get("activation_gib_derived")),
        non_torch_gib=record.get("non_torch_gib", record.get("non_torch_gib_derived")),
        cache_gib=record.get("kv_cache_gib"),
        planner=errors,
    )
