"""Room for labels beside points, so that no label covers another, a point or, where possible, a line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llm_perf_opt.reports.charts.line_paths import Point

_HEIGHT = 15.0
_DISTANCES = (8.0, 20.0, 34.0, 50.0)
# How far right and down of its point a label begins, in parts of its size: right, left, above, below, four corners.
_SIDES = ((0.0, -0.5), (-1.0, -0.5), (-0.5, -1.0), (-0.5, 0.0), (0.0, -1.0), (-1.0, -1.0), (0.0, 0.0), (-1.0, 0.0))


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Area) -> bool:
        """Whether they share any room."""
        apart = self.left >= other.right or other.left >= self.right or self.top >= other.bottom
        return not (apart or other.top >= self.bottom)

    def holds(self, other: Area) -> bool:
        """Whether `other` lies wholly inside."""
        across = self.left <= other.left and other.right <= self.right
        return across and self.top <= other.top and other.bottom <= self.bottom


class LabelPlaces:
    """Gives out places inside `bounds`, first come first served."""

    def __init__(self, bounds: Area, dots: Iterable[Point], lines: Iterable[Point]) -> None:
        self._bounds = bounds
        self._taken = [around(dot, 4.5) for dot in dots]
        self._lines = [around(point, 2.0) for point in lines]

    def place(self, point: Point, width: float) -> Area | None:
        """A free area for a label of this width, near its point; None where everything is taken."""
        candidates = [area for area in _near(point, width) if self._bounds.holds(area)]
        free = [area for area in candidates if not any(map(area.meets, self._taken))]
        clear = next((area for area in free if not any(map(area.meets, self._lines))), None)
        chosen = clear or next(iter(free), None)
        if chosen is not None:
            self._taken.append(chosen)
        return chosen


def around(point: Point, reach: float) -> Area:
    """A square with its middle at `point`."""
    x, y = point
    return Area(x - reach, y - reach, x + reach, y + reach)


def _near(point: Point, width: float) -> Iterable[Area]:
    x, y = point
    for distance in _DISTANCES:
        for right, down in _SIDES:
            left = x + right * width + distance * (right + 0.5) * 2
            top = y + down * _HEIGHT + distance * (down + 0.5) * 2
            yield Area(left, top, left + width, top + _HEIGHT)
