"""The closed form, by hand: a table whose step is a constant and something for each prompt token."""

from __future__ import annotations

import pytest

from llm_perf_opt.serving.capacity.steady_state import (
    MeanRequest,
    ReplicaLimits,
    mean_request,
    most_requests,
    steady_states,
)
from llm_perf_opt.serving.read_traffic import as_traffic
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


def test_as_many_requests_end_as_begin() -> None:
    for state in steady_states(TABLE, MEAN, LIMITS):
        prompts = state.sequences / 100
        step_s = _STEP_S + prompts * 1000 * _PER_TOKEN_S
        assert state.step_s == pytest.approx(step_s)
        assert state.requests_per_s == pytest.approx(prompts / step_s)


def test_the_host_adds_to_every_step() -> None:
    from dataclasses import replace

    plain, slow = (list(steady_states(one, MEAN, LIMITS))[-1] for one in (TABLE, replace(TABLE, host_s=0.002)))
    assert slow.step_s == pytest.approx(plain.step_s + 0.002)


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
    assert max(state.sequences for state in steady_states(TABLE, MEAN, limits)) == most


def test_a_limit_on_the_step_takes_fewer_sequences() -> None:
    states = list(steady_states(TABLE, MEAN, LIMITS))
    free, limited = most_requests(states), most_requests(states, tpot_s=0.0125)
    assert free is not None
    assert limited is not None
    assert free.sequences == 64
    assert limited.step_s <= 0.0125
    assert limited.sequences < 64
    assert most_requests(states, tpot_s=0.001) is None


def test_a_shared_prefix_is_read_once() -> None:
    mean = mean_request(as_traffic("5/s prompt=100 output=10 prefixes=1x900 requests=10"))
    assert mean.prompt_tokens == pytest.approx(100 + 900 / 10)
    assert mean.output_tokens == 10
