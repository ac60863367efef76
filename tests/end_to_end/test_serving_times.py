"""Estimates from measured kernels against served records: a sample of three models, by the fit that ships."""

from importlib.util import find_spec
from statistics import median

import pytest

from benchmarks.serving_times.estimates import aggregated_runs, estimated
from benchmarks.serving_times.fitting import judged
from llm_perf_opt.timing.step.request_time import request_fit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("duckdb") is None or find_spec("aiconfigurator_core") is None,
        reason="the kernel tables are not installed: pip install 'llm-perf-opt[kernels]'",
    ),
]
MODELS = ("llama-3.1-8b", "gpt-oss-120b", "minimax-m2.5")


def test_times_per_token_are_near_the_measured_ones() -> None:
    runs = [run for run in aggregated_runs() if run.model in MODELS][::5]
    found = [record for record in judged(estimated(runs), request_fit()) if record.estimate.is_clean]
    assert len(found) > 80
    assert not sum(record.estimate.step.unknown + record.estimate.prompt.unknown for record in found)
    assert median(abs(record.tpot_error) for record in found) < 0.13
    assert median(abs(record.ttft_error) for record in found) < 0.4
    assert 0.65 < sum(record.holds() for record in found) / len(found) < 0.97
