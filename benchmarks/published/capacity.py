"""How many tokens of cache fit beside the weights, compared with what vLLM reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llm_perf_opt.analyses.memory.need import run_memory
from llm_perf_opt.core.hardware import find_device

from .traced import prefill_graph

USED_SHARE = 0.9  # vLLM's gpu_memory_utilization
GIBI_OVER_GIGA = 2**30 / 10**9
DEVICES = {"A100-80G": "a100-sxm-80g", "L40S": "l40s", "L4": "l4"}


def capacity_rows(metric: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Per device: tokens by our count, if a nominal gigabyte is 10^9 bytes and if it is 2^30, and as reported."""
    held = run_memory((prefill_graph(),)).total_bytes
    assert held is not None
    for name, identifier in DEVICES.items():
        device = find_device(identifier)
        nominal = (device.nominal_memory_bytes or device.memory_bytes) * USED_SHARE
        low, high = ((nominal * unit - held) // metric["kv_bytes_per_token_theory"] for unit in (1, GIBI_OVER_GIGA))
        reported = metric[f"{name}_kv_tokens"]
        yield {
            "device": identifier,
            "published": reported,
            "low": int(low),
            "high": int(high),
            "is_inside": low <= reported <= high,
        }
