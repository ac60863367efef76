"""The queue of prompts against a simulation of the same rules, request by request."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random

import pytest

from llm_perf_opt.serving.capacity.queueing import PromptQueue, poisson_chances

REQUESTS = 60_000


def simulated(queue: PromptQueue) -> list[float]:
    """Times to first token, sorted: a request that came in a step is read in the one after the next."""
    random = Random(1)
    now, coming = 0.0, random.expovariate(queue.requests_per_s)
    ready: deque[float] = deque()  # may be read in the next step
    came: list[float] = []  # in the step before, too late for the one that was scheduled
    found: list[float] = []
    while len(found) < REQUESTS:
        read = [ready.popleft() for _ in range(min(len(ready), queue.most))]
        now += queue.reading_s[len(read)]
        found += [now - arrival for arrival in read]
        ready.extend(came)
        came = []
        while coming <= now:
            came.append(coming)
            coming += random.expovariate(queue.requests_per_s)
    return sorted(found)


@pytest.mark.parametrize(
    "queue",
    [
        PromptQueue(requests_per_s=3.0, reading_s=(0.02, 0.07, 0.12)),
        PromptQueue(requests_per_s=8.0, reading_s=(0.02, 0.07, 0.12)),
        PromptQueue(requests_per_s=13.0, reading_s=(0.02, 0.07, 0.12)),
        PromptQueue(requests_per_s=3.0, reading_s=(0.02, 0.25)),  # one prompt takes several steps
        PromptQueue(requests_per_s=20.0, reading_s=tuple(0.01 + 0.03 * count for count in range(9))),
    ],
    ids=["idle", "half", "busy", "chunks", "many at once"],
)
def test_waiting_is_that_of_a_simulation(queue: PromptQueue) -> None:
    waits, found = queue.waits(), simulated(queue)
    assert waits.at(0.5) == pytest.approx(found[REQUESTS // 2], rel=0.1)
    assert waits.at(0.99) == pytest.approx(found[int(0.99 * REQUESTS)], rel=0.25)
    assert waits.mean_s == pytest.approx(sum(found) / REQUESTS, rel=0.1)


def test_a_queue_that_grows_is_full() -> None:
    queue = PromptQueue(requests_per_s=20.0, reading_s=(0.02, 0.07, 0.12))
    assert queue.load == pytest.approx(20 * 0.06)
    assert queue.is_full
    assert not replace(queue, users=4, per_step=0.1).is_full  # they wait for their answers


def test_users_never_queue_more_than_they_are() -> None:
    queue = PromptQueue(requests_per_s=20.0, reading_s=(0.02, 0.07), users=3, per_step=2.0)
    assert queue.waits().at(1.0) <= 0.07 * (2 + 3) + 1e-9


def test_a_request_that_finds_nothing_running_is_read_at_once() -> None:
    queue = PromptQueue(requests_per_s=0.1, reading_s=(0.02, 0.07), idle=1.0, alone_s=0.05)
    assert queue.waits().at(0.99) == 0.05


@pytest.mark.parametrize("mean", [0.5, 30.0, 1024.0])  # exp(-1024) is no float
def test_chances_are_those_of_poisson(mean: float) -> None:
    chances = poisson_chances(mean, round(mean + 12 * max(1.0, mean**0.5)))
    assert sum(chances) == pytest.approx(1.0)
    assert sum(count * chance for count, chance in enumerate(chances)) == pytest.approx(mean)
