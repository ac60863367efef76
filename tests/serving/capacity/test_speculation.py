"""Speculative decoding in a steady state: by hand, and what no drafter can do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.serving.speculation import Drafter, Speculation, read_speculation
from llm_perf_opt.timing.step.step_table import Curve
from tests.serving.capacity.test_steady_state import LIMITS, MEAN, STEADY, TABLE

_LAYERS = 20
GROWING = replace(
    TABLE, tokens=Curve(at=(1.0, 1e4), seconds=(0.010, 1.0)), head=Curve(at=(1.0, 1e4), seconds=(0.001, 0.1))
)
WAYS = st.builds(
    Speculation,
    drafter=st.sampled_from(Drafter),
    tokens=st.integers(1, 16),
    acceptance=st.floats(0, 1, allow_nan=False),
)


def test_the_tokens_of_a_step_by_hand() -> None:
    way = read_speculation("mtp:3@0.5")
    assert way == Speculation(drafter=Drafter.MTP, tokens=3, acceptance=0.5)
    assert way is not None and way.tokens_per_step == 1 + 0.5 + 0.25 + 0.125
    assert way.kept_ends == pytest.approx((1 + 0.4 + 0.16 + 0.064, 1 + 0.6 + 0.36 + 0.216))
    assert read_speculation(None) is None


def test_a_step_by_hand() -> None:
    """Two drafts of a twentieth of a step each, and a step of 10 ms, over 1 + 0.5 + 0.25 tokens."""
    way = Speculation(drafter=Drafter.MTP, tokens=2, acceptance=0.5)
    state = replace(STEADY, speculation=way, layers=_LAYERS).at(1)
    assert state.plain_s == pytest.approx(0.010 + 2 * 0.010 / _LAYERS)
    assert replace(STEADY, speculation=way, layers=_LAYERS, is_closed=True).at(1).token_s == pytest.approx(0.011 / 1.75)


@pytest.mark.parametrize(
    "text", ["mtp", "mtp:0@0.5", "mtp:17@0.5", "mtp:3@1.5", "medusa:3@0.5", "mtp:3@", "mtp:3@-0.1"]
)
def test_what_is_no_way_to_speculate_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="is not a way to speculate"):
        read_speculation(text)


@given(way=WAYS, sequences=st.integers(1, 64))
def test_nothing_kept_is_slower_and_all_kept_is_at_most_one_more_than_the_drafts_faster(
    way: Speculation, sequences: int
) -> None:
    plain = replace(STEADY, table=GROWING)
    with_drafts = replace(plain, speculation=way, layers=_LAYERS)
    before = plain._plain_s(sequences)
    none_kept, all_kept = (
        replace(with_drafts, speculation=replace(way, acceptance=share))._plain_s(sequences)
        / replace(way, acceptance=share).tokens_per_step
        for share in (0.0, 1.0)
    )
    assert none_kept > before, "rows of drafts, and the drafter"
    assert all_kept >= before / (way.tokens + 1)
    assert none_kept >= with_drafts._plain_s(sequences) / way.tokens_per_step >= all_kept


@given(way=WAYS, sequences=st.integers(1, 64))
def test_as_many_requests_end_as_begin(way: Speculation, sequences: int) -> None:
    """Little's law: in flight are the requests of a second times the seconds of an answer."""
    state = replace(STEADY, table=GROWING, speculation=way, layers=_LAYERS).at(sequences)
    answer_s = state.step_s / way.tokens_per_step * MEAN.output_tokens
    assert state.requests_per_s * answer_s == pytest.approx(sequences)


def test_gains_shrink_with_load_and_end() -> None:
    flat_then_growing = Curve(at=(1.0, 32.0, 1e4), seconds=(0.010, 0.010, 1.0))
    steady = replace(
        STEADY,
        table=replace(TABLE, tokens=flat_then_growing),
        limits=replace(LIMITS, sequences=4096),
        speculation=read_speculation("ngram:4@0.5"),
    )
    gains = [replace(steady, speculation=None)._plain_s(n) / steady._plain_s(n) for n in (1, 16, 256)]
    assert gains[0] > gains[1] > gains[2]
    assert 1 <= steady.break_even < steady.most
    assert replace(steady, speculation=read_speculation("ngram:4@0")).break_even == 0


def test_serve_says_what_speculation_brings(tmp_path: Path) -> None:
    asked = {"input": 512, "output": 256, "users": 4, "tp": 1}
    plain, drafted, lost = (
        lpo.serve("Qwen/Qwen3-8B", "1x h100-sxm", speculate=way, **asked)  # type: ignore[arg-type]
        for way in (None, "eagle:3@0.7", "eagle:3@0")
    )
    first, second, third = (answer.fleets[0] for answer in (plain, drafted, lost))
    assert second.tpot.expected_s < first.tpot.expected_s < third.tpot.expected_s
    assert second.candidate.replica.fit.cache_tokens < first.candidate.replica.fit.cache_tokens
    assert second.tpot.band.low < first.tpot.band.low and second.tpot.band.high > second.tpot.expected_s
    notes = " ".join(note.text for note in drafted.report().notes)
    assert "keeps 2.53 tokens per step" in notes
    drafted.save_deployment(tmp_path)
    command = " ".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    assert "speculative-config" in command and json.dumps("eagle3")[1:-1] in command


def test_replays_do_not_speculate() -> None:
    with pytest.raises(UsageError, match="do not speculate"):
        lpo.serve("Qwen/Qwen3-8B", "h100-sxm", input=512, output=64, replay=True, speculate="mtp:1@0.8")
