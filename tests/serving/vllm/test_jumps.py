"""Steps in which nothing happens are taken in one: as many as there are until a sequence ends, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llm_perf_opt.serving.engine_process.step_time import Batch
from llm_perf_opt.serving.requests import Request, Traffic
from llm_perf_opt.serving.vllm.inside.sampling import JumpingSampler, JumpingTime, can_jump
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface

TABLE = StepTable(
    tokens=Curve(at=(1, 1024), seconds=(1e-3, 1e-2)),
    head=Curve(at=(1, 1024), seconds=(1e-4, 1e-4)),
    decoding=Surface(across=(1, 1024), along=(1, 8192), seconds=((1e-7, 8e-4), (1e-4, 8e-1))),
    prompts=Surface(across=(1, 1024), along=(1, 8192), seconds=((1e-5, 1e-4), (1e-4, 1e-3))),
    host_s=2e-4,
)


def scheduler(*, waiting: int = 0, running: int = 2, budget: int = 1000, free_blocks: int = 1000) -> Any:
    pool = SimpleNamespace(get_num_free_blocks=lambda: free_blocks)
    return SimpleNamespace(
        max_num_scheduled_tokens=budget,
        waiting=[None] * waiting,
        running=[None] * running,
        block_size=16,
        kv_cache_manager=SimpleNamespace(block_pool=pool),
    )


def request(left: int, *, is_chunk: bool = False) -> Any:
    return SimpleNamespace(max_tokens=100, num_output_tokens=100 - left, is_prefill_chunk=is_chunk)


def drafts_after(engine: Any, requests: dict[str, Any], most: int = 500) -> int:
    sampler = JumpingSampler(engine, most)
    scheduled = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(requests, 1), scheduled_spec_decode_tokens={})
    tokens = sampler.sampled(scheduled, requests)
    assert [len(one) for one in tokens] == [0 if one.is_prefill_chunk else 1 for one in requests.values()]
    names, drafted = sampler.drafted()
    assert names == list(requests)
    assert len({len(one) for one in drafted}) == 1, "all sequences go on by the same number of steps"
    return len(drafted[0])


def test_a_jump_ends_one_step_before_the_first_sequence_does() -> None:
    assert drafts_after(scheduler(), {"a": request(40), "b": request(25)}) == 25 - 1 - 1


@pytest.mark.parametrize(
    ("engine", "requests"),
    [
        (scheduler(waiting=1), {"a": request(40), "b": request(25)}),
        (scheduler(running=3), {"a": request(40), "b": request(25)}),
        (scheduler(), {"a": request(40), "b": request(1)}),
        (scheduler(), {"a": request(40), "b": request(25, is_chunk=True)}),
    ],
    ids=["somebody waits", "somebody runs who is not in the step", "one ends now", "a prompt is computed"],
)
def test_where_something_happens_each_step_is_a_step(engine: Any, requests: dict[str, Any]) -> None:
    assert drafts_after(engine, requests) == 0


def test_a_jump_stays_within_the_limits_of_the_engine() -> None:
    requests = {"a": request(90), "b": request(90)}
    assert drafts_after(scheduler(budget=20), requests) == 9, "two sequences share the tokens of a step"
    assert drafts_after(scheduler(free_blocks=4), requests) == (4 * 16 - 2 * 16) // 2 - 1
    assert drafts_after(scheduler(), requests, most=7) == 7


def test_a_jump_takes_as_long_as_its_steps() -> None:
    sequences, cached, steps = 8, 8 * 1500, 100
    time = JumpingTime(TABLE, 1.0)
    one_by_one = sum(TABLE.seconds(sequences, cached + sequences * number) + TABLE.host_s for number in range(steps))
    batch = Batch(sequences, cached, [], sequences * (steps - 1), 0, 0, ())
    assert time.seconds(batch) + time.host_s == pytest.approx(one_by_one, rel=1e-3)


def test_only_clients_that_wait_for_an_answer_leave_time_to_jump() -> None:
    asked = tuple(Request(id=name, arrival_s=0.0, prompt_tokens=8, output_tokens=8) for name in "ab")
    late = (asked[0], Request(id="c", arrival_s=1.0, prompt_tokens=8, output_tokens=8))
    assert can_jump(Traffic(requests=asked, concurrency=1))
    assert not can_jump(Traffic(requests=asked))
    assert not can_jump(Traffic(requests=late, concurrency=1))
