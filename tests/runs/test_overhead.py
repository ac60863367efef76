from __future__ import annotations

import pytest

from benchmarks.runner_overhead import overhead
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.session import DeepSeekOCRSession


@pytest.mark.slow
def test_timing_costs_next_to_nothing() -> None:
    """At most 2 % of a bare loop; the smallest model is the hardest case. Of up to ten tries the quietest counts."""
    session = DeepSeekOCRSession.from_blueprint(DeepSeekOcrConfig.tiny(), weights="random", dtype="float32")
    assert any(overhead(session, 8, 31) < 0.02 for _ in range(10))
