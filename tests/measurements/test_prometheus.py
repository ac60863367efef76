"""vLLM's metrics: medians between the edges of histograms, by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.measurements.measurement import Quantity
from llm_perf_opt.measurements.read import median, read_measured

_LABELS = 'engine="0",model_name="tiny"'
TEXT = f"""# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{{_LABELS},le="0.04"}} 2.0
vllm:time_to_first_token_seconds_bucket{{{_LABELS},le="0.06"}} 12.0
vllm:time_to_first_token_seconds_bucket{{{_LABELS},le="0.08"}} 20.0
vllm:time_to_first_token_seconds_bucket{{{_LABELS},le="+Inf"}} 20.0
vllm:request_time_per_output_token_seconds_bucket{{{_LABELS},le="0.01"}} 0.0
vllm:request_time_per_output_token_seconds_bucket{{{_LABELS},le="0.03"}} 20.0
vllm:request_time_per_output_token_seconds_bucket{{{_LABELS},le="+Inf"}} 20.0
vllm:request_success_total{{engine="0",finished_reason="length",model_name="tiny"}} 20.0
vllm:prompt_tokens_total{{{_LABELS}}} 1280.0
vllm:generation_tokens_total{{{_LABELS}}} 240.0
vllm:num_requests_running{{{_LABELS}}} NaN
"""


def test_medians_lie_between_the_edges_of_their_bucket(tmp_path: Path) -> None:
    file = tmp_path / "metrics.txt"
    file.write_text(TEXT)
    (run,) = read_measured(file).runs
    first, token = run.time_of(Quantity.TTFT), run.time_of(Quantity.TPOT)
    assert first is not None
    assert token is not None
    assert first.seconds == pytest.approx(0.04 + 0.02 * (10 - 2) / 10)
    assert token.seconds == pytest.approx(0.02)
    assert (run.model, run.input_tokens, run.output_tokens) == ("tiny", 64, 12)


def test_a_median_above_the_last_edge_is_unknown() -> None:
    assert median({0.1: 1.0, math.inf: 10.0}) is None
    assert median({}) is None
    assert median({0.1: 0.0, math.inf: 0.0}) is None


def test_a_server_that_answered_nobody_has_no_times(tmp_path: Path) -> None:
    file = tmp_path / "metrics.txt"
    file.write_text('vllm:num_requests_running{engine="0"} 0.0\n')
    with pytest.raises(UsageError, match="holds no time"):
        read_measured(file)


@pytest.mark.parametrize("number", ["1e9995", "9" * 40, "1e5-", "--", "1e308"])
@pytest.mark.parametrize("place", ["20.0\nvllm:prompt", "1280.0", 'le="0.06"'])
def test_a_number_that_nothing_counted_is_refused_with_its_place(tmp_path: Path, number: str, place: str) -> None:
    """Sums of them would be infinite, and no length is."""
    put = place.replace("20.0", number).replace("1280.0", number).replace("0.06", number)
    file = tmp_path / "metrics.txt"
    file.write_text(TEXT.replace(place, put))
    with pytest.raises(UsageError, match=r"a value|an edge of a histogram"):
        read_measured(file)
