"""The band of a sum by hand: what kernels of one kind have in common adds up, the rest in squares."""

from __future__ import annotations

import math

import pytest

from llm_perf_opt.timing.predict import SYSTEMATIC_SHARE, BandOfKind, combined
from llm_perf_opt.timing.rates import Band

ONE = Band(0.9, 1.2, 1.0)


def test_one_kernel_keeps_its_band() -> None:
    found = combined([BandOfKind("matmuls", ONE)])
    assert (found.low, found.high, found.expected) == pytest.approx((0.9, 1.2, 1.0))


def test_kernels_of_one_kind_cancel_in_part() -> None:
    found = combined([BandOfKind("matmuls", ONE)] * 4)
    width = math.sqrt((SYSTEMATIC_SHARE * 4 * 0.2) ** 2 + (1 - SYSTEMATIC_SHARE**2) * 4 * 0.2**2)
    assert found.expected == pytest.approx(4.0)
    assert found.high == pytest.approx(4 + width)
    assert SYSTEMATIC_SHARE * 0.8 < width < 0.8, "more than the part in common, less than the sum of edges"


def test_kinds_are_wrong_by_themselves() -> None:
    alike = combined([BandOfKind("matmuls", ONE)] * 2)
    apart = combined([BandOfKind("matmuls", ONE), BandOfKind("attention", ONE)])
    assert apart.high == pytest.approx(2 + math.hypot(0.2, 0.2))
    assert apart.high < alike.high
    assert apart.low > alike.low


def test_a_kernel_that_runs_often_is_wrong_in_the_same_way() -> None:
    found = combined([BandOfKind("matmuls", ONE.times(10))])
    assert (found.low, found.high) == pytest.approx((9.0, 12.0))


def test_ends_without_an_expectation_add_up() -> None:
    found = combined([BandOfKind(None, Band(1.0, 2.0)), BandOfKind(None, Band(1.0, 2.0))])
    assert (found.low, found.high, found.expected) == (2.0, 4.0, None)
