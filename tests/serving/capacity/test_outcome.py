"""What a replay says of its requests, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.serving.capacity.outcome import Percentiles, Slo, outcome, read_slo, slower
from llm_perf_opt.serving.requests import AnsweredRequests
from tests.serving.capacity.capacity_replay import REPLAYED


def test_times_of_requests_count_from_their_arrival() -> None:
    found = outcome([REPLAYED], pages=2)
    assert found.ttft.sorted_s == (0.5, 1.0, 1.0)
    assert found.queue.sorted_s == (0.0, 0.0, 0.5)
    assert found.e2e.sorted_s == (1.0, 2.5, 3.0)
    assert found.tpot is not None
    assert found.tpot.sorted_s == (0.5, 1.0)  # a single token has no time per token


def test_rates_are_over_the_whole_time() -> None:
    found = outcome([REPLAYED], pages=2)
    assert found.requests_per_s == 3 / 4
    assert found.output_tokens_per_s == 9 / 4
    assert found.tokens_per_s == 209 / 4
    assert found.pages_per_s == 2 / 4
    assert found.asked_per_s == 3 / 2  # the same three, which came in two of the four seconds
    assert outcome([REPLAYED]).pages_per_s is None


def test_no_more_requests_are_answered_than_come() -> None:
    """One request every 4 s, each answered in 1 s: 20 in 77 s. They come at 20 / 76 a second."""
    arrivals = [4.0 * number for number in range(20)]
    requests = replace(
        _steady(1.0),
        **{name: getattr(_steady(1.0), name)[:20] for name in ("ids", "prompt_tokens", "output_tokens")},
        cached_tokens=[0] * 20,
        preemptions=[0] * 20,
        arrival_s=arrivals,
        scheduled_s=arrivals,
        first_token_s=[time + 1 for time in arrivals],
        last_token_s=[time + 1 for time in arrivals],
    )
    found = outcome([replace(REPLAYED, requests=requests)])
    assert found.asked_per_s == 20 / 76
    assert found.requests_per_s == 20 / 77
    assert found.mean_running == pytest.approx(20 / 77)  # each second of an answer, and nobody in the other three


def test_requests_in_the_engine_are_their_rate_times_their_time() -> None:
    """E2E of 1, 2.5 and 3 s and half a second in the queue, in 4 s; two replicas hold twice as many."""
    found, two = outcome([REPLAYED]), outcome([REPLAYED, REPLAYED])
    assert found.mean_running == 6 / 4
    assert found.mean_waiting == 0.5 / 4
    assert found.mean_running + found.mean_waiting == pytest.approx(found.requests_per_s * 6.5 / 3)
    assert (two.mean_running, two.mean_waiting) == (2 * found.mean_running, 2 * found.mean_waiting)


def test_what_the_engine_did_is_weighed_by_the_length_of_steps() -> None:
    found = outcome([REPLAYED])
    assert found.busy == 3 / 4
    assert (found.most_waiting, found.most_cache_use) == (2, 1.0)
    assert found.mean_cache_use == pytest.approx(0.5)
    assert found.cached_share == 50 / 200
    assert found.preemptions == 1


def test_two_replicas_answer_twice_as_much_in_the_same_time() -> None:
    one, two = outcome([REPLAYED]), outcome([REPLAYED, REPLAYED])
    assert two.requests_per_s == 2 * one.requests_per_s
    assert two.busy == one.busy
    assert two.ttft.p99_s == one.ttft.p99_s


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60), st.floats(0.01, 0.999))
def test_a_percentile_is_a_time_that_a_request_had_and_enough_keep_it(times: list[float], share: float) -> None:
    found = Percentiles(sorted_s=tuple(sorted(times)))
    at = found.at(share)
    assert at in times
    assert sum(time <= at for time in times) >= share * len(times) - 1e-6


def test_clients_that_wait_ask_for_no_rate() -> None:
    found = outcome([REPLAYED], is_closed=True)
    assert found.asked_per_s is None
    assert not found.is_growing


def _steady(served_s: float) -> AnsweredRequests:
    """A request every second for 200 s, each answered one after another in `served_s`."""
    arrivals = [float(second) for second in range(200)]
    ends, free = [], 0.0
    for arrival in arrivals:
        free = max(free, arrival) + served_s
        ends.append(free)
    ones = [1] * 200
    return AnsweredRequests(
        ids=[f"r{number}" for number in range(200)],
        arrival_s=arrivals,
        scheduled_s=arrivals,
        first_token_s=ends,
        last_token_s=ends,
        prompt_tokens=ones,
        output_tokens=ones,
        cached_tokens=ones,
        preemptions=ones,
    )


@pytest.mark.parametrize(("served_s", "grows"), [(0.5, False), (0.95, False), (1.5, True), (3.0, True)])
def test_a_backlog_grows_where_requests_come_faster_than_they_end(served_s: float, grows: bool) -> None:
    found = outcome([replace(REPLAYED, requests=_steady(served_s))])
    assert found.is_growing is grows
    assert found.keeps(Slo(ttft_s=1e9)) is not grows


def test_an_slo_is_met_by_its_share_of_requests() -> None:
    found = outcome([REPLAYED])
    assert found.keeps(Slo(ttft_s=1.0))
    assert not found.keeps(Slo(ttft_s=0.9))
    assert found.keeps(Slo(ttft_s=0.5, share=0.3))
    assert not found.keeps(Slo(ttft_s=1.0, tpot_s=0.4))


def test_slower_steps_scale_every_time_and_no_count() -> None:
    twice = outcome([slower(REPLAYED, 2.0)])
    once = outcome([REPLAYED])
    assert twice.ttft.median_s == 2 * once.ttft.median_s
    assert twice.requests_per_s == once.requests_per_s / 2
    assert (twice.busy, twice.mean_waiting, twice.most_cache_use) == (once.busy, once.mean_waiting, 1.0)


def test_an_slo_is_read_with_its_units() -> None:
    assert read_slo("ttft=500ms,tpot=40ms") == Slo(ttft_s=0.5, tpot_s=0.04)
    assert read_slo("p95, e2e=30s") == Slo(e2e_s=30.0, share=0.95)
    assert str(read_slo("ttft=500ms")) == "p99 TTFT at most 500 ms"


@pytest.mark.parametrize("text", ["ttft=500", "ttft", "p95", "", "ttft=1s,ttft=2s", "speed=3s", "ttft=0s"])
def test_an_unclear_slo_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_slo(text)
