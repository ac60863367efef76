"""What is in a step, in the terms of a step table, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.timing.step.step_table import StepTable


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


def batch_of(scheduled: Any, requests: Any) -> Batch:
    """The parts of a step. Most steps only decode: they need no look at single sequences."""
    cached, new = scheduled.scheduled_cached_reqs, scheduled.scheduled_new_reqs
    tokens = scheduled.num_scheduled_tokens
    images = _image_tokens(scheduled, requests) if scheduled.scheduled_encoder_inputs else 0
    if scheduled.total_num_scheduled_tokens == len(tokens) and not new:
        return Batch(len(tokens), sum(cached.num_computed_tokens), [], 0, images, 0, new)
    drafts = scheduled.scheduled_spec_decode_tokens
    decoding = context = drafted = prompt = 0
    chunks = []
    before = list(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    for name, computed in before + [(request.req_id, request.num_computed_tokens) for request in new]:
        count = tokens[name]
        if name in drafts:
            drafted += count - 1
        elif count > 1:
            chunks.append((count, computed))
            prompt += count
            continue
        decoding += 1
        context += computed
    return Batch(decoding, context, chunks, drafted, images, prompt, new)


def _image_tokens(scheduled: Any, requests: Any) -> int:
    return sum(
        requests[name].get_num_encoder_embeds(at)
        for name, images in scheduled.scheduled_encoder_inputs.items()
        for at in images
    )
