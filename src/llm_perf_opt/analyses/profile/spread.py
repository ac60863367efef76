"""Many samples of one time in five numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, quartiles and extremes of a time."""

    samples: int
    median_ns: float
    first_quartile_ns: float
    third_quartile_ns: float
    least_ns: int
    most_ns: int

    @property
    def quartile_range_ns(self) -> float:
        """The width of the middle half: the spread that one disturbed pass does not move."""
        return self.third_quartile_ns - self.first_quartile_ns


def spread_of(samples_ns: Sequence[int]) -> Spread:
    """Quartiles by linear interpolation between the sorted samples; a single sample is all five numbers."""
    if not samples_ns:
        raise ValueError("no samples have no spread")
    ordered = sorted(samples_ns)
    return Spread(
        samples=len(ordered),
        median_ns=float(median(ordered)),
        first_quartile_ns=_at(ordered, 0.25),
        third_quartile_ns=_at(ordered, 0.75),
        least_ns=ordered[0],
        most_ns=ordered[-1],
    )


def _at(ordered: Sequence[int], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
