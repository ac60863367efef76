"""The virtual clock of a replay: when steps begin and end on devices that are not there, and the log of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from llm_perf_opt.serving.engine_process.step_time import Batch
from llm_perf_opt.serving.requests import EngineSteps
from llm_perf_opt.timing.step.step_table import RankStep


class Clock:
    """Seconds since the replay began."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def wait_until(self, time_s: float) -> None:
        """Nothing happens before that time; a time that is past is no wait."""
        if time_s > self.now:
            self.now = time_s


class Stages:
    """The stages of a pipeline, one or more. A step visits each in turn, and waits where one is still busy."""

    __slots__ = ("_free_at_s",)

    def __init__(self, count: int) -> None:
        self._free_at_s = [0.0] * count

    def launch(self, now_s: float, stage_s: float) -> tuple[float, float]:
        """When a step begins that is launched now and takes `stage_s` in each stage, and when it has left the last."""
        start_s = end_s = max(now_s, self._free_at_s[0])
        for stage, free_s in enumerate(self._free_at_s):
            end_s = max(end_s, free_s) + stage_s
            self._free_at_s[stage] = end_s
        return start_s, end_s


class EngineLoad(NamedTuple):
    """How full an engine is when it launches a step."""

    running: int
    waiting: int
    cache_use: float  # share of the cache


class StepLog:
    """Grows by one entry per step; knows when each request was first part of one."""

    def __init__(self, *, keeps_batches: bool = False) -> None:
        self._keeps_batches = keeps_batches
        self.batches: list[RankStep] = []
        self.steps = EngineSteps(
            start_s=[], duration_s=[], decoding=[], prompt_tokens=[], running=[], waiting=[], cache_use=[]
        )
        self.busy_s = 0.0
        self.scheduled_s: dict[str, float] = {}
        self.cached_tokens: dict[str, int] = {}

    def add(self, start_s: float, end_s: float, stage_s: float, batch: Batch, load: EngineLoad) -> None:
        """A step from launch to its last stage; a stage is busy for `stage_s` of it."""
        steps = self.steps
        steps.start_s.append(start_s)
        steps.duration_s.append(end_s - start_s)
        steps.decoding.append(batch.decoding)
        steps.prompt_tokens.append(batch.prompt_tokens)
        steps.running.append(load.running)
        steps.waiting.append(load.waiting)
        steps.cache_use.append(load.cache_use)
        self.busy_s += stage_s
        if self._keeps_batches:
            self.batches.append(
                RankStep(batch.decoding, batch.cached_tokens, batch.chunks, batch.image_tokens, batch.drafted_tokens)
            )
        for new in batch.new:
            if new.req_id not in self.scheduled_s:  # one that was preempted and came back has its first time already
                self.scheduled_s[new.req_id] = start_s
                self.cached_tokens[new.req_id] = new.num_computed_tokens

    def lengthen(self, seconds: float) -> None:
        """The step that was added last takes so much longer."""
        self.steps.duration_s[-1] += seconds
        self.busy_s += seconds


@contextmanager
def no_collector() -> Iterator[None]:
    """No collection of cycles, which takes a fifth of a replay's time: requests go by the count of their references."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
