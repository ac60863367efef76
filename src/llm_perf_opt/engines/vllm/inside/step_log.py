"""What each step was, as columns."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.core.serving.replayed import EngineSteps
from llm_perf_opt.core.serving.step_table import RankStep
from llm_perf_opt.engines.vllm.inside.step_time import Batch


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

    def add(self, start_s: float, end_s: float, stage_s: float, batch: Batch, scheduler: Any) -> None:
        """A step from launch to its last stage; a stage is busy for `stage_s` of it."""
        steps = self.steps
        steps.start_s.append(start_s)
        steps.duration_s.append(end_s - start_s)
        steps.decoding.append(batch.decoding)
        steps.prompt_tokens.append(batch.prompt_tokens)
        running, waiting = scheduler.get_request_counts()
        steps.running.append(running)
        steps.waiting.append(waiting)
        steps.cache_use.append(scheduler.kv_cache_manager.usage)
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
