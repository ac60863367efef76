"""Ranges as people write them, and the round numbers that are taken of one."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.number_ranges import NumberRange, read_range, round_numbers, thinned


@pytest.mark.parametrize(
    ("given", "values", "is_range"),
    [
        ("7", (7,), False),
        (7, (7,), False),
        ("1,8,64", (1, 8, 64), False),
        ([64, 1, 8, 8], (1, 8, 64), False),
        ("1k..8K", (1024, 1536, 2048, 3072, 4096, 6144, 8192), True),
        ((1, 512), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), True),
        ("1..100", (1, 2, 4, 8, 16, 32, 64, 100), True),
        ("3..5", (3, 4, 5), True),
        ("16k", (16384,), False),
        ("1m", (1_048_576,), False),
        ("5..5", (5,), False),
    ],
)
def test_a_range_a_list_and_one_number(given: object, values: tuple[int, ...], is_range: bool) -> None:
    assert read_range(given, "batch") == NumberRange(values, is_range)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given", ["", "a..b", "1..", "8..1", "0..4", "-1", "1.5", "1,,2", "9999999999999", "1g", (), [1.5], None, True]
)
def test_what_is_no_range_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match="batch"):
        read_range(given, "batch")  # type: ignore[arg-type]


@pytest.mark.parametrize("points", [1, 1001])
def test_a_number_of_points_has_limits(points: int) -> None:
    with pytest.raises(UsageError, match="points"):
        read_range("1..512", "batch", points=points)


def test_of_any_range_both_ends_and_no_more_than_asked_for() -> None:
    for low in (1, 2, 7, 100, 1000, 1023):
        for high in (low, low + 1, low + 9, 3 * low, 100 * low + 1, 2**20):
            for most in (2, 3, 5, 10, 48):
                found = round_numbers(low, high, most)
                assert (found[0], found[-1]) == (low, high)
                assert len(found) <= most
                assert list(found) == sorted(set(found))


def test_thinning_keeps_both_ends() -> None:
    assert thinned(range(10), 4) == (0, 3, 6, 9)
    assert thinned((1, 2), 4) == (1, 2)


@pytest.mark.parametrize("given", ["9" * 100_000, 10**4000, 10**9000, "1..1e400", ["x" * 9000]], ids=range(5))
def test_what_is_no_range_is_refused_in_a_short_sentence(given: Any) -> None:
    with pytest.raises(UsageError) as refused:
        read_range(given, "context")
    assert len(str(refused.value)) < 400
