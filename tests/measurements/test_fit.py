"""Factors from measured and predicted times, worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from llm_perf_opt.measurements.correction import FitPoint, fitted, remaining, rests
from llm_perf_opt.measurements.measurement import Quantity


def point(predicted_s: float, *samples_s: float) -> FitPoint:
    return FitPoint(samples_s=samples_s, predicted_s=predicted_s)


def test_one_point_is_one_factor_everywhere() -> None:
    fit = fitted([point(0.010, 0.012)])
    assert fit.factor_at(0.010) == pytest.approx(1.2)
    assert fit.factor_at(1.0) == pytest.approx(1.2)
    assert (fit.points, fit.measurements, fit.repeats) == (1, 1, 1)


def test_two_ends_make_a_straight_line_between_logarithms() -> None:
    """4 ms predicted took 8 ms, 16 ms took 16 ms: y = 8 (x / 4)^(1/2), so 8 ms takes 8 sqrt 2, a factor of sqrt 2."""
    fit = fitted([point(0.016, 0.016), point(0.004, 0.008)])
    assert fit.factor_at(0.004) == pytest.approx(2.0)
    assert fit.factor_at(0.008) == pytest.approx(math.sqrt(2))
    assert fit.factor_at(0.016) == pytest.approx(1.0)
    assert fit.points == 2


def test_beyond_the_measured_ends_the_factor_stays() -> None:
    fit = fitted([point(0.004, 0.008), point(0.016, 0.016)])
    assert fit.factor_at(0.0001) == pytest.approx(2.0)
    assert fit.factor_at(10.0) == pytest.approx(1.0)


def test_three_points_on_no_line_are_met_by_least_squares() -> None:
    """Logarithms to base 2: x = 0, 1, 2 and factors 0, 1, 0 have the mean 1/3 and no slope."""
    fit = fitted([point(1.0, 1.0), point(2.0, 4.0), point(4.0, 4.0)])
    assert fit.factor_at(1.0) == pytest.approx(2 ** (1 / 3))
    assert fit.factor_at(4.0) == pytest.approx(2 ** (1 / 3))


def test_points_of_one_length_are_repeats_and_show_their_scatter() -> None:
    fit = fitted([point(1.0, 1.0), point(1.01, 1.01 * 1.1), point(1.02, 1.02 * 1.32)])
    assert (fit.points, fit.measurements, fit.repeats) == (1, 3, 3)
    assert fit.factor_at(1.0) == pytest.approx(1.1)
    assert fit.scatter_low == pytest.approx(1 / 1.1)
    assert fit.scatter_high == pytest.approx(1.2)


def test_the_measured_workload_has_the_scatter_of_its_repeats() -> None:
    left = remaining(Quantity.STAGE, fitted([point(1.0, *[0.99, 1.0, 1.02] * 3)]), is_same_point=True)
    assert (left.low, left.high) == pytest.approx((0.99, 1.02))
    assert "9 repeats" in left.why


def test_few_repeats_show_too_little_of_their_scatter() -> None:
    left, rest = remaining(Quantity.STAGE, fitted([point(1.0, 0.99, 1.0, 1.25)]), is_same_point=True), rests().stage
    assert (left.low, left.high) == pytest.approx((rest.same_point.low, 1.25))


def test_another_workload_adds_what_a_carried_factor_leaves() -> None:
    """Logarithms of independent errors add as squares."""
    fit = fitted([point(1.0, 0.9, 1.0, 1.25)])
    left, rest = remaining(Quantity.TPOT, fit, is_same_point=False), rests().tpot.one_point
    assert math.log(left.low) == pytest.approx(-math.sqrt(math.log(0.9) ** 2 + math.log(rest.low) ** 2))
    assert math.log(left.high) == pytest.approx(math.sqrt(math.log(1.25) ** 2 + math.log(rest.high) ** 2))


def test_two_workloads_leave_less_than_one() -> None:
    one, two = fitted([point(1.0, 1.1)]), fitted([point(1.0, 1.1), point(4.0, 4.8)])
    after_one, after_two = (remaining(Quantity.TPOT, fit, is_same_point=False) for fit in (one, two))
    assert after_one.low < after_two.low < 1 < after_two.high < after_one.high


@pytest.mark.parametrize("quantity", list(Quantity))
def test_every_kind_of_time_has_a_remaining_error_with_its_source(quantity: Quantity) -> None:
    known = rests().of(quantity)
    for rest in (known.same_point, known.one_point, known.two_points):
        assert rest.low < 1 < rest.high
        assert rest.source
    assert known.one_point.high / known.one_point.low >= known.same_point.high / known.same_point.low


@pytest.mark.parametrize("samples", [(), (0.0,), (-1.0,)])
def test_a_factor_needs_times_above_zero(samples: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        FitPoint(samples_s=samples, predicted_s=1.0)


def test_the_page_shows_the_remaining_errors_as_they_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how" / "one-measurement.md").read_text("utf-8")
    for name in ("same_point", "one_point", "two_points"):
        row = [getattr(rests().of(quantity), name) for quantity in Quantity]
        assert f"| {' | '.join(f'{rest.low:.2f} to {rest.high:.2f}' for rest in row)} |" in page
