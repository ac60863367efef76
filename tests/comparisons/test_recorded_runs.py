"""The weightless trace against real runs of the released code: identical outside what has a name."""

from __future__ import annotations

import pytest

from llm_perf_opt.comparisons import compare
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from tests.comparisons.recorded_runs import recorded_run

WORKLOADS = {
    "base": DeepSeekOcrWorkload(mode="base", prompt_tokens=20),
    "gundam-2x3": DeepSeekOcrWorkload(mode="gundam", crops=(2, 3), prompt_tokens=20),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_weightless_trace_is_the_recorded_run(name: str) -> None:
    tracer = WeightlessTracer()
    for target in DeepSeekOcrAdapter().targets(WORKLOADS[name]):
        recorded = recorded_run(name, target.phase)
        assert recorded.problems() == []
        found = compare(tracer.trace(target), recorded)
        outside = {(f.cause, str(f.difference.aspect)) for f in found.findings if ".experts." not in f.difference.path}
        assert outside == {
            ("cache objects", "inputs"),
            ("cache objects", "outputs"),
            ("tracer cannot see ops", "ops"),
            ("tracer cannot see", "weights"),
        }
        assert {f.cause for f in found.findings if ".experts." in f.difference.path} == {"routing"}


def test_a_recorded_run_is_not_another_one() -> None:
    """The causes do not explain everything away: two workloads whose headers say nothing differ without a cause."""
    found = compare(recorded_run("base", "prefill"), recorded_run("gundam-2x3", "prefill"))
    assert "model.sam_model" in {finding.difference.path for finding in found.unexplained}
