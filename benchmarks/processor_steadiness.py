"""How much the time of one and the same piece of work changes on this processor within a minute."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F

TRIES, PRODUCTS = 60, 20


def product_seconds() -> list[float]:
    """Twenty products of 1024 x 1024 with 1024 x 4096 values in bfloat16, again and again, in torch's threads."""
    inputs = torch.randn(1024, 1024, dtype=torch.bfloat16)
    weight = torch.randn(4096, 1024, dtype=torch.bfloat16)
    found = []
    with torch.inference_mode():
        for _ in range(TRIES):
            started = time.perf_counter()
            for _ in range(PRODUCTS):
                F.linear(inputs, weight)
            found.append(time.perf_counter() - started)
    return found


def spread_of(seconds: list[float]) -> dict[str, Any]:
    """The ends, the quarters and the middle of all tries."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {
        "tries": len(seconds),
        "fastest_s": min(seconds),
        "lower_quarter_s": low,
        "median_s": middle,
        "upper_quarter_s": high,
        "slowest_s": max(seconds),
    }
