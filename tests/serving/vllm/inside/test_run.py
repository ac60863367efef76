"""The loop around vLLM's engine core, with a core that takes one step of 1 s for each token of each request."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.engine_process.clock import Clock
from llm_perf_opt.serving.requests import Request, Traffic
from llm_perf_opt.serving.vllm.inside.run import run

STEP_S = 1.0


class FakeCore:
    """Every step gives one token to each of at most `places` requests, in order of arrival."""

    batch_queue: deque[Any] | None = None

    def __init__(self, places: int = 8) -> None:
        self.clock = Clock()
        log = SimpleNamespace(scheduled_s={}, cached_tokens={})
        self.model_executor = SimpleNamespace(clock=self.clock, log=log)
        self.scheduler = SimpleNamespace(has_requests=lambda: bool(self.known))
        self.known: list[Any] = []
        self.places = places
        self.largest = 0

    def preprocess_add_request(self, made: Any) -> tuple[Any, int]:
        return made, 0

    def add_request(self, made: Any, wave: int) -> None:
        self.known.append(made)

    def step_fn(self) -> tuple[dict[int, Any], bool]:
        running = self.known[: self.places]
        if not running:
            return {}, False
        self.largest = max(self.largest, len(running))
        log = self.model_executor.log
        for one in running:
            log.scheduled_s.setdefault(one.name, self.clock.now)
            log.cached_tokens.setdefault(one.name, 0)
        self.clock.now += STEP_S
        outputs = []
        for one in running:
            one.num_output_tokens += 1
            has_ended = one.num_output_tokens == one.wanted
            outputs.append(SimpleNamespace(request_id=one.name, finish_reason="length" if has_ended else None))
            if has_ended:
                self.known.remove(one)
        return {0: SimpleNamespace(outputs=outputs)}, True

    def post_step(self, has_run: bool) -> None:
        pass


def made(request: Request, arrival_s: float) -> Any:
    return SimpleNamespace(name=request.id, wanted=request.output_tokens, num_output_tokens=0, num_preemptions=0)


def traffic(*arrivals_and_answers: tuple[float, int], concurrency: int | None = None) -> Traffic:
    requests = tuple(
        Request(id=f"r{at}", arrival_s=arrival_s, prompt_tokens=1, output_tokens=tokens)
        for at, (arrival_s, tokens) in enumerate(arrivals_and_answers)
    )
    return Traffic(requests=requests, concurrency=concurrency)


def test_a_request_waits_for_the_end_of_the_step_that_runs_when_it_comes() -> None:
    """The first runs from 0 to 3; the second comes at 0.5, in the middle of a step, and is in the next one."""
    (found,) = run([FakeCore()], traffic((0.0, 3), (0.5, 2)), made)
    assert found.arrival_s == [0.0, 0.5]
    assert found.scheduled_s == [0.0, 1.0]
    assert found.first_token_s == [1.0, 2.0]
    assert found.last_token_s == [3.0, 3.0]
    assert found.output_tokens == [3, 2]


def test_an_idle_engine_waits_for_the_next_request() -> None:
    (found,) = run([FakeCore()], traffic((0.0, 1), (10.0, 1)), made)
    assert found.scheduled_s == [0.0, 10.0]
    assert found.last_token_s == [1.0, 11.0]


def test_an_arrival_is_its_own_even_after_another_has_ended() -> None:
    """The first ends at 2, the second came at 1.5: it came then, and not when there was an end."""
    (found,) = run([FakeCore(places=1)], traffic((0.0, 2), (1.5, 1)), made)
    assert found.arrival_s == [0.0, 1.5]
    assert found.scheduled_s == [0.0, 2.0]


def test_a_client_keeps_so_many_in_flight_and_sends_another_when_one_has_ended() -> None:
    core = FakeCore()
    (found,) = run([core], traffic((0.0, 2), (0.0, 3), (0.0, 1), concurrency=2), made)
    assert found.arrival_s == [0.0, 0.0, 2.0]
    assert found.last_token_s == [2.0, 3.0, 3.0]
    assert core.largest == 2


def test_replicas_have_clocks_of_their_own_and_get_requests_at_their_time() -> None:
    """Two replicas in turn: the second is still idle when its request comes at 0.5, and begins at once."""
    turns = iter([0, 1, 0])
    cores = [FakeCore(), FakeCore()]
    first, second = run(cores, traffic((0.0, 3), (0.5, 1), (1.0, 1)), made, lambda _: next(turns))
    assert first.ids == ["r0", "r2"]
    assert first.scheduled_s == [0.0, 1.0]
    assert (second.ids, second.scheduled_s, second.last_token_s) == (["r1"], [0.5], [1.5])


def test_a_place_that_one_replica_frees_is_taken_at_that_time_by_another() -> None:
    """One in flight, two replicas: the second request comes when the first has ended in the other one, at 2."""
    turns = iter([0, 1])
    first, second = run(
        [FakeCore(), FakeCore()], traffic((0.0, 2), (0.0, 1), concurrency=1), made, lambda _: next(turns)
    )
    assert first.last_token_s == [2.0]
    assert (second.arrival_s, second.scheduled_s, second.last_token_s) == ([2.0], [2.0], [3.0])


def test_a_request_that_is_never_scheduled_ends_the_replay_with_its_name() -> None:
    with pytest.raises(PerfOptError, match="never schedules request 'r0'"):
        run([FakeCore(places=0)], traffic((0.0, 1), (5.0, 1)), made)


def test_a_turn_comes_when_the_one_before_has_ended_and_its_user_has_thought() -> None:
    first = Request(id="a", arrival_s=0.0, prompt_tokens=1, output_tokens=2, session="a")
    second = Request(id="b", arrival_s=0.0, prompt_tokens=1, output_tokens=1, session="a", after="a", think_s=2.5)
    (found,) = run([FakeCore()], Traffic(requests=(first, second)), made)
    assert (found.arrival_s, found.last_token_s) == ([0.0, 4.5], [2.0, 5.5])


def test_a_session_keeps_its_place_while_its_user_thinks() -> None:
    """One place: the second session comes when the last turn of the first has ended, at 4, and not at 1."""
    turns = [
        Request(id="a", arrival_s=0.0, prompt_tokens=1, output_tokens=1, session="a"),
        Request(id="a.1", arrival_s=0.0, prompt_tokens=1, output_tokens=1, session="a", after="a", think_s=2.0),
        Request(id="b", arrival_s=0.0, prompt_tokens=1, output_tokens=1, session="b"),
    ]
    (found,) = run([FakeCore()], Traffic(requests=tuple(turns), concurrency=1), made)
    assert (found.ids, found.arrival_s) == (["a", "a.1", "b"], [0.0, 3.0, 4.0])
