"""The virtual clock, stages that are busy until a time, and results that are there at one: to wait moves the clock."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any


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
