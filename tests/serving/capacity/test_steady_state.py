"""The closed form, by hand: a table whose step is a constant and something for each prompt token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.serving.capacity.outcome import Promise
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
    free, limited = most_requests(states), most_requests(states, Promise(tpot_s=0.0125, share=0.5))
    assert free is not None
    assert limited is not None
    assert free.sequences == 64
    assert limited.step_s <= 0.0125
    assert limited.sequences < 64
    assert most_requests(states, Promise(tpot_s=0.001)) is None


def test_a_rate_takes_as_many_sequences_as_it_needs() -> None:
    state = STEADY.at_rate(20.0)
    assert state is not None
    assert state.requests_per_s == 20.0
    assert STEADY.at(state.sequences).requests_per_s >= 20.0 > STEADY.at(state.sequences - 1).requests_per_s
    assert STEADY.at_rate(1e6) is None


def test_a_client_sees_more_than_the_engine() -> None:
    shares = FirstToken(constant_s=0.02, prompts=2.0, prompts_of_others=0.1, steps=0.0)
    engine, client = STEADY.at(8), replace(STEADY, client=shares).at(8)
    assert client.first_token_s == pytest.approx(0.02 + (2.0 + 0.8) * (_STEP_S + 1000 * _PER_TOKEN_S), rel=1e-6)
    later = engine.first_token_at(0.99) - engine.first_token_at(0.5)
    assert client.first_token_at(0.99) == pytest.approx(client.first_token_s + later)


def test_a_promise_names_the_limit_that_breaks() -> None:
    state = STEADY.at(32)
    assert state.broken(Promise(tpot_s=0.001)) == "TPOT"
    assert state.broken(Promise(ttft_s=0.001)) == "TTFT"
    assert state.broken(Promise(e2e_s=0.001)) == "E2E"
    assert state.broken(Promise(tpot_s=1, ttft_s=1, e2e_s=100)) is None


def test_a_shared_prefix_is_read_once() -> None:
    mean = mean_request(as_traffic("5/s prompt=100 output=10 prefixes=1x900 requests=10"))
    assert mean.prompt_tokens == pytest.approx(100 + 900 / 10)
    assert mean.output_tokens == 10
