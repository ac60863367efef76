"""The released code from a folder of its own, with our inputs and stages: its forward takes the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_perf_opt.core.protocols import Target, Workload
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.targets import make_targets


def released_targets(name: str, build: Callable[[], Any], workload: Workload) -> tuple[Target, ...]:
    """Prefill and decode of the model that `build` makes from the released code."""
    return make_targets(DeepSeekOcrConfig(), workload, name=name, build=build)
