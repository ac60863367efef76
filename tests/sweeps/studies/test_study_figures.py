"""Whole runs, throughput and cost by hand-worked numbers, for one point and for columns of them."""

from __future__ import annotations

import numpy as np
import pytest

from llm_perf_opt.sweeps.studies.figures import Priced, together, whole_run
from llm_perf_opt.sweeps.studies.parquet_store import table_of

POINT = {
    "prefill_lower_bound_s": 0.5,
    "prefill_low_s": 1.0,
    "prefill_high_s": 2.0,
    "prefill_needed_bytes": 60,
    "decode_lower_bound_s": 0.01,
    "decode_low_s": 0.02,
    "decode_high_s": 0.04,
    "decode_needed_bytes": 90,
    "last_step_high_s": 0.05,
}
PRICED = Priced(generated_tokens=100, memory_bytes=80, price_per_hour=3.6)


def test_a_run_is_a_prefill_and_its_steps_between_the_first_and_the_last() -> None:
    run = whole_run(POINT, 4, 8, PRICED)
    assert run["run_low_s"] == pytest.approx(1.0 + 100 * 0.02)
    assert run["run_high_s"] == pytest.approx(2.0 + 100 * 0.05)
    assert run["run_lower_bound_s"] == pytest.approx(0.5 + 100 * 0.01)
    assert run["requests_per_s_low"] == pytest.approx(4 / 7)
    assert run["tokens_per_s_high"] == pytest.approx(4 / 0.02)


def test_cost_is_the_price_of_the_seconds_that_a_million_take() -> None:
    run = whole_run(POINT, 4, 8, PRICED)  # 3.6 an hour is 0.001 a second
    assert run["cost_per_million_requests_high"] == pytest.approx(0.001 * 7 / 4 * 1e6)
    assert run["cost_per_million_tokens_low"] == pytest.approx(0.001 * 3 / (4 * 100) * 1e6)
    for edge in ("low", "high"):  # a request is 100 tokens, so it costs as much as they do
        assert run[f"cost_per_million_requests_{edge}"] == pytest.approx(100 * run[f"cost_per_million_tokens_{edge}"])


def test_what_fits_is_said_by_the_fullest_phase_and_by_the_engine() -> None:
    run = whole_run(POINT, 4, 3, PRICED)
    assert run["fits_as_traced"] is False  # 90 of 80
    assert run["fits_served"] is False


def test_what_does_not_fit_has_no_cost() -> None:
    """A batch of 4 where an engine holds 3; without an engine's account, 90 bytes on a device of 80."""
    costs = ("cost_per_million_requests_low", "cost_per_million_tokens_high")
    assert all(whole_run(POINT, 4, 4, PRICED)[name] is not None for name in costs)
    assert all(whole_run(POINT, 4, 3, PRICED)[name] is None for name in costs)
    assert all(whole_run(POINT, 4, None, PRICED)[name] is None for name in costs)
    columns = {name: np.array([value, value]) for name, value in POINT.items()}
    run = whole_run(columns, np.array([3, 4]), np.array([3, 3]), PRICED)
    for name in costs:
        assert table_of(run, 2).column(name).to_pylist() == [pytest.approx(whole_run(POINT, 3, 3, PRICED)[name]), None]


def test_unknown_stays_unknown() -> None:
    run = whole_run(
        {**POINT, "prefill_low_s": None}, 4, None, Priced(generated_tokens=1, memory_bytes=1, price_per_hour=None)
    )
    assert run["run_low_s"] is None
    assert run["requests_per_s_high"] is None
    assert run["cost_per_million_tokens_low"] is None
    assert run["fits_served"] is None


def test_a_column_gives_what_its_points_give() -> None:
    columns = {name: np.array([value, 2 * value]) for name, value in POINT.items()}
    run = whole_run(columns, np.array([4, 4]), np.array([8, 8]), PRICED)
    first = whole_run(POINT, 4, 8, PRICED)
    assert {name: value[0] for name, value in run.items() if isinstance(value, np.ndarray)} == {
        name: pytest.approx(first[name]) for name, value in run.items() if isinstance(value, np.ndarray)
    }


def test_a_model_without_a_decode_runs_its_prefill_alone() -> None:
    run = whole_run({"prefill_low_s": 1.0, "prefill_high_s": 2.0, "prefill_lower_bound_s": 1.0}, 2, None, PRICED)
    assert run["run_high_s"] == 2.0
    assert run["tokens_per_s_low"] is None


def test_phases_before_decode_add_up_and_memory_does_not() -> None:
    one = {"flops": 5, "needed_bytes": 7, "high_s": 1.0, "bound_by": "compute", "expected_s": None}
    other = {"flops": 6, "needed_bytes": 3, "high_s": 2.0, "bound_by": "bandwidth", "expected_s": 1.0}
    found = together([one, other])
    assert found["flops"] == 11
    assert found["needed_bytes"] == 7
    assert found["bound_by"] == ["bandwidth"]
    assert found["expected_s"] is None
