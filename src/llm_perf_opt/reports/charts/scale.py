"""From values to pixels, evenly or by orders of magnitude."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

_MARGIN = 0.05  # of the range, that stays free beyond the data
_ROUNDING = 1e-12  # of its values: a difference this small has no steps in it
_LEAST = sys.float_info.min / sys.float_info.epsilon  # what is below it ends at zero when it is divided into steps


@dataclass(frozen=True, slots=True)
class Range:
    """What an axis shows; `low` is below `high`, and above zero where the axis is logarithmic."""

    low: float
    high: float
    is_log: bool = False

    def shows(self, value: float) -> bool:
        """A logarithmic axis has no place for zero and below."""
        return value > 0 or not self.is_log


@dataclass(frozen=True, slots=True)
class Scale:
    """Puts `range` between the pixels `start` and `end`, which may run either way."""

    range: Range
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value; one beyond the range lands on its edge."""
        low, high = self.range.low, self.range.high
        inside = min(max(value, low), high)
        if self.range.is_log:
            low, high, inside = math.log(low), math.log(high), math.log(inside)
        part = (inside - low) / (high - low)
        return self.start + part * (self.end - self.start)


def range_from_zero(values: Sequence[float]) -> Range:
    """Holds zero and every value, with room above the highest: for lengths and heights."""
    low, high = min([0.0, *values]), max([0.0, *values])
    if _is_a_point(low, high):
        return Range(0.0, 1.0)
    margin = (high - low) * _MARGIN
    return Range(low - margin if low < 0 else low, high + margin if high > 0 else high)


def range_around(values: Sequence[float], *, is_padded: bool) -> Range:
    """From the lowest to the highest value: for places along an axis."""
    low, high = min(values), max(values)
    if _is_a_point(low, high):
        around = max(abs(low), abs(high)) / 2
        margin = around if around > _LEAST else 1.0
        return Range(low - margin, high + margin)
    margin = (high - low) * _MARGIN if is_padded else 0.0
    return Range(low - margin, high + margin)


def log_range(values: Sequence[float]) -> Range:
    """Holds every value above zero with room on both sides; the others have no place on it."""
    shown = [value for value in values if value > 0] or [1.0]
    low, high = min(shown), max(shown)
    factor = max(math.exp((math.log(high) - math.log(low)) * _MARGIN), 1.05) if high > low else 4.0
    low = max(low / factor, sys.float_info.min)
    return Range(low, min(max(high, low) * factor, sys.float_info.max), is_log=True)


def _is_a_point(low: float, high: float) -> bool:
    """Whether too little lies between the two to be divided into steps."""
    return high - low <= max(_ROUNDING * max(abs(low), abs(high)), _LEAST)
