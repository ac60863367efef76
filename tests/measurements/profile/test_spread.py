from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.measurements.profile import Spread, spread_of


def test_five_samples_by_hand() -> None:
    assert spread_of([50, 10, 30, 20, 40]) == Spread(
        samples=5, median_ns=30.0, first_quartile_ns=20.0, third_quartile_ns=40.0, least_ns=10, most_ns=50
    )


def test_one_sample_is_everything() -> None:
    assert spread_of([7]).quartile_range_ns == 0
    assert spread_of([7]).median_ns == spread_of([7]).least_ns == spread_of([7]).most_ns == 7


def test_no_samples_have_no_spread() -> None:
    with pytest.raises(ValueError, match="no samples"):
        spread_of([])


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60))
def test_quartiles_are_those_of_numpy(samples: list[int]) -> None:
    found = spread_of(samples)
    expected = np.percentile(np.array(samples, dtype=float), [25, 50, 75])
    assert [found.first_quartile_ns, found.median_ns, found.third_quartile_ns] == pytest.approx(expected)
