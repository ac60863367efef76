"""Turns of sessions by hand: a step is a constant and something for each new token; caches hold all, part or none."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.serving.capacity.sessions import CacheLoad, HostCache, SessionMean, found_tokens
from llm_perf_opt.serving.capacity.steady_state import MeanRequest, ReplicaLimits, SteadyReplica, mean_request
from llm_perf_opt.serving.read_traffic import as_traffic
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface

_STEP_S, _PER_TOKEN_S = 0.008, 2e-5
_NOTHING = Surface(across=(1.0, 2.0), along=(1.0, 2.0), seconds=((0.0, 0.0), (0.0, 0.0)))
TABLE = StepTable(
    tokens=Curve(at=(1.0, 1e9), seconds=(_STEP_S, _STEP_S)),
    head=Curve(at=(1.0, 1e9), seconds=(0.0, 0.0)),
    decoding=_NOTHING,
    prompts=Surface(
        across=(1.0, 10_000.0), along=(1.0, 100_000.0), seconds=((_PER_TOKEN_S,) * 2, (1e4 * _PER_TOKEN_S,) * 2)
    ),
)
# 4 turns: prompts of 1,024, 1,248, 1,472 and 1,696 tokens; before the last three are 1,119, 1,343 and 1,567 of them
# that a step has read, in blocks of 16: 1,104, 1,328 and 1,552.
WORDS = "prompt=1024 output=96 sessions:turns=4,grow=128"
MEAN = mean_request(as_traffic(f"1 at once requests=4 {WORDS}"))
EARLIER = (1104 + 1328 + 1552) / 4
LIMITS = ReplicaLimits(sequences=64, batched_tokens=8192, cache_tokens=10**9)
STEADY = SteadyReplica(table=TABLE, mean=MEAN, limits=LIMITS, is_closed=True)
THINKING = mean_request(as_traffic(f"1 at once requests=4000 {WORDS},think=20s"))


def replica(mean: MeanRequest = THINKING, *, cache: int = 10**9, host: HostCache | None = None) -> SteadyReplica:
    return replace(STEADY, mean=mean, limits=replace(LIMITS, cache_tokens=cache), host=host)


def host(tokens: float = inf, tokens_per_s: float = inf) -> HostCache:
    return HostCache(tokens=tokens, tokens_per_s=tokens_per_s, link="a wire")


def test_the_mean_turn_finds_the_whole_blocks_before_it() -> None:
    assert MEAN.prompt_tokens == (1024 + 1248 + 1472 + 1696) / 4
    assert MEAN.session == SessionMean(earlier_tokens=EARLIER, continued=0.75, think_s=0.0, first_tokens=1024)
    assert MEAN.resumed_tokens == EARLIER and MEAN.shared_tokens == 0


@pytest.mark.parametrize("users", [1, 7, 40])
def test_without_thinking_only_new_tokens_are_computed(users: int) -> None:
    """However little room is left: a turn comes at once, and nothing is dropped before it."""
    state = replica(MEAN).at_users(users)
    assert state.reuse is not None and state.reuse.tokens == EARLIER
    new = round(MEAN.prompt_tokens - EARLIER)
    assert state.step_s == pytest.approx(_STEP_S + users / 96 * new * _PER_TOKEN_S, rel=1e-3)
    assert state.users == state.sequences == users


def test_a_cache_that_is_too_small_computes_everything_again() -> None:
    small = replica(cache=2 * round(THINKING.prompt_tokens + 96))
    state, none = small.at(2), replace(small, mean=replace(THINKING, session=None, resumed_tokens=0.0)).at(2)
    assert state.reuse is not None and state.reuse.tokens < 0.01 * EARLIER
    assert state.step_s == pytest.approx(none.step_s, rel=2e-3)


def test_users_are_thinking_or_being_answered() -> None:
    """Little's law: the rate times the time of a whole turn, thinking included, is the number of users."""
    state = replica().at_users(200)
    assert THINKING.session is not None
    assert state.away_s == pytest.approx(0.75 * 20, rel=0.1)
    assert state.requests_per_s * (state.latency_s + state.away_s) == pytest.approx(200, rel=2e-3)


def test_offload_over_an_infinite_link_equals_an_infinite_cache() -> None:
    for load in (8, 60):
        endless, offloaded = replica().at(load), replica(cache=150_000, host=host()).at(load)
        assert offloaded.reuse is not None and offloaded.reuse.host_tokens > 0
        assert offloaded.step_s == pytest.approx(endless.step_s, rel=1e-9)
        assert offloaded.first_token_s == pytest.approx(endless.first_token_s, rel=1e-9)


def test_offload_over_a_link_without_speed_equals_none() -> None:
    for load in (8, 60):
        none, offloaded = (replica(cache=150_000, host=kept).at(load) for kept in (None, host(tokens_per_s=0.0)))
        assert (offloaded.step_s, offloaded.first_token_s) == (none.step_s, none.first_token_s)


def test_offload_is_used_only_where_loading_is_faster_than_computing() -> None:
    """Computing takes 20 us for a token: a link of 40,000 tokens a second is slower, one of 100,000 is faster."""
    ways = [None, host(tokens_per_s=40_000.0), host(tokens_per_s=100_000.0)]
    none, slow, fast = (replica(cache=150_000, host=kept).at(30).first_token_s for kept in ways)
    assert slow == none > fast


