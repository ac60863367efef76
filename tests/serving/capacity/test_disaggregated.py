"""Prefill and decode on separate GPUs: by hand, and never beyond the bounds of either side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.hardware.links import Link, LinkKind, parse_cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.capacity.disaggregated import UnknownLink, WorkerPair, link_between, transfer_seconds
from llm_perf_opt.serving.capacity.steady_state import SteadyReplica
from llm_perf_opt.timing.step.request_time import FirstToken, relayed_token_shares, request_fit
from llm_perf_opt.timing.step.step_table import Curve
from tests.serving.capacity.test_steady_state import LIMITS, STEADY, TABLE

_STEP_S, _PROMPT_S = 0.010, 0.010 + 1000 * 1e-5
GROWING = replace(TABLE, tokens=Curve(at=(1.0, 1e4), seconds=(0.010, 1.0)))
PAIR = WorkerPair(
    prefill=replace(STEADY, limits=replace(LIMITS, batched_tokens=1500)),
    decode=replace(STEADY, reads_prompts=False),
    transfer_s=0.0,
)


def _pair(table: object = GROWING, batched_tokens: int = 8192) -> WorkerPair:
    prefill = replace(STEADY, table=table, limits=replace(LIMITS, batched_tokens=batched_tokens))
    decode: SteadyReplica = replace(STEADY, table=table, reads_prompts=False)
    return WorkerPair(prefill=prefill, decode=decode, transfer_s=0.0)


def test_a_single_user_by_hand() -> None:
    """Nothing waits: the prompt, 5 ms on the link, half a step and a step, then 100 tokens."""
    state = replace(PAIR, transfer_s=0.005).at_users(1, 1, 1)
    assert state.first_token_s == pytest.approx(_PROMPT_S + 0.005 + 1.5 * _STEP_S, rel=1e-3)
    assert state.token_s == pytest.approx(_STEP_S)
    assert state.requests_per_s == pytest.approx(1 / (_PROMPT_S + 0.005 + 1.5 * _STEP_S + 100 * _STEP_S), rel=1e-3)


def test_decode_steps_read_no_prompts() -> None:
    decode = replace(STEADY, reads_prompts=False)
    assert [decode.at(count).step_s for count in (1, 8, 64)] == pytest.approx([_STEP_S] * 3)
    few = replace(decode, limits=replace(LIMITS, batched_tokens=64))
    assert few.most == 64, "a token of each sequence, and none of a prompt"


def test_saturated_prefill_workers_read_one_prompt_after_the_other() -> None:
    """64 users and steps that take one prompt each: 50 prompts a second, whatever the decode side could do."""
    state = PAIR.at_users(64, 1, 4)
    assert 4 * state.requests_per_s == pytest.approx(1 / _PROMPT_S, rel=0.03)
    assert state.first_token_s == pytest.approx(64 * _PROMPT_S - 100 * _STEP_S, rel=0.1)
    twice = PAIR.at_users(64, 2, 4)
    assert twice.first_token_s < state.first_token_s / 3


@settings(deadline=None)
@given(users=st.integers(1, 200), batched_tokens=st.sampled_from([600, 1500, 8192]))
def test_one_worker_each_and_an_infinite_link_are_never_faster_than_their_two_bounds(
    users: int, batched_tokens: int
) -> None:
    pair = _pair(batched_tokens=batched_tokens)
    state = pair.at_users(users, 1, 1)
    most = pair.decode.at(pair.decode.most).requests_per_s
    assert state.requests_per_s <= 1.02 * min(pair.prompts_per_s, most)
    assert state.first_token_s >= pair.reading_s()[1] * (1 - 1e-3)
    assert state.token_s >= pair.decode.at(1).step_s


@settings(deadline=None)
@given(users=st.integers(1, 200), prefills=st.integers(1, 4), decodes=st.integers(1, 4))
def test_as_many_requests_are_there_as_users(users: int, prefills: int, decodes: int) -> None:
    """Little's law over both sides and what lies between them."""
    state = _pair().at_users(users, prefills, decodes)
    seconds = state.first_token_s + state.steps * state.step_s
    assert decodes * state.requests_per_s * seconds == pytest.approx(users, rel=1e-6)


def test_a_slow_link_holds_the_prefill_workers_up() -> None:
    slow = replace(PAIR, transfer_s=0.5)
    assert slow.prompts_per_s == pytest.approx(2.0)
    assert slow.at_users(64, 1, 1).requests_per_s <= 2.04


def test_requests_that_come_at_random() -> None:
    slowest, busy = PAIR.at_rate(1.0, 1, 1), PAIR.at_rate(40.0, 1, 1)
    assert slowest is not None and busy is not None
    assert slowest.first_token_s < busy.first_token_s < 3 * slowest.first_token_s
    assert busy.first_token_at(0.99) > busy.first_token_s
    beyond = PAIR.at_rate(60.0, 1, 1)
    assert beyond is not None and beyond.queue.is_full, "50 prompts a second are read"
    assert PAIR.at_rate(70.0, 2, 1) is None, "64 sequences of 100 steps of 10 ms end 64 times a second"


def test_what_clients_saw_is_added() -> None:
    client = FirstToken(constant_s=0.1, prompts=0.0, prompts_of_others=0.0, steps=2.0)
    seen = replace(PAIR, client=client).at_users(1, 1, 1).first_token_s
    assert seen - PAIR.at_users(1, 1, 1).first_token_s == pytest.approx(0.1 + 2 * _STEP_S, rel=1e-3)
    assert relayed_token_shares("vllm") == request_fit().first_token["all disaggregated"]


@pytest.mark.parametrize(("prefill", "decode", "senders"), [(4, 4, 1), (2, 8, 4), (8, 2, 1)])
def test_a_cache_on_the_link_by_hand(prefill: int, decode: int, senders: int) -> None:
    link = Link(id="a", name="a", kind=LinkKind.INFINIBAND, bytes_per_s=50_000_000_000, latency_ns=2_000)
    seconds = transfer_seconds(500_000_000, ParallelPlan(tp=prefill), ParallelPlan(tp=decode), link)
    assert seconds == pytest.approx(senders * 0.010 + 2e-6)


def test_the_fast_link_joins_workers_of_one_node() -> None:
    node, nodes = parse_cluster("8x h200-sxm"), parse_cluster("2x8 h200-sxm via roce-400")
    assert link_between(node, 8) == node.inside
    assert link_between(nodes, 9).id == "roce-400"
    with pytest.raises(UnknownLink, match="No link between nodes"):
        link_between(replace(nodes, between=None), 9)


def test_sides_that_are_exchanged_are_refused() -> None:
    with pytest.raises(ValueError, match="one side reads"):
        WorkerPair(prefill=PAIR.decode, decode=PAIR.prefill, transfer_s=0.0)
