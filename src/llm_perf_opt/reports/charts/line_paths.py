"""Curves as SVG paths: no more points than pixels can tell apart, and none of the extremes lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from llm_perf_opt.reports.svg_shapes import number

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
