"""Memory that full-size DeepSeek-OCR takes fresh from the system, held against page faults that the system counted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from llm_perf_opt.core.callgraph.queries import stage_names, stage_of_ops
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.timing.calibrated_rates import fresh_bytes_by_op

FACTS = json.loads((Path(__file__).parents[1] / "facts" / "deepseek_ocr" / "page_faults.json").read_text("utf-8"))
PAGE_BYTES = 4096


def predicted_faults(mode: str) -> Counter[str]:
    prefill, _ = DeepSeekOcrAdapter().targets(DeepSeekOcrWorkload(image=FACTS["image"], mode=mode))
    graph = WeightlessTracer(device="cpu").trace(prefill)
    names, faults = stage_names(graph), Counter[str]()
    for stage, fresh in zip(stage_of_ops(graph), fresh_bytes_by_op(graph), strict=True):
        faults[names[stage]] += fresh
    return Counter({name: round(size / PAGE_BYTES) for name, size in faults.items()})


@pytest.mark.parametrize("mode", FACTS["faults"])
def test_page_faults_by_stage(mode: str) -> None:
    predicted = predicted_faults(mode)
    for stage, (fewest, most) in FACTS["faults"][mode].items():
        slack = FACTS["slack"][mode]
        assert fewest * (1 - slack) <= predicted[stage] <= most * (1 + slack), stage
