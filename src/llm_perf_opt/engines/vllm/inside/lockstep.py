"""Engines that share the experts of one model: each has its own scheduler, and a step of one is a step of all.

Every layer exchanges rows between all ranks, so the engines launch together and end together; one that has nothing to
do runs an empty batch. How long a round takes is known when each of them has launched, so what an engine waits for has
its value at once, and its time when the round is closed.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from llm_perf_opt.core.serving.step_table import RankStep, StepTable
from llm_perf_opt.engines.vllm.inside.launches import Clock, StepLog
from llm_perf_opt.engines.vllm.inside.step_time import Batch


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
        log.add(self._start_s, self._start_s, 0.0, batch, scheduler)
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
