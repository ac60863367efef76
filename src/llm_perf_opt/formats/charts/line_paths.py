"""Curves as SVG paths with no more points than pixels can tell apart, and room for labels beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from llm_perf_opt.formats.svg_style import number

Point = tuple[float, float]  # pixels
_FEW = 400


def thinned(points: Sequence[Point]) -> list[Point]:
    """The first, the last, the highest and the lowest point of every pixel column, in their order."""
    if len(points) <= _FEW:
        return list(points)
    kept: list[Point] = []
    for _, column in groupby(points, key=lambda point: int(point[0])):
        inside = list(column)
        heights = [y for _, y in inside]
        places = {0, heights.index(min(heights)), heights.index(max(heights)), len(inside) - 1}
        kept += [inside[place] for place in sorted(places)]
    return kept


def scattered(points: Iterable[Point]) -> list[Point]:
    """Of points that would cover each other to the pixel, one."""
    return list({(round(x), round(y)): (x, y) for x, y in points}.values())


def stepped(points: Sequence[Point]) -> list[Point]:
    """With the corners of a line that holds its value until the next point."""
    corners = [corner for before, after in pairwise(points) for corner in (before, (after[0], before[1]))]
    return [*corners, *points[-1:]]


def path(points: Sequence[Point]) -> str:
    """One joined line; what stays on its height or its place is written short."""
    (x, y), *rest = points
    parts = [f"M{number(x)} {number(y)}"]
    for next_x, next_y in rest:
        if number(next_y) == number(y):
            parts.append(f"H{number(next_x)}")
        elif number(next_x) == number(x):
            parts.append(f"V{number(next_y)}")
        else:
            parts.append(f"L{number(next_x)} {number(next_y)}")
        x, y = next_x, next_y
    return "".join(parts)


def sampled(points: Sequence[Point], apart: float) -> Iterator[Point]:
    """Places along the joined line, no further from each other than `apart`."""
    yield from points[:1]
    for (x, y), (next_x, next_y) in pairwise(points):
        steps = max(1, int(max(abs(next_x - x), abs(next_y - y)) / apart))
        for step in range(1, steps + 1):
            yield x + (next_x - x) * step / steps, y + (next_y - y) * step / steps


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
