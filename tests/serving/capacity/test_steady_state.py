"""The closed form, by hand: a table whose step is a constant and something for each prompt token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.serving.capacity.outcome import Slo
from llm_perf_opt.serving.capacity.steady_state import (
    MeanRequest,
    ReplicaLimits,
    SteadyReplica,
    mean_request,
    most_requests,
)
from llm_perf_opt.serving.read_traffic import as_traffic
from llm_perf_opt.timing.step.request_time import FirstToken
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface

_STEP_S, _PER_TOKEN_S = 0.010, 1e-5
_NOTHING = Surface(across=(1.0, 2.0), along=(1.0, 2.0), seconds=((0.0, 0.0), (0.0, 0.0)))
# Attention of a chunk is proportional to its tokens, everything else is constant.
TABLE = StepTable(
    tokens=Curve(at=(1.0, 1e9), seconds=(_STEP_S, _STEP_S)),
    head=Curve(at=(1.0, 1e9), seconds=(0.0, 0.0)),
    decoding=_NOTHING,
    prompts=Surface(
        across=(1.0, 10_000.0), along=(1.0, 10_000.0), seconds=((_PER_TOKEN_S,) * 2, (1e4 * _PER_TOKEN_S,) * 2)
    ),
)
MEAN = MeanRequest(prompt_tokens=1000, output_tokens=100)
LIMITS = ReplicaLimits(sequences=64, batched_tokens=8192, cache_tokens=10**9)
STEADY = SteadyReplica(table=TABLE, mean=MEAN, limits=LIMITS)


def test_as_many_requests_end_as_begin() -> None:
    for state in STEADY.states():
        prompts = state.sequences / 100
        step_s = _STEP_S + prompts * 1000 * _PER_TOKEN_S
        assert state.step_s == pytest.approx(step_s, rel=1e-3)  # more prompts at once than are counted are rare
        assert state.requests_per_s == pytest.approx(prompts / state.step_s)
        assert state.plain_s == pytest.approx(_STEP_S)


def test_a_single_user_pays_for_the_whole_step_of_the_prompt() -> None:
    alone = replace(STEADY, is_closed=True).at(1)
    prompt_s, answer_s = _STEP_S + 1000 * _PER_TOKEN_S, 99 * _STEP_S
    assert alone.prompt_share == pytest.approx(prompt_s / (prompt_s + answer_s))


def test_the_host_adds_to_every_step() -> None:
    slow = replace(STEADY, table=replace(TABLE, host_s=0.002))
    assert slow.at(64).step_s == pytest.approx(STEADY.at(64).step_s + 0.002, rel=1e-3)


def test_a_prompt_longer_than_a_step_takes_several() -> None:
    cut = replace(STEADY, limits=replace(LIMITS, batched_tokens=500))
    state = cut.at(1)
    assert state.queue.most == 1
    assert state.queue.reading_s[1] == pytest.approx(3 * _STEP_S + 1000 * _PER_TOKEN_S)  # 499, 499 and 2 tokens


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (LIMITS, 64),
        (ReplicaLimits(sequences=64, batched_tokens=8192, cache_tokens=11_000), 10),  # 1,100 tokens a request
        (ReplicaLimits(sequences=64, batched_tokens=110, cache_tokens=10**9), 10),  # 11 tokens a step for each
        (ReplicaLimits(sequences=64, batched_tokens=8192, cache_tokens=5), 1),
    ],
)
def test_cache_sequences_and_tokens_of_a_step_limit_how_many_run(limits: ReplicaLimits, most: int) -> None:
    limited = replace(STEADY, limits=limits)
    assert limited.most == max(state.sequences for state in limited.states()) == most


def test_a_limit_on_the_step_takes_fewer_sequences() -> None:
    states = list(STEADY.states())
    free, limited = most_requests(states), most_requests(states, Slo(tpot_s=0.0125, share=0.5))
    assert free is not None
    assert limited is not None
    assert free.sequences == 64
    assert limited.step_s <= 0.0125
    assert limited.sequences < 64
    assert most_requests(states, Slo(tpot_s=0.001)) is None


def test_a_rate_takes_as_many_sequences_as_it_needs() -> None:
    state = STEADY.at_rate(20.0)
    assert state is not None
    assert state.requests_per_s == 20.0
    assert STEADY.at(state.sequences).requests_per_s >= 20.0 > STEADY.at(state.sequences - 1).requests_per_s
    assert STEADY.at_rate(1e6) is None


def test_an_answer_does_not_depend_on_the_questions_before() -> None:
    """What a replica keeps for the next question is never another one's."""
    steady = replace(STEADY, mean=MeanRequest(prompt_tokens=700, output_tokens=90))
    loads, rates = [1, 3, 64, 17, 2, 64, 40], [2.5, 31.0, 0.1, 12.0, 31.0]
    asked = [*map(steady.at, loads)], [state and state.first_token_at(0.99) for state in map(steady.at_rate, rates)]
    alone = [replace(steady).at(load) for load in loads]
    alone_at_rate = [replace(steady).at_rate(rate) for rate in rates]
    assert asked == (alone, [state and state.first_token_at(0.99) for state in alone_at_rate])


