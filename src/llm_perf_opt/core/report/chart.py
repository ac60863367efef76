"""Charts as data: a format decides how they look, and one that cannot draw shows their numbers.

A value that no axis can hold (not finite), a series of another length than its categories, or a line that runs
backwards is refused where it is born.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from llm_perf_opt.core.report.cells import Kind

LINE_STYLES = ("line", "step", "scatter", "dashed")


@dataclass(frozen=True, slots=True)
class Axis:
    """What runs along one side, in base units."""

    name: str
    kind: Kind
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One value per category of a bar chart; None draws nothing and is told as unknown."""

    name: str
    values: tuple[int | float | None, ...]

    def __post_init__(self) -> None:
        _need_finite(self.name, (value for value in self.values if value is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Horizontal bars, one group per category; stacked where the series are parts of one whole."""

    title: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    kind: Kind
    is_stacked: bool = False
    caption: str = ""

    def __post_init__(self) -> None:
        for series in self.series:
            if len(series.values) != len(self.categories):
                raise ValueError(
                    f"chart {self.title!r} has {len(self.categories)} categories, "
                    f"series {series.name!r} has {len(series.values)} values"
                )
            if self.is_stacked and any(value is not None and value < 0 for value in series.values):
                raise ValueError(f"chart {self.title!r} stacks {series.name!r}, which has a part below zero")


@dataclass(frozen=True, slots=True)
class Line:
    """Points in order of x. A step line holds its value until the next point; a scatter joins nothing, in any order."""

    name: str
    points: tuple[tuple[float, float], ...]
    style: str = "line"  # one of LINE_STYLES

    def __post_init__(self) -> None:
        if self.style not in LINE_STYLES:
            raise ValueError(f"line {self.name!r} has style {self.style!r}, known are {', '.join(LINE_STYLES)}")
        _need_finite(self.name, (value for point in self.points for value in point))
        if self.style != "scatter" and any(after[0] < before[0] for before, after in pairwise(self.points)):
            raise ValueError(f"line {self.name!r} runs backwards: its points must be in order of x")


@dataclass(frozen=True, slots=True)
class Mark:
    """A point worth naming."""

    x: float
    y: float
    text: str

    def __post_init__(self) -> None:
        _need_finite(self.text, (self.x, self.y))


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Curves over one axis: a memory timeline, a roofline, a distribution."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the axis in one lane."""

    lane: str
    name: str
    start: float
    end: float

    def __post_init__(self) -> None:
        _need_finite(self.name, (self.start, self.end))
        if self.end < self.start:
            raise ValueError(f"span {self.name!r} ends at {self.end}, before it starts at {self.start}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanChart:
    """What lasted from where to where: a waterfall of stages."""

    title: str
    axis: Axis
    spans: tuple[Span, ...]
    caption: str = ""


Chart = BarChart | LineChart | SpanChart


def _need_finite(name: str, values: Iterable[float]) -> None:
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"{name!r} has the value {value}, which no axis can hold")
