"""What is in a step, in the terms of a step table, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.engine_process.jobs import ReplayJob
from llm_perf_opt.timing.step.step_table import StepTable


class NewInStep(NamedTuple):
    """A request that is in a step for the first time; vLLM's own record of one has the same two names."""

    req_id: str
    num_computed_tokens: int  # found in the prefix cache


class Batch(NamedTuple):
    """Sequences with one token decode; those with more are chunks of (new tokens, tokens before)."""

    decoding: int
    cached_tokens: int  # before the step, of all that decode
    chunks: list[tuple[int, int]]
    drafted_tokens: int  # to be verified, in addition to one token for each sequence that decodes
    image_tokens: int
    prompt_tokens: int
    new: Sequence[Any]  # requests that are in a step for the first time, or again after they lost their cache


class StepTime(Protocol):
    """The time of steps, in order of launch."""

    host_s: float

    def seconds(self, batch: Batch) -> float:
        """How long one rank is busy with it."""


class TableTime:
    """Times from a table."""

    def __init__(self, table: StepTable, slower: float) -> None:
        self._table, self._slower = table, slower
        self.host_s = table.host_s

    def seconds(self, batch: Batch) -> float:
        """How long one rank is busy with it."""
        step_s = self._table.seconds(
            batch.decoding, batch.cached_tokens, batch.chunks, batch.image_tokens, batch.drafted_tokens
        )
        return step_s * self._slower


class RecordedTime:
    """Times that somebody measured, one for each step."""

    host_s = 0.0

    def __init__(self, step_seconds: Sequence[float]) -> None:
        self._left = iter(step_seconds)
        self._count = len(step_seconds)

    def seconds(self, batch: Batch) -> float:
        """The next of them."""
        step_s = next(self._left, None)
        if step_s is None:
            raise PerfOptError(
                f"The replay has more steps than the {self._count:,} with a given time.",
                why="the engine that was recorded had other settings or other requests",
                fix="replay the recorded requests with the recorded settings",
            )
        return step_s


def step_time_of(job: ReplayJob) -> StepTime:
    """The times that a job gives: of its table, or one for each step."""
    return RecordedTime(job.step_seconds) if job.table is None else TableTime(job.table, job.slower)
