"""What a replay of requests through an engine leaves: every request with its times, and every step, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_perf_opt.core.serving.step_table import RankStep
from llm_perf_opt.core.target import Json


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
