"""Limits in CPU seconds, held on a machine that is slower or busier than the one they were set on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

QUIET_SECONDS = 0.05  # of the loop below on the machine where the limits were set, with nothing else running


def slowness() -> float:
    """How much longer plain Python takes here and now: 1 on a quiet machine of the usual speed, never less."""
    started, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return max(1.0, (time.process_time() - started) / QUIET_SECONDS)


def timed(limit_s: float, action: Callable[[], T]) -> T:
    """What an action gives that may take this many CPU seconds, more where plain Python takes more."""
    before, started = slowness(), time.process_time()
    result = action()
    seconds = time.process_time() - started
    assert seconds < limit_s * max(before, slowness()), f"{seconds:.2f} s, limit {limit_s} s on a quiet machine"
    return result
