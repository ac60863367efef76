"""A prediction is never one number: from `low`, if everything goes as well as it ever does, to `high`."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Band:
    """Seconds from low to high."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ValueError(f"a band runs from low to high, not from {self.low} to {self.high}")

    def __add__(self, other: Band) -> Band:
        return Band(self.low + other.low, self.high + other.high)

    def times(self, count: float) -> Band:
        """As long as `count` of it."""
        return Band(self.low * count, self.high * count)

    def at_least(self, seconds: float) -> Band:
        """The band with nothing below `seconds`."""
        return Band(max(self.low, seconds), max(self.high, seconds))

    def slower(self, other: Band) -> Band:
        """Of two things that run side by side the one that takes longer, at both ends."""
        return Band(max(self.low, other.low), max(self.high, other.high))

    def holds(self, seconds: float) -> bool:
        """Whether a time lies in the band."""
        return self.low <= seconds <= self.high

    @property
    def middle(self) -> float:
        """Of two ends that differ by a factor, the value as far from one as from the other."""
        return math.sqrt(self.low * self.high)


NOTHING = Band(0.0, 0.0)
