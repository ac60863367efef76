"""What happens to a step that an engine launches: when it begins, when it ends, and who waits for it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from llm_perf_opt.engines.vllm.inside.clock import Clock, Due, Stages
from llm_perf_opt.engines.vllm.inside.step_log import StepLog
from llm_perf_opt.engines.vllm.inside.step_time import Batch, StepTime


class Launches(Protocol):
    """The devices behind an engine."""

    clock: Clock

    def launch(self, log: StepLog, batch: Batch, scheduler: Any, value: object) -> Future[Any]:
        """Take a step and log it; the value is there when the step has ended."""


class OwnLaunches:
    """Devices that one engine has for itself, in as many stages as its pipeline has."""

    def __init__(self, step_time: StepTime, stages: int = 1) -> None:
        self.clock = Clock()
        self._step_time, self._stages = step_time, Stages(stages)

    def launch(self, log: StepLog, batch: Batch, scheduler: Any, value: object) -> Future[Any]:
        """Into the first stage, as soon as that is free."""
        stage_s = self._step_time.seconds(batch)
        self.clock.now += self._step_time.host_s
        start_s, end_s = self._stages.launch(self.clock.now, stage_s)
        log.add(start_s, end_s, stage_s, batch, scheduler)
        return Due(self.clock, end_s, value)
