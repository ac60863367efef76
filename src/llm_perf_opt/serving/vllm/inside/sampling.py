"""How many tokens each sequence of a step gets, and what a drafter proposes: by chance, or as somebody recorded it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.engine_process.prompts import ANSWER_TOKEN
from llm_perf_opt.serving.engine_process.step_time import Batch
from llm_perf_opt.serving.requests import Traffic
from llm_perf_opt.timing.step.step_table import RankStep, StepTable

_ONE = [ANSWER_TOKEN]  # shared: vLLM cuts such a list only behind its first token
_NONE: list[int] = []


class Sampler(Protocol):
    """The tokens of steps, in order of launch."""

    def sampled(self, scheduled: Any, requests: Any) -> list[list[int]]:
        """The tokens of each sequence of a step; none for a chunk that does not end its prompt."""

    def drafted(self) -> tuple[list[str], list[list[int]]] | None:
        """What is proposed for the next step, request by request, after the step that was sampled last."""


class OneToken:
    """Without speculation a sequence gets one token."""

    def sampled(self, scheduled: Any, requests: Any) -> list[list[int]]:
        """One for each that is past its prompt."""
        return [_NONE if requests[name].is_prefill_chunk else _ONE for name in scheduled.num_scheduled_tokens]

    def drafted(self) -> None:
        """Nothing."""


class ChanceOfDrafts:
    """Each drafted token is right with the same chance; those behind the first that is wrong are dropped."""

    def __init__(self, drafts: int, acceptance: float) -> None:
        self._drafts, self._acceptance, self._random = drafts, acceptance, Random(0)
        self._names: list[str] = []

    def sampled(self, scheduled: Any, requests: Any) -> list[list[int]]:
        """One and those that were right."""
        self._names = list(scheduled.num_scheduled_tokens)
        drafts = scheduled.scheduled_spec_decode_tokens
        return [
            [] if requests[name].is_prefill_chunk else [ANSWER_TOKEN] * (1 + self._right(len(drafts.get(name, ()))))
            for name in self._names
        ]

    def _right(self, drafted: int) -> int:
        for right in range(drafted):
            if self._random.random() >= self._acceptance:
                return right
        return drafted

    def drafted(self) -> tuple[list[str], list[list[int]]]:
        """As many tokens for each sequence as the drafter may propose."""
        return self._names, [[ANSWER_TOKEN] * self._drafts for _ in self._names]


class RecordedTokens:
    """How many tokens each sequence got in each step, and how many were drafted for it next."""

    def __init__(self, steps: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        self._left = iter(steps)
        self._names: list[str] = []
        self._next: Sequence[int] = ()

    def sampled(self, scheduled: Any, requests: Any) -> list[list[int]]:
        """The tokens of the recorded step."""
        self._names = list(scheduled.num_scheduled_tokens)
        counts, self._next = next(self._left)
        return [[ANSWER_TOKEN] * count for count in counts]

    def drafted(self) -> tuple[list[str], list[list[int]]]:
        """The drafts after the recorded step."""
        return self._names, [[ANSWER_TOKEN] * count for count in self._next]


def chosen_sampler(speculation: Any, acceptance: float | None) -> Sampler:
    """The sampler for the speculation that vLLM was told to do, if any."""
    if speculation is None:
        return OneToken()
    if acceptance is None:
        raise PerfOptError(
            "The engine speculates, and nobody said how many drafted tokens are right.",
            why="that depends on the model's values, which a replay does not have",
            fix="say which share of drafted tokens is accepted",
        )
    return ChanceOfDrafts(speculation.num_speculative_tokens, acceptance)


# Many steps in one. Between two events, a request that ends or one that comes, every step is like the one before.
#
# vLLM has a way to give a sequence several tokens in a step: drafts that turn out right. So all drafts are right here,
# as many as there are steps until the next sequence ends, and the step takes as long as all of them. While a prompt is
# being computed or waits there are none, and each step is a step of its own. For clients that keep a number of
# requests in flight, since only then does nobody come in between; the engine must be told to speculate, with as many
# drafts as a jump may have.


def can_jump(traffic: Traffic) -> bool:
    """Whether requests come only when others end."""
    return traffic.concurrency is not None and not any(
        request.arrival_s or request.think_s for request in traffic.requests
    )


class JumpingSampler:
    """Drafts for the next step: as many as there are steps in which nothing happens."""

    def __init__(self, scheduler: Any, most: int) -> None:
        self._scheduler, self._most = scheduler, most
        self._budget: int = scheduler.max_num_scheduled_tokens
        self._names: list[str] = []
        self._drafts = 0

    def sampled(self, scheduled: Any, requests: Any) -> list[list[int]]:
        """One token and all drafts for each sequence that is past its prompt."""
        self._names = list(scheduled.num_scheduled_tokens)
        drafts = scheduled.scheduled_spec_decode_tokens
        chunks = [requests[name].is_prefill_chunk for name in self._names]
        counts = [
            0 if is_chunk else 1 + len(drafts.get(name, ())) for name, is_chunk in zip(self._names, chunks, strict=True)
        ]
        self._drafts = 0 if any(chunks) else self._quiet_steps(counts, requests)
        return [[ANSWER_TOKEN] * count for count in counts]

    def _quiet_steps(self, counts: list[int], requests: Any) -> int:
        """Beyond the next step; no more than the engine's limits and the free cache allow."""
        scheduler = self._scheduler
        if scheduler.waiting or len(scheduler.running) != len(counts):
            return 0
        left = min(
            requests[name].max_tokens - requests[name].num_output_tokens - count
            for name, count in zip(self._names, counts, strict=True)
        )
        manager = scheduler.kv_cache_manager
        free_tokens = manager.block_pool.get_num_free_blocks() * scheduler.block_size
        room = min(self._budget, free_tokens - scheduler.block_size * len(counts)) // len(counts)
        return int(max(0, min(left - 1, room - 1, self._most)))

    def drafted(self) -> tuple[list[str], list[list[int]]]:
        """The same number of drafts for each sequence."""
        return self._names, [[ANSWER_TOKEN] * self._drafts for _ in self._names]


class JumpingTime:
    """Times from a table; a step with drafts stands for as many steps as each sequence gets tokens."""

    def __init__(self, table: StepTable, slower: float) -> None:
        self._table, self._slower = table, slower
        self.host_s = table.host_s

    def seconds(self, batch: Batch | RankStep) -> float:
        """All of them: the cache grows by one token of each sequence in every step, and time evenly with it."""
        steps = 1 + batch.drafted_tokens // max(1, batch.decoding)
        cached = batch.cached_tokens + batch.decoding * (steps - 1) // 2
        step_s = self._table.seconds(batch.decoding, cached, batch.chunks, batch.image_tokens)
        return (step_s * steps + (steps - 1) * self.host_s) * self._slower
