"""Rates of eager PyTorch by vendor, read from the package's own file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.hardware.priors import clock_ratio, eager_rates, issue_ratio, on_curve, recorded_device
from llm_perf_opt.ops.op import AccessPattern

MATMULS = {AccessPattern.UNALIGNED, AccessPattern.UNALIGNED_CHANNELS}


@pytest.mark.parametrize("device", ["h100-sxm", "mi300x"])
def test_every_way_through_memory_has_a_rate(device: str) -> None:
    rates = eager_rates(find_device(device))
    assert rates is not None
    assert rates.vector.keys() == {str(pattern) for pattern in AccessPattern if pattern not in MATMULS}
    assert all(0 < rate.bandwidth_share < 1 and 0 < rate.floor_us < 10 for rate in rates.vector.values())
    assert recorded_device(rates).id == device
    assert rates.spread.low > rates.scaled_spread.low
    assert rates.spread.high < rates.scaled_spread.high


def test_a_processor_has_none() -> None:
    assert eager_rates(find_device("apple-m2-ultra-76")) is None


def test_values_per_second_go_with_compute_units_and_clock() -> None:
    """108 units at 1,410 MHz beside 132 at 1,830."""
    ratio = issue_ratio(find_device("a100-sxm-80g"), find_device("h100-sxm"))
    assert ratio == pytest.approx(108 * 1410 / (132 * 1830))


def test_a_floor_goes_with_the_clock_and_stays_where_a_clock_is_not_known() -> None:
    h100, a100 = find_device("h100-sxm"), find_device("a100-sxm-80g")
    assert clock_ratio(a100, h100) == pytest.approx(1410 / 1830)
    assert clock_ratio(replace(a100, facts={}), h100) == 1


def test_a_curve_is_straight_in_logarithms_and_flat_beyond_its_ends() -> None:
    curve = ((100.0, 0.1), (10_000.0, 0.4))
    assert [on_curve(curve, size) for size in (1, 100, 10_000, 1e9)] == [0.1, 0.1, 0.4, 0.4]
    assert on_curve(curve, 1000) == pytest.approx(0.2)
