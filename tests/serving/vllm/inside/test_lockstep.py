"""Engines that share experts: one clock, rounds as long as the slowest, tokens when all are done."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from llm_perf_opt.serving.engine_process.clock import StepLog
from llm_perf_opt.serving.engine_process.step_time import Batch
from llm_perf_opt.serving.requests import Request, Traffic
from llm_perf_opt.serving.vllm.inside.launches import Rounds
from llm_perf_opt.serving.vllm.inside.run import run
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface

NOTHING = Surface(across=(1, 2), along=(1, 2), seconds=((0, 0), (0, 0)))
BY_TOKENS = StepTable(  # one second for each token of the two groups together
    tokens=Curve(at=(1, 1024), seconds=(1.0, 1024.0)),
    head=Curve(at=(1, 2), seconds=(0.0, 0.0)),
    decoding=NOTHING,
    prompts=NOTHING,
    groups=2,
)


class FakeCore:
    """One token for each of its requests in every step; with `depth` 2 it launches one step ahead, as vLLM does."""

    def __init__(self, rounds: Rounds, depth: int = 1) -> None:
        self.rounds, self.depth = rounds, depth
        self.log = StepLog()
        self.model_executor = SimpleNamespace(clock=rounds.clock, log=self.log)
        self.known: list[Any] = []
        self.batch_queue: deque[Any] = deque()
        self.scheduler = SimpleNamespace(
            has_requests=lambda: bool(self.known),
            get_request_counts=lambda: (len(self.known), 0),
            kv_cache_manager=SimpleNamespace(usage=0.0),
        )

    def preprocess_add_request(self, made: Any) -> tuple[Any, int]:
        return made, 0

    def add_request(self, made: Any, wave: int) -> None:
        self.known.append(made)

    def step_fn(self) -> tuple[dict[int, Any], bool]:
        has_run = False
        if len(self.batch_queue) < self.depth and (running := [one for one in self.known if one.launched < one.wanted]):
            new = [SimpleNamespace(req_id=one.name, num_computed_tokens=0) for one in running if not one.launched]
            for one in running:
                one.launched += 1
            batch = Batch(len(running), len(running), [], 0, 0, 0, new)
            self.batch_queue.append(self.rounds.launch(self.log, batch, self.scheduler, running))
            has_run = True
            if len(self.batch_queue) < self.depth and not self.batch_queue[0].done():
                return {}, True
        return {0: SimpleNamespace(outputs=self._ended(self.batch_queue.popleft().result()))}, has_run

    def _ended(self, running: list[Any]) -> list[Any]:
        outputs = []
        for one in running:
            one.num_output_tokens += 1
            has_ended = one.num_output_tokens == one.wanted
            outputs.append(SimpleNamespace(request_id=one.name, finish_reason="length" if has_ended else None))
            if has_ended:
                self.known.remove(one)
        return outputs

    def post_step(self, has_run: bool) -> None:
        pass


def made(request: Request, arrival_s: float) -> Any:
    return SimpleNamespace(
        name=request.id, wanted=request.output_tokens, num_output_tokens=0, num_preemptions=0, launched=0
    )


def served(arrivals: list[tuple[float, int]], depth: int = 1, slower: float = 1.0) -> tuple[list[Any], list[FakeCore]]:
    """Requests with even numbers to the first of two engines."""
    rounds = Rounds(BY_TOKENS, slower)
    cores = [FakeCore(rounds, depth) for _ in range(2)]
    requests = tuple(
        Request(id=f"r{at}", arrival_s=arrival_s, prompt_tokens=1, output_tokens=tokens)
        for at, (arrival_s, tokens) in enumerate(arrivals)
    )
    return run(cores, Traffic(requests=requests), made, lambda one: int(one.name[1:]) % 2, rounds), cores


def test_a_round_is_as_long_as_its_longest_batch_on_every_group() -> None:
    """Two requests in the first engine and one in the second: 2 groups x 2 tokens, 4 s, for all three."""
    (one, other), cores = served([(0.0, 1), (0.0, 2), (0.0, 1)])
    assert one.first_token_s == [4.0, 4.0]
    assert other.first_token_s == [4.0]
    assert other.last_token_s == [4.0 + 2.0], "then it is alone, and the other runs an empty batch"
    assert cores[0].log.steps.duration_s == [4.0]
    assert cores[1].log.steps.duration_s == [4.0, 2.0]
    assert cores[1].log.busy_s == 6.0


def test_who_comes_during_a_round_waits_for_its_end() -> None:
    """The first runs 2 s a step from 0; the second comes to the idle engine at 0.5, and begins with the next round."""
    (one, other), _ = served([(0.0, 3), (0.5, 1)])
    assert other.scheduled_s == [2.0]
    assert other.first_token_s == [4.0]
    assert one.last_token_s == [6.0]


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_a_step_ahead_changes_no_end(tokens: int) -> None:
    (ahead, _), _ = served([(0.0, tokens)], depth=2)
    (plain, _), _ = served([(0.0, tokens)])
    assert ahead.last_token_s == plain.last_token_s == [2.0 * tokens]


def test_all_steps_may_be_slower() -> None:
    (one, _), _ = served([(0.0, 2)], slower=1.5)
    assert one.last_token_s == [6.0]
