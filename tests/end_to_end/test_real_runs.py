"""DeepSeek-OCR for real on the CPU, with random weights: the claim of a weightless trace, held against tensors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("torchlens", reason="one of the tracers is an optional extra")

from benchmarks.real_runs import (
    RECORDED,
    WORKLOAD,
    WRITTEN_THROUGH_A_VIEW,
    differing_modules,
    full_width_target,
    hooks_record,
)
from llm_perf_opt.harness.tracers.hooks_tracer import HooksTracer
from llm_perf_opt.harness.tracers.torchlens_tracer import TorchLensTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter

NEEDED_BYTES = 12 * 10**9


def free_bytes() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        (line,) = [line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:")]
        return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(free_bytes() < NEEDED_BYTES, reason="a real run of billions of weights needs 12 GB free"),
]


def test_hooks_at_full_size_equal_the_facts_and_weightless() -> None:
    tracer, facts = HooksTracer(), json.loads(RECORDED.read_text())
    for target in DeepSeekOcrAdapter().targets(WORKLOAD):
        real = tracer.trace(target)
        recorded = facts["prefill" if target.phase == "prefill" else "decode_step"]
        record = hooks_record(real, recorded, seconds=0)
        assert record["differences"] == []
        assert record["modules_outside_experts"] > 190


def test_torchlens_at_full_width_equals_hooks() -> None:
    target = full_width_target()
    hooks, seen = HooksTracer().trace(target), TorchLensTracer().trace(target)
    assert seen.problems() == []
    assert (seen.call_counts, seen.edges) == (hooks.call_counts, hooks.edges)
    assert differing_modules(hooks, seen) == WRITTEN_THROUGH_A_VIEW