def test_steps_that_leave_prompts_waiting_count_too() -> None:
    """A budget of one prompt: of 0.64 that come in a step, now and then two or three; none of their time is lost."""
    narrow = replace(STEADY, limits=replace(LIMITS, batched_tokens=1500))
    assert narrow.at(64).step_s == pytest.approx(_STEP_S + 0.64 * 1000 * _PER_TOKEN_S, rel=1e-9)


def test_a_prompt_in_several_steps_adds_its_own_time_alone() -> None:
    cut = replace(STEADY, limits=replace(LIMITS, batched_tokens=500))
    assert cut.at(10).step_s == pytest.approx(_STEP_S + 0.1 * 1000 * _PER_TOKEN_S, rel=1e-9)


def test_requests_at_random_make_steps_longer_by_the_prompts_that_have_time_to_come() -> None:
    """20 prompts of 10 ms a second leave 0.8 of the time for steps of 10 ms: 12.5 ms each, and 25 answers at once."""
    state = STEADY.at_rate(20.0)
    assert state is not None
    assert state.crowd is not None
    assert state.step_s == pytest.approx(_STEP_S / (1 - 20 * 1000 * _PER_TOKEN_S), rel=1e-3)
    assert state.crowd.mean == pytest.approx(25, rel=1e-2)
    assert state.sequences == 25
    assert state.per_token_at(0.5) == pytest.approx(state.step_s, rel=1e-2)
    assert state.per_token_at(0.99) > state.per_token_at(0.9) > state.step_s


def test_steps_that_a_crowd_makes_longer_make_the_crowd_larger() -> None:
    """A step of 1 ms for each sequence: one processor that all share, where 0.5 of load is one request on average."""
    shared = replace(
        TABLE,
        tokens=Curve(at=(1.0, 1e4), seconds=(0.001, 10.0)),
        prompts=_NOTHING,
    )
    steady = replace(
        STEADY, table=shared, mean=replace(MEAN, prompt_tokens=1e-6), limits=replace(LIMITS, sequences=500)
    )
    state = steady.at_rate(5.0)  # answers of 100 tokens, 10 a second at most; each prompt is one token more
    assert state is not None
    assert state.crowd is not None
    assert state.crowd.mean == pytest.approx(1.0, rel=0.05)
    assert state.crowd.variance == pytest.approx(2.0, rel=0.1)  # load / (1 - load) ** 2
    assert state.step_s == pytest.approx(0.002, rel=0.05)  # a request meets twice the time that it takes alone


def test_a_client_sees_more_than_the_engine() -> None:
    shares = FirstToken(constant_s=0.02, prompts=2.0, prompts_of_others=0.1, steps=0.0)
    engine, client = STEADY.at(8), replace(STEADY, client=shares).at(8)
    assert client.first_token_s == pytest.approx(0.02 + (2.0 + 0.8) * (_STEP_S + 1000 * _PER_TOKEN_S), rel=1e-6)
    later = engine.first_token_at(0.99) - engine.first_token_at(0.5)
    assert client.first_token_at(0.99) == pytest.approx(client.first_token_s + later)


def test_an_slo_names_the_limit_that_breaks() -> None:
    state = STEADY.at(32)
    assert state.broken(Slo(tpot_s=0.001)) == "TPOT"
    assert state.broken(Slo(ttft_s=0.001)) == "TTFT"
    assert state.broken(Slo(e2e_s=0.001)) == "E2E"
    assert state.broken(Slo(tpot_s=1, ttft_s=1, e2e_s=100)) is None


def test_a_shared_prefix_is_read_once() -> None:
    mean = mean_request(as_traffic("5/s prompt=100 output=10 prefixes=1x900 requests=10"))
    assert (mean.prompt_tokens, mean.new_tokens) == (1000, 100 + 900 / 10)
    assert mean.output_tokens == 10


def test_a_prefix_of_the_whole_prompt_leaves_only_new_tokens() -> None:
    """The cache holds it once for all, a step reads one token, and a decode step still attends to all of it."""
    shared = replace(MEAN, shared_tokens=1000)
    assert (shared.new_tokens, shared.mean_context) == (1, MEAN.mean_context)
    steady = replace(STEADY, mean=shared)
    assert steady.at(8).alone_s == pytest.approx(_STEP_S + _PER_TOKEN_S)
    small = replace(LIMITS, cache_tokens=2000)
    assert replace(steady, limits=small).most == 10, "1,000 shared tokens, and 100 of each answer"
    assert replace(STEADY, limits=small).most == 1


@pytest.mark.parametrize("load", [1, 8, 64])
def test_a_longer_prefix_is_never_slower(load: int) -> None:
    times = [
        replace(STEADY, mean=replace(MEAN, shared_tokens=shared)).at(load).step_s for shared in (0, 300, 900, 1000)
    ]
    assert times == sorted(times, reverse=True) and times[0] > times[-1]
