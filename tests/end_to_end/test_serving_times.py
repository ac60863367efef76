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
    found = [one for one in judged(estimated(runs), request_fit()) if one.one.is_clean]
    assert len(found) > 80
    assert not sum(one.one.step.unknown + one.one.prompt.unknown for one in found)
    assert median(abs(one.tpot_error) for one in found) < 0.13
    assert median(abs(one.ttft_error) for one in found) < 0.4
    assert 0.65 < sum(one.holds() for one in found) / len(found) < 0.97
