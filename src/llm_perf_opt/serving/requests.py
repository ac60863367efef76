"""Requests that a server must answer, and how they come: at times of their own, or one when another has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.target import Json
from llm_perf_opt.timing.step.step_table import RankStep


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpan:
    """An image inside a prompt: where its tokens begin, how many there are; equal names are equal images."""

    offset: int
    tokens: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. Those with the same `prefix` begin with the same `prefix_tokens` tokens; all else is their own.

    `blocks` are names of the prompt's first stretches of `block_tokens` tokens each, in place of a prefix: a stretch
    of one name has the same tokens in every request. Requests that share some of each other are told by them.

    A turn of a `session` begins with the prompt and the answer of the turn `after` which it comes, when its user has
    thought for `think_s`; its own `arrival_s` is the session's.
    """

    id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: str | None = None
    prefix_tokens: int = 0
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0
    images: tuple[ImageSpan, ...] = ()
    session: str | None = None
    after: str | None = None
    think_s: float = 0.0
    priority: int = 0  # lower goes first, where the engine is told to mind it


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests in the order in which they come.

    With `concurrency` a client keeps this many in flight, requests or sessions: each comes at its own time or when
    there is room, whichever is later. `origin` says in words where they are from: a distribution with its seed, or a
    file.
    """

    requests: tuple[Request, ...]
    concurrency: int | None = None
    origin: str = ""

    def __post_init__(self) -> None:
        times = [request.arrival_s for request in self.requests]
        if not times or times != sorted(times) or times[0] < 0:
            raise UsageError(
                "These requests are not in order of arrival." if times else "There are no requests.",
                why="a replay takes them one after another",
                fix="sort them by arrival, from 0 on" if times else "give at least one request",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequests:
    """One entry for each request, in order of arrival. Times are seconds of the virtual clock."""

    ids: list[str]
    arrival_s: list[float]
    scheduled_s: list[float]  # first part of it in a step
    first_token_s: list[float]
    last_token_s: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]
    cached_tokens: list[int]  # of the prompt, found in the prefix cache
    preemptions: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSteps:
    """One entry for each step, in order of launch."""

    start_s: list[float]
    duration_s: list[float]
    decoding: list[int]  # sequences that get one token
    prompt_tokens: list[int]  # new tokens of prompts in this step
    running: list[int]
    waiting: list[int]
    cache_use: list[float]  # share of the blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A replay of one replica. `engine` is what the engine decided by itself: versions, limits, blocks, scheduler."""

    requests: AnsweredRequests
    steps: EngineSteps
    seconds: float  # until the last request ended
    busy_s: float  # of which a step was running
    engine: Mapping[str, Json] = field(default_factory=dict)
    cpu_s: float = 0.0  # that the replay took
    batches: list[RankStep] = field(default_factory=list)  # of each step, where the job asks for them
