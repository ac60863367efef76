"""Measured over predicted time as a factor: one number, or a line through points of different length.

With points of different predicted time the measured time is taken as a power of the predicted one, a straight line
between logarithms. Beyond the measured ends the factor stays what it is there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_SAME = 1.05  # predicted times within this ratio are one point, measured repeatedly


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPoint:
    """A measured time with its repeats, and what was predicted for the same work before any correction."""

    samples_s: tuple[float, ...]
    predicted_s: float

    def __post_init__(self) -> None:
        if not self.predicted_s > 0 or not self.samples_s or min(self.samples_s) <= 0:
            raise ValueError("a factor needs times above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The factor at every predicted time. `repeats` is the largest number of measurements of one point.

    `scatter_low` and `scatter_high` are the fastest and the slowest repeat, as shares of the one in the middle.
    """

    points: int  # with different predicted times
    measurements: int
    repeats: int
    scatter_low: float
    scatter_high: float
    _log_ends: tuple[float, float]  # logarithms of the shortest and the longest predicted time
    _log_factors: tuple[float, float]  # there

    def factor_at(self, predicted_s: float) -> float:
        """By what a prediction of this length is multiplied."""
        (start, end), (first, last) = self._log_ends, self._log_factors
        if end <= start:
            return math.exp(first)
        share = min(1.0, max(0.0, (math.log(predicted_s) - start) / (end - start)))
        return math.exp(first + share * (last - first))


def fitted(points: Sequence[FitPoint]) -> Fit:
    """The factor that the points give. Points of nearly the same predicted time count as repeats of one."""
    groups = _groups(sorted(points, key=lambda point: point.predicted_s))
    logs = [[math.log(sample / point.predicted_s) for point in group for sample in point.samples_s] for group in groups]
    middles = [statistics.median(found) for found in logs]
    lengths = [sum(math.log(point.predicted_s) for point in group) / len(group) for group in groups]
    spreads = [value - middle for found, middle in zip(logs, middles, strict=True) for value in found]
    return Fit(
        points=len(groups),
        measurements=len(points),
        repeats=max(map(len, logs)),
        scatter_low=math.exp(min(spreads)),
        scatter_high=math.exp(max(spreads)),
        _log_ends=(lengths[0], lengths[-1]),
        _log_factors=_line(lengths, middles),
    )


def _groups(points: Sequence[FitPoint]) -> list[list[FitPoint]]:
    groups = [[points[0]]]
    for before, point in pairwise(points):
        if point.predicted_s <= before.predicted_s * _SAME:
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """The straight line of least squares, by its values at both ends."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
    return mean_y + slope * (xs[0] - mean_x), mean_y + slope * (xs[-1] - mean_x)
