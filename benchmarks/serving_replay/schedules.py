"""One schedule for many records: where clients keep a number of requests in flight, time decides nothing.

A request comes when another one ends, so which sequences a step computes follows from the load, the cache and the
budget of tokens alone. Records with the same load share a schedule, whatever their model, device and plan: vLLM's
scheduler runs once, and each record's step table says how long its steps take.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import msgspec
import numpy as np

from llm_perf_opt.core.serving.engine_settings import EngineSettings
from llm_perf_opt.core.serving.requests import Replayed, Traffic
from llm_perf_opt.core.serving.step_table import RankStep, StepTable
from llm_perf_opt.engines.vllm.inside.sampling import JumpingTime
from llm_perf_opt.engines.vllm.jobs import ReplayJob, read_message, write_message
from llm_perf_opt.engines.vllm.process import ReplayProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Every step, and for each request after how many steps it came, was scheduled, had its first and last token."""

    batches: list[RankStep]
    came: list[int]
    scheduled: list[int]
    first: list[int]
    last: list[int]
    output_tokens: list[int]
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """Seconds of each request, in order of arrival; `queued` until it is part of a step."""

    queued: list[float]
    ttft: list[float]
    tpot: list[float]
    e2e: list[float]


class Schedules:
    """Schedules by their loads, kept as files: a large one takes minutes."""

    def __init__(self, process: ReplayProcess, folder: Path) -> None:
        self._process, self._folder = process, folder
        folder.mkdir(parents=True, exist_ok=True)

    def of(self, settings: EngineSettings, traffic: Traffic, table: StepTable) -> Schedule:
        """The schedule of a load; `table` moves the clock while it is made, and decides nothing."""
        load = [(request.prompt_tokens, request.output_tokens) for request in traffic.requests]
        key = msgspec.json.encode((settings, traffic.concurrency, load))
        file = self._folder / f"{hashlib.sha256(key).hexdigest()[:24]}.msgpack"
        if file.exists():
            return read_message(file, Schedule)
        job = ReplayJob(settings=settings, traffic=traffic, table=table, has_jumps=True, keeps_batches=True)
        found = schedule_of(self._process.replay(job))
        write_message(file, found)
        return found


def schedule_of(done: Replayed) -> Schedule:
    """A replay without its times."""
    ends = np.array([*done.steps.start_s, done.steps.start_s[-1] + done.steps.duration_s[-1]])

    def after(times: Sequence[float]) -> list[int]:
        """How many steps have ended by each time; a step ends where the next one starts."""
        above = np.clip(np.searchsorted(ends, times), 1, len(ends) - 1)
        is_below = np.abs(ends[above - 1] - times) <= np.abs(ends[above] - times)
        return [int(at) for at in above - is_below]

    found = done.requests
    return Schedule(
        batches=done.batches,
        came=after(found.arrival_s),
        scheduled=after(found.scheduled_s),
        first=after(found.first_token_s),
        last=after(found.last_token_s),
        output_tokens=found.output_tokens,
        preemptions=sum(found.preemptions),
    )


def times_of(schedule: Schedule, table: StepTable, groups: int = 1) -> RequestTimes:
    """How long its requests take where steps take as long as the table says.

    Of `groups` of ranks that step together, the schedule is that of one and the table that of all: they do the same.
    """
    time = JumpingTime(table, 1.0)
    ends = [0.0, *accumulate(time.seconds(_of_all(batch, groups)) for batch in schedule.batches)]
    rows = list(zip(schedule.came, schedule.first, schedule.last, schedule.output_tokens, strict=True))
    return RequestTimes(
        queued=[ends[begun] - ends[came] for came, begun in zip(schedule.came, schedule.scheduled, strict=True)],
        ttft=[ends[first] - ends[came] for came, first, _, _ in rows],
        tpot=[(ends[last] - ends[first]) / (tokens - 1) for _, first, last, tokens in rows],
        e2e=[ends[last] - ends[came] for came, _, last, _ in rows],
    )


def _of_all(batch: RankStep, groups: int) -> RankStep:
    if groups == 1:
        return batch
    return RankStep(
        decoding=groups * batch.decoding,
        cached_tokens=groups * batch.cached_tokens,
        chunks=groups * list(batch.chunks),
        drafted_tokens=groups * batch.drafted_tokens,
    )
