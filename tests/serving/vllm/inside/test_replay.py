"""Replays in vLLM's own Python: engines that are kept, replicas, images, limits. Skipped where there is no vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.vllm_schedules.cases import FOLDER, H100
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.serving.engine_process.jobs import ReplayJob
from llm_perf_opt.serving.engine_process.process import ReplayProcess
from llm_perf_opt.serving.engine_settings import EngineSettings
from llm_perf_opt.serving.read_traffic import as_traffic
from llm_perf_opt.serving.requests import ImageSpan, Replayed, Request, Traffic
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface

pytestmark = pytest.mark.slow
FREE = Surface(across=(1.0, 2.0), along=(1.0, 2.0), seconds=((0.0, 0.0), (0.0, 0.0)))
NONE = Curve(at=(1.0,), seconds=(0.0,))
TABLE = StepTable(  # every step takes 10 ms and 1 ms of the host
    tokens=Curve(at=(1.0, 1e5), seconds=(0.01, 0.01)), head=NONE, decoding=FREE, prompts=FREE, host_s=0.001
)
SETTINGS = EngineSettings(
    model=str(FOLDER / "models" / "tiny"), device=H100, cache_blocks=400, max_model_tokens=2048, dtype="bfloat16"
)


def job(*requests: Request, **more: object) -> ReplayJob:
    traffic = Traffic(requests=requests or (request(0),))
    return replace(ReplayJob(settings=SETTINGS, traffic=traffic, table=TABLE), **more)  # type: ignore[arg-type]


def request(at: int, arrival_s: float = 0.0, prompt_tokens: int = 100, output_tokens: int = 20) -> Request:
    return Request(id=f"r{at}", arrival_s=arrival_s, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


@pytest.fixture(scope="module")
def process() -> Iterator[ReplayProcess]:
    with ReplayProcess() as opened:
        try:
            opened.replay(job(request(0)))
        except PerfOptError as error:
            if "There is no vLLM" not in error.what:
                raise
            pytest.skip(f"{error.what} {error.fix}")
        yield opened


def test_a_request_alone_takes_a_step_for_each_token(process: ReplayProcess) -> None:
    """Without batches in flight: 20 steps of 10 ms, each after 1 ms of the host."""
    sync = replace(SETTINGS, more={"async_scheduling": False})
    found = process.replay(job(request(0, arrival_s=5.0), settings=sync))
    assert found.requests.first_token_s == [pytest.approx(5.011)]
    assert found.requests.last_token_s == [pytest.approx(5.220)]
    assert found.steps.prompt_tokens == [100] + [0] * 19
    assert found.busy_s == pytest.approx(0.2)


def test_two_batches_in_flight_hide_the_time_of_the_host(process: ReplayProcess) -> None:
    found = process.replay(job(request(0)))
    assert found.engine["is_async"]
    assert found.requests.last_token_s == [pytest.approx(0.201)]


def test_an_engine_that_is_kept_gives_what_a_new_one_gives(process: ReplayProcess) -> None:
    many = job(*(request(at, at / 100, 50 + 37 * at % 900) for at in range(40)))
    first, again = process.replay(many), process.replay(many)
    with ReplayProcess() as other:
        new = other.replay(many)
    assert first.requests == again.requests == new.requests
    assert first.steps == again.steps == new.steps


def test_a_factor_makes_every_step_longer(process: ReplayProcess) -> None:
    assert process.replay(job(request(0), slower=2.0)).busy_s == pytest.approx(0.4)


def test_jumps_over_quiet_steps_take_as_long_as_the_steps(process: ReplayProcess) -> None:
    """Four in flight, answers of 20 to 25 tokens: far fewer steps, and every request ends at the same time."""
    requests = tuple(request(at, output_tokens=20 + at) for at in range(6))
    traffic = Traffic(requests=requests, concurrency=4)
    drafts = {"method": "ngram", "num_speculative_tokens": 16, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    plain = process.replay(job(traffic=traffic, settings=replace(SETTINGS, more={"async_scheduling": False})))
    quick = process.replay(
        job(
            traffic=traffic,
            settings=replace(SETTINGS, more={"async_scheduling": False, "speculative_config": drafts}),
            has_jumps=True,
        )
    )
    assert len(quick.steps.start_s) < len(plain.steps.start_s) / 2
    assert quick.requests.last_token_s == pytest.approx(plain.requests.last_token_s)


def test_clients_that_keep_a_number_in_flight_have_one_schedule_at_any_pace(process: ReplayProcess) -> None:
    """In a cache that is too small for all, each step computes the same where prompts take ten times as long."""
    requests = tuple(request(at, prompt_tokens=300 + 50 * at, output_tokens=200 + 9 * at) for at in range(20))
    slow = replace(TABLE, tokens=Curve(at=(1.0, 1e3), seconds=(0.01, 0.1)))
    alone = replace(SETTINGS, cache_blocks=150, more={"async_scheduling": False})
    found, other = (
        process.replay(
            job(traffic=Traffic(requests=requests, concurrency=8), settings=alone, table=table, keeps_batches=True)
        )
        for table in (TABLE, slow)
    )
    assert sum(found.requests.preemptions) > 0
    assert len(found.batches) == len(found.steps.start_s)
    assert found.batches == other.batches
    assert found.requests.last_token_s != other.requests.last_token_s
    assert not process.replay(job(request(0))).batches, "kept only for those who ask"


def test_prefixes_that_are_shared_are_found_in_the_cache(process: ReplayProcess) -> None:
    shared = [replace(request(at, float(at)), prefix="p", prefix_tokens=64) for at in range(2)]
    own = request(2, 2.0)
    assert process.replay(job(*shared, own)).requests.cached_tokens == [0, 64, 0]


def test_replicas_share_requests_that_come_at_once(process: ReplayProcess) -> None:
    found = process.replay_replicas(job(*(request(at) for at in range(10)), replicas=2))
    assert [len(one.requests.ids) for one in found] == [5, 5]


def test_replicas_that_share_experts_step_together(process: ReplayProcess) -> None:
    """One has a request of 20 tokens, the other one of 5 that comes later: steps of both begin at the same times."""
    late = request(1, arrival_s=0.05, output_tokens=5)
    shared = job(request(0), late, table=replace(TABLE, groups=2), replicas=2, shares_experts=True)
    one, other = process.replay_replicas(shared)
    assert [len(found.requests.ids) for found in (one, other)] == [1, 1]
    assert set(other.steps.start_s) <= set(one.steps.start_s)
    assert len(other.steps.start_s) == 5
    alone = process.replay(job(request(0)))
    assert one.requests.last_token_s == pytest.approx(alone.requests.last_token_s), "no step is longer by the other"
    assert other.requests.scheduled_s[0] >= 0.05


def test_replicas_share_experts_only_by_a_table_of_theirs(process: ReplayProcess) -> None:
    with pytest.raises(UsageError, match="cannot share experts"):
        process.replay_replicas(job(request(0), replicas=2, shares_experts=True))


def test_images_need_a_model_that_takes_them(process: ReplayProcess) -> None:
    image = replace(request(0), images=(ImageSpan(offset=1, tokens=64, name="i"),))
    with pytest.raises(UsageError, match="takes none"):
        process.replay(job(image))


def test_a_prompt_that_is_too_long_is_refused_by_name(process: ReplayProcess) -> None:
    with pytest.raises(UsageError, match="'r7'"):
        process.replay(job(request(7, prompt_tokens=2048)))


def test_what_vllm_refuses_is_told_in_its_words(process: ReplayProcess) -> None:
    with pytest.raises(PerfOptError, match="could not do this job"):
        process.replay(job(request(0), settings=replace(SETTINGS, more={"scheduling_policy": "none such"})))


ROOMY = replace(SETTINGS, cache_blocks=4000)
CROWDED = as_traffic("6 at once sessions:turns=4,grow=100,think=1s prompt=600 output=60 requests=48")


def offloaded(gib: float, tokens_per_s: float, **more: object) -> ReplayJob:
    small = replace(SETTINGS, cache_blocks=160, more={"kv_offloading_size": gib})
    return job(settings=small, traffic=CROWDED, host_tokens_per_s=tokens_per_s, **more)


def first_tokens_s(found: Replayed) -> float:
    pairs = zip(found.requests.first_token_s, found.requests.arrival_s, strict=True)
    return sum(first - arrival for first, arrival in pairs)


def test_a_turn_computes_only_what_is_new_while_the_cache_holds_the_rest(process: ReplayProcess) -> None:
    """Before turn 2 are 100 + 30 tokens, of which a step has read all but the last: 8 blocks of 16."""
    turns = as_traffic("1 at once sessions:turns=3,grow=20 prompt=100 output=30 requests=6")
    found = process.replay(job(settings=ROOMY, traffic=turns))
    assert found.requests.prompt_tokens == [100, 150, 200] * 2
    assert found.requests.cached_tokens == [0, 128, 176] * 2
    assert [tokens for tokens in found.steps.prompt_tokens if tokens] == [100, 22, 24] * 2


def test_a_cache_that_is_too_small_computes_everything_again(process: ReplayProcess) -> None:
    """Two users, and room for one and 16 blocks: that is the most that is left when the other was there in between."""
    turns = as_traffic("2 at once sessions:turns=4,grow=20,think=2s prompt=1800 output=30 requests=8")
    found = process.replay(job(settings=replace(SETTINGS, cache_blocks=130), traffic=turns))
    users = [name.partition(".")[0] for name in found.requests.ids]
    came = list(zip(users, users[1:], found.requests.cached_tokens[1:], strict=False))
    dropped = [cached for before, user, cached in came if user != before]
    assert len(dropped) > 2 and max(dropped) <= 16 * 16
    assert min(cached for before, user, cached in came if user == before) > 1800


def test_host_memory_keeps_what_leaves_the_cache(process: ReplayProcess) -> None:
    """With an endless link nearly all that a large cache finds, at no later first token than computing it takes."""
    small = replace(SETTINGS, cache_blocks=160)
    none, large = (process.replay(job(settings=room, traffic=CROWDED)) for room in (small, ROOMY))
    endless = process.replay(offloaded(1.0, 1e12))
    found = [sum(replayed.requests.cached_tokens) for replayed in (none, endless, large)]
    assert found[0] < 0.3 * found[2] < 0.7 * found[1] <= 0.7 * found[2]


def test_a_slow_link_loads_as_much_and_takes_longer(process: ReplayProcess) -> None:
    fast, slow = (process.replay(offloaded(1.0, speed)) for speed in (1e12, 2e3))
    assert sum(slow.requests.cached_tokens) == pytest.approx(sum(fast.requests.cached_tokens), rel=0.1)
    assert first_tokens_s(slow) > 2 * first_tokens_s(fast)
    again = process.replay(offloaded(1.0, 2e3))
    assert again.requests == slow.requests, "an engine that is kept begins with empty host memory"


def test_host_memory_without_room_is_none(process: ReplayProcess) -> None:
    none = process.replay(job(settings=replace(SETTINGS, cache_blocks=160), traffic=CROWDED))
    assert process.replay(offloaded(0.0001, 1e12)).requests.cached_tokens == none.requests.cached_tokens


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    users=st.integers(1, 8),
    turns=st.integers(1, 5),
    think_s=st.sampled_from((0, 0.3, 2)),
    speed=st.none() | st.sampled_from((5e3, 1e6)),
)
def test_littles_law_holds_in_every_replay_of_sessions(
    process: ReplayProcess, users: int, turns: int, think_s: float, speed: float | None
) -> None:
    """Requests inside, swept over time, are requests a second times the mean time of one; users never send two."""
    text = f"{users} at once sessions:turns={turns},grow=uniform(1,200),think={think_s}s prompt=300 output=30"
    traffic = as_traffic(f"{text} requests={4 * users}")
    more = {} if speed is None else {"kv_offloading_size": 1.0}
    found = process.replay(
        job(settings=replace(SETTINGS, cache_blocks=130, more=more), traffic=traffic, host_tokens_per_s=speed)
    )
    answered = found.requests
    events = sorted(
        [(at, 1) for at in answered.arrival_s] + [(at, -1) for at in answered.last_token_s],
    )
    inside, area, before = 0, 0.0, 0.0
    for at, change in events:
        area += inside * (at - before)
        inside, before = inside + change, at
        assert inside <= users
    spent = sum(last - arrival for last, arrival in zip(answered.last_token_s, answered.arrival_s, strict=True))
    assert area == pytest.approx(spent)
    assert len(answered.ids) == 4 * users and answered.output_tokens == [30] * (4 * users)
