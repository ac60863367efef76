"""How many tokens each sequence of a step gets, and what a drafter proposes: by chance, or as somebody recorded it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from llm_perf_opt.core.errors import PerfOptError

TOKEN = 7  # what every step samples; its value decides nothing
_ONE = [TOKEN]  # shared: vLLM cuts such a list only behind its first token
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
            [] if requests[name].is_prefill_chunk else [TOKEN] * (1 + self._right(len(drafts.get(name, ()))))
            for name in self._names
        ]

    def _right(self, drafted: int) -> int:
        for right in range(drafted):
            if self._random.random() >= self._acceptance:
                return right
        return drafted

    def drafted(self) -> tuple[list[str], list[list[int]]]:
        """As many as the drafter may propose, for each sequence."""
        return self._names, [[TOKEN] * self._drafts for _ in self._names]


class RecordedTokens:
    """For each step how many tokens each sequence got and how many were drafted for it next."""

    def __init__(self, steps: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        self._left = iter(steps)
        self._names: list[str] = []
        self._next: Sequence[int] = ()

    def sampled(self, scheduled: Any, requests: Any) -> list[list[int]]:
        """As in the recorded step."""
        self._names = list(scheduled.num_scheduled_tokens)
        counts, self._next = next(self._left)
        return [[TOKEN] * count for count in counts]

    def drafted(self) -> tuple[list[str], list[list[int]]]:
        """As after the recorded step."""
        return self._names, [[TOKEN] * count for count in self._next]


def chosen_sampler(speculation: Any, acceptance: float | None) -> Sampler:
    """For the speculation that vLLM was told to do, if any."""
    if speculation is None:
        return OneToken()
    if acceptance is None:
        raise PerfOptError(
            "The engine speculates, and nobody said how many drafted tokens are right.",
            why="that depends on the model's values, which a replay does not have",
            fix="say which share of drafted tokens is accepted",
        )
    return ChanceOfDrafts(speculation.num_speculative_tokens, acceptance)
