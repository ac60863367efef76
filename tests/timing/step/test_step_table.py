"""A step table answers between its points, and adds up the parts of a step."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.timing.step.step_table import Curve, RankStep, StepTable, Surface

TOKENS = Curve(at=(1, 16, 256, 4096), seconds=(1e-3, 1.2e-3, 3e-3, 4e-2))
DECODING = Surface(across=(1, 64), along=(16, 4096), seconds=((1e-5, 1e-4), (1e-4, 3e-3)))
PROMPTS = Surface(across=(16, 4096), along=(16, 4096), seconds=((1e-6, 1e-5), (1e-4, 1e-2)))
TABLE = StepTable(tokens=TOKENS, head=Curve(at=(1, 64), seconds=(1e-4, 2e-4)), decoding=DECODING, prompts=PROMPTS)


@pytest.mark.parametrize("at", range(4))
def test_a_curve_goes_through_its_points(at: int) -> None:
    assert TOKENS(TOKENS.at[at]) == TOKENS.seconds[at]


@given(st.integers(1, 8000), st.integers(1, 8000))
def test_more_tokens_never_take_less(one: int, other: int) -> None:
    fewer, more = sorted((one, other))
    assert TOKENS(fewer) <= TOKENS(more) * (1 + 1e-12)


def test_beyond_its_last_point_time_grows_in_proportion_and_nothing_takes_none() -> None:
    assert TOKENS(8192) == pytest.approx(2 * 4e-2)
    assert TOKENS(0) == DECODING(0, 100) == DECODING(3, 0) == 0.0


@given(st.floats(1, 64), st.floats(16, 4096))
def test_a_surface_stays_between_its_corners(across: float, along: float) -> None:
    assert 1e-5 * (1 - 1e-9) <= DECODING(across, along) <= 3e-3 * (1 + 1e-9)


def test_a_step_is_the_sum_of_its_parts() -> None:
    by_hand = TOKENS(8 + 100) + TABLE.head(9) + DECODING(8, 1000) + PROMPTS(100, 400)
    assert TABLE.seconds(8, 8000, [(100, 300)]) == pytest.approx(by_hand)
    assert TABLE.seconds(8, 8000) == pytest.approx(TOKENS(8) + TABLE.head(8) + DECODING(8, 1000))


def test_states_are_one_launch_for_all_prompts_of_a_step() -> None:
    """By hand: three prompts of 200 tokens on the mean, at one point of the surface of states."""
    states = Surface(across=(1, 64), along=(16, 4096), seconds=((1e-4, 1e-3), (2e-4, 8e-3)))
    table, chunks = replace(TABLE, states=states), [(100, 300), (200, 0), (300, 0)]
    assert table.seconds(8, 8000, chunks) - TABLE.seconds(8, 8000, chunks) == pytest.approx(states(3, 200))
    assert table.seconds(8, 8000) == TABLE.seconds(8, 8000), "those that decode are in another surface"
    slower = table.corrected(decoding=1.0, prompts=2.0).states
    assert slower is not None
    assert slower(3, 200) == pytest.approx(2 * states(3, 200))


@pytest.mark.parametrize("image_tokens", [0, 96])
@pytest.mark.parametrize("drafted", [0, 24])
def test_readings_in_a_row_are_the_steps_by_themselves(drafted: int, image_tokens: int) -> None:
    """To the last digit: both answer the same question."""
    states = Surface(across=(1, 64), along=(16, 4096), seconds=((1e-4, 1e-3), (2e-4, 8e-3)))
    table = replace(TABLE, states=states, images=Curve(at=(64, 512), seconds=(1e-3, 9e-3)), padded_to=(8, 512, 1024))
    readings = table.seconds_of_readings(7, 8500, (137, 300), image_tokens, drafted)
    assert list(islice(readings, 20)) == [
        table.seconds(7, 8500, [(137, 300)] * count, count * image_tokens, drafted) for count in range(1, 21)
    ]


def test_a_batch_is_filled_up_to_the_next_one_that_was_captured() -> None:
    padded = StepTable(tokens=TOKENS, head=TABLE.head, decoding=DECODING, prompts=PROMPTS, padded_to=(1, 2, 4, 8, 16))
    assert padded.seconds(9, 9000) - TABLE.seconds(9, 9000) == pytest.approx(TOKENS(16) - TOKENS(9))
    assert padded.seconds(17, 17000) == TABLE.seconds(17, 17000), "larger ones are launched as they are"


def test_groups_that_step_together_wait_for_the_longest() -> None:
    """By hand: both fill up to 8 tokens; the second attends longer, to 2,000 keys of each of its 4 sequences."""
    both = replace(TABLE, groups=2, padded_to=(1, 2, 4, 8, 16))
    steps = [RankStep(7, 700), RankStep(4, 8000)]
    by_hand = TOKENS(2 * 8) + TABLE.head(2 * 7) + max(DECODING(14, 100), DECODING(8, 2000))
    assert both.seconds_together(steps) == pytest.approx(by_hand)
    chunk = RankStep(0, 0, [(300, 100)])
    by_hand = TOKENS(2 * 300) + TABLE.head(2 * 7) + max(DECODING(14, 100), PROMPTS(300, 400))
    assert both.seconds_together([steps[0], chunk]) == pytest.approx(by_hand)


@given(st.integers(1, 64), st.integers(1, 500))
def test_equal_groups_are_one_scheduler_of_twice_the_batch(decoding: int, context: int) -> None:
    both = replace(TABLE, groups=2)
    own = RankStep(decoding, decoding * context)
    assert both.seconds_together([own, own]) == pytest.approx(both.seconds(2 * decoding, 2 * decoding * context))


def test_a_correction_is_by_the_kind_of_step() -> None:
    corrected = TABLE.corrected(decoding=1.5, prompts=2.0)
    assert corrected.seconds(8, 8000) == pytest.approx(1.5 * TABLE.seconds(8, 8000))
    chunk = TOKENS(4096) + PROMPTS(4096, 4096)
    assert corrected.tokens(4096) + corrected.prompts(4096, 4096) == pytest.approx(2.0 * chunk)


@given(st.floats(0.2, 5.0))
def test_one_factor_for_all_is_that_factor(factor: float) -> None:
    corrected = TABLE.corrected(decoding=factor, prompts=factor)
    for decoding, cached, chunks in ((1, 50, []), (40, 40_000, [(700, 10)]), (0, 0, [(4096, 0)])):
        wanted = factor * TABLE.seconds(decoding, cached, chunks)
        assert corrected.seconds(decoding, cached, chunks) == pytest.approx(wanted)
