"""What happens to a step that an engine launches: when it begins, when it ends, and who waits for it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from llm_perf_opt.serving.engine_process.clock import Clock, Stages, StepLog
from llm_perf_opt.serving.engine_process.step_time import Batch, StepTime
from llm_perf_opt.serving.vllm.inside.batches import load_of
from llm_perf_opt.timing.step.step_table import RankStep, StepTable


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
        log.add(start_s, end_s, stage_s, batch, load_of(scheduler))
        return Due(self.clock, end_s, value)


class Due(Future[Any]):
    """What vLLM waits for: a result that a device would have ready at `at_s`."""

    def __init__(self, clock: Clock, at_s: float, value: object) -> None:
        # no lock and no condition, which a Future makes: nobody else waits, and there is one for each step
        self._clock, self._at_s, self._value = clock, at_s, value

    def result(self, timeout: float | None = None) -> Any:
        """The value, once its time has come."""
        self._clock.wait_until(self._at_s)
        return self._value

    def done(self) -> bool:
        """Whether its time has come."""
        return self._at_s <= self._clock.now


# Engines that share the experts of one model: each has its own scheduler, and a step of one is a step of all.
#
# Every layer has an all-to-all between all ranks, so the engines launch together and end together; an engine without
# work runs an empty batch. How long a round takes is known when each of them has launched, so what an engine waits
# for has its value at once, and its time when the round is closed.


class Rounds:
    """The steps of all engines, on one clock."""

    def __init__(self, table: StepTable, slower: float) -> None:
        self.clock = Clock()
        self._table, self._slower = table, slower
        self._ends_s: list[float] = []  # of the rounds that are closed
        self._launched: list[tuple[StepLog, RankStep]] = []  # in the round that is open
        self._start_s = 0.0
        self._awaited: int | None = None

    def launch(self, log: StepLog, batch: Batch, scheduler: Any, value: object) -> Future[Any]:
        """A step of one engine in the round that is open; the first of a round opens it."""
        if not self._launched:
            self.clock.now += self._table.host_s
            self._start_s = max(self.clock.now, self._ends_s[-1] if self._ends_s else 0.0)
        step = RankStep(batch.decoding, batch.cached_tokens, batch.chunks, batch.image_tokens, batch.drafted_tokens)
        self._launched.append((log, step))
        log.add(self._start_s, self._start_s, 0.0, batch, load_of(scheduler))
        return _DueAtEnd(self, len(self._ends_s), value)

    def close(self) -> None:
        """All have launched: the round has its length, and those who wait for one have waited."""
        if self._launched:
            duration_s = self._table.seconds_together([step for _, step in self._launched]) * self._slower
            for log, _ in self._launched:
                log.lengthen(duration_s)
            self._launched = []
            self._ends_s.append(self._start_s + duration_s)
        if self._awaited is not None:
            self.clock.wait_until(self._ends_s[self._awaited])
            self._awaited = None

    def wait_for(self, number: int) -> None:
        """Somebody needs the result of that round."""
        self._awaited = number if self._awaited is None else max(number, self._awaited)

    def has_ended(self, number: int) -> bool:
        """Whether the time of that round has come."""
        return number < len(self._ends_s) and self._ends_s[number] <= self.clock.now


class _DueAtEnd(Future[Any]):
    """What an engine waits for: a result that is there when its round has ended."""

    def __init__(self, rounds: Rounds, number: int, value: object) -> None:
        self._rounds, self._number, self._value = rounds, number, value

    def result(self, timeout: float | None = None) -> Any:
        """The value; the clock moves when the round is closed."""
        self._rounds.wait_for(self._number)
        return self._value

    def done(self) -> bool:
        """Whether its time has come."""
        return self._rounds.has_ended(self._number)