def test_a_user_comes_back_in_time_by_chance() -> None:
    """Nothing but sessions that go on, so what is in the cache is what users left who think: by hand."""
    session = SessionMean(earlier_tokens=1000.0, continued=1.0, think_s=10.0, first_tokens=50.0)
    load = CacheLoad(requests_per_s=5.0, end_tokens=1000.0 + 1e-9, working_tokens=2000.0)
    # users away within T hold 5/s x 1,000 x 10 s x (1 - exp(-T / 10 s)); room for half of them keeps half
    assert found_tokens(session, load, 2000.0 + 25_000.0, None).gpu_tokens == pytest.approx(500.0)
    assert found_tokens(session, load, 2000.0, None).gpu_tokens == 0


def test_last_turns_fill_the_cache_for_nobody() -> None:
    """1 request a second of 100 tokens, half of them nobody's: 50 T + 50 x 10 s x (1 - exp(-T / 10 s)) of room."""
    session = SessionMean(earlier_tokens=50.0, continued=0.5, think_s=10.0, first_tokens=50.0)
    load = CacheLoad(requests_per_s=1.0, end_tokens=100.0, working_tokens=0.0)
    kept_s = 7.0
    room = 50 * kept_s + 50 * 10 * (1 - exp(-kept_s / 10))
    assert found_tokens(session, load, room, None).gpu_tokens == pytest.approx(50 * (1 - exp(-kept_s / 10)))


def test_loads_wait_for_each_other() -> None:
    """A deterministic time of 10 ms each, half of the link busy: each waits for half a load more (M/D/1)."""
    session = SessionMean(earlier_tokens=100.0, continued=1.0, think_s=5.0, first_tokens=50.0)
    load = CacheLoad(requests_per_s=50.0, end_tokens=101.0, working_tokens=10.0)
    reuse = found_tokens(session, load, 0.0, host(tokens_per_s=10_000.0))
    assert (reuse.gpu_tokens, reuse.host_tokens) == (0, 100)
    assert reuse.load_s == pytest.approx(0.015)
    assert reuse.most_per_s == pytest.approx(99)


@settings(max_examples=25, deadline=None)
@given(
    cache=st.integers(4_000, 400_000),
    more=st.integers(0, 400_000),
    kept=st.none() | st.builds(host, st.floats(0, 1e6), st.floats(1e3, 1e8)),
    load=st.integers(1, 40),
    think_s=st.floats(0, 100),
)
def test_more_cache_is_never_slower_and_no_more_is_found_than_was_there(
    cache: int, more: int, kept: HostCache | None, load: int, think_s: float
) -> None:
    session = replace(
        SessionMean(earlier_tokens=EARLIER, continued=0.75, think_s=0.0, first_tokens=1024), think_s=think_s
    )
    mean = replace(MEAN, session=session)
    some, larger = (replica(mean, cache=size, host=kept) for size in (cache, cache + more))
    load = min(load, some.most)
    state, other = some.at(load), larger.at(load)
    assert state.reuse is not None and other.reuse is not None
    assert 0 <= state.reuse.tokens <= EARLIER + 1e-6
    assert other.step_s <= state.step_s * 1.01
    assert state.reuse.load_s == 0 or state.requests_per_s <= state.reuse.most_per_s


@settings(max_examples=8, deadline=None)
@given(users=st.floats(1, 400), cache=st.integers(20_000, 500_000), speed=st.floats(1e4, 1e8))
def test_littles_law_holds_at_every_number_of_users(users: float, cache: int, speed: float) -> None:
    """Where more ask than are answered, the answered ones are those of the most that decode at once."""
    steady = replica(cache=cache, host=host(300_000.0, speed))
    state = steady.at_users(users)
    inside = state.requests_per_s * (state.latency_s + state.away_s)
    assert inside <= users * 1.002 or users < 2
    assert state.requests_per_s <= steady.at(steady.most).requests_per_s * 1.001


def test_the_median_is_a_turn_that_finds_its_session_and_the_slowest_are_those_that_do_not() -> None:
    """Alone, where nobody waits: 128 new tokens and up to 16 of a block, a first prompt of 1,024, a whole later one."""
    for steady in (replica(), replica(cache=60_000)):
        state = steady.at(1)
        assert state.reuse is not None
        kinds = state.reuse.kinds
        assert sum(share for share, _ in kinds) == pytest.approx(1)
        assert sum(share * later_s for share, later_s in kinds) == pytest.approx(0, abs=1e-9), "the mean stays"
        new = state.first_token_at(0.3) - _STEP_S
        assert new == pytest.approx(144 * _PER_TOKEN_S, rel=0.1)
    assert replica().at(1).first_token_at(0.9) == pytest.approx(_STEP_S + 1024 * _PER_TOKEN_S, rel=0.01)
    later = (1248 + 1472 + 1696) / 3
    assert state.first_token_at(0.999) == pytest.approx(_STEP_S + later * _PER_TOKEN_S, rel=0.02)
