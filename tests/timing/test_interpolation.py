from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.timing.calibrated_rates import time_at
from tests.timing.made_calibrations import close, matmul_seconds, table

SIZES = st.integers(1, 4096)


@given(rows=SIZES, columns=SIZES, power=st.sampled_from((0.0, 0.5, 1.0)))
def test_a_power_law_is_told_exactly_between_the_ticks(rows: int, columns: int, power: float) -> None:
    law = table("any", "float32", {"rows": (1, 16, 4096), "columns": (1, 4096)}, lambda m, n: 1e-6 * m * n**power)
    assert close(time_at(law, {"rows": rows, "columns": columns}).median_s, 1e-6 * rows * columns**power)


def test_a_time_at_a_tick_is_the_measured_one() -> None:
    ticks = {"rows": (1, 8, 64), "columns": (640, 1280), "depth": (640, 1280)}
    measured = table("matmul", "bfloat16", ticks, matmul_seconds)
    found = time_at(measured, {"rows": 8, "columns": 1280, "depth": 640})
    assert close(found.median_s, matmul_seconds(8, 1280, 640))


def test_a_bend_between_bandwidth_and_arithmetic_costs_little() -> None:
    """Doubling steps, as the calibration takes them: 100 rows are where the two times of this machine are equal."""
    ticks = {"rows": tuple(2**power for power in range(13)), "columns": (640, 1280), "depth": (640, 1280)}
    measured = table("matmul", "bfloat16", ticks, matmul_seconds)
    for rows in range(1, 4096, 7):
        found = time_at(measured, {"rows": rows, "columns": 1000, "depth": 900})
        assert found.median_s == pytest.approx(matmul_seconds(rows, 1000, 900), rel=0.035)


@pytest.mark.parametrize(("growth", "expected"), [(0, 5.0), (1, 15.0), (2, 45.0)])
def test_beyond_the_last_tick_the_time_grows_with_the_power_of_the_axis(growth: int, expected: float) -> None:
    measured = table("any", "float32", {"tokens": (10, 100)}, lambda tokens: tokens / 20, growth=(growth,))
    assert close(time_at(measured, {"tokens": 300}).median_s, expected)


def test_below_the_first_tick_the_time_stays() -> None:
    measured = table("any", "float32", {"elements": (16, 1024)}, lambda elements: elements * 1e-6)
    assert close(time_at(measured, {"elements": 1}).median_s, 16e-6)


def test_the_band_is_that_of_the_tries() -> None:
    measured = table("any", "float32", {"elements": (1, 100)}, lambda elements: elements * 1e-6, spread=0.25)
    found = time_at(measured, {"elements": 10})
    assert close(found.fastest_s, 7.5e-6)
    assert close(found.slowest_s, 12.5e-6)
