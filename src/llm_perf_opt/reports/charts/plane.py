"""The room in which curves are drawn: two scales, and the pixels they cover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.document import Axis, LineChart
from llm_perf_opt.reports.charts.axes import (
    AXIS_HEIGHT,
    SIZE,
    axis_name,
    bottom_axis,
    left_axis,
    shortened_label,
    ticks_up,
    widest,
)
from llm_perf_opt.reports.charts.label_places import Area
from llm_perf_opt.reports.charts.line_paths import Point
from llm_perf_opt.reports.charts.picture import NARROW
from llm_perf_opt.reports.charts.scale import Range, Scale, log_range, range_around, range_from_zero
from llm_perf_opt.reports.charts.ticks import Tick
from llm_perf_opt.reports.svg_shapes import text
from llm_perf_opt.reports.visible_text import visible

NAME_LINE = 24.0
_HEIGHT, _NARROW_HEIGHT = 300.0, 240.0
_RIGHT_MARGIN = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """Both scales of a chart and the labels of the upright one."""

    chart: LineChart
    width: float
    x: Scale
    y: Scale
    ticks: tuple[Tick, ...]

    @property
    def area(self) -> Area:
        """Inside the axes."""
        return Area(self.x.start, self.y.end, self.x.end, self.y.start)

    @property
    def foot(self) -> float:
        """The lower edge of everything that belongs to the axes."""
        return self.y.start + AXIS_HEIGHT + NAME_LINE

    def shows(self, x: float, y: float) -> bool:
        """Whether both axes have a place for the point."""
        return self.x.range.shows(x) and self.y.range.shows(y)

    def at(self, x: float, y: float) -> Point:
        """The pixels of a point."""
        return self.x.at(x), self.y.at(y)

    def axes(self) -> str:
        """Grid, labels and names."""
        area, (name_up, name_across) = self.area, (visible(axis_name(axis)) for axis in (self.chart.y, self.chart.x))
        return "".join(
            [
                text(0, area.top - 10, shortened_label(name_up, self.width), SIZE, classes="soft name"),
                left_axis(self.ticks, self.y, area.left, area.right),
                bottom_axis(self.chart.x.kind, self.x, area.top, area.bottom, self.width),
                text(
                    area.right,
                    area.bottom + 35,
                    shortened_label(name_across, area.right),
                    SIZE,
                    classes="soft name",
                    anchor="end",
                ),
            ]
        )


def plane_for(chart: LineChart, points: Sequence[Point], width: float, top: float) -> Plane:
    """Axes that fit the points, below `top`."""
    top += NAME_LINE
    bottom = top + (_NARROW_HEIGHT if width <= NARROW else _HEIGHT)
    shown_up = log_range([y for _, y in points]) if chart.y.is_log else range_from_zero([y for _, y in points])
    found = ticks_up(chart.y.kind, shown_up, bottom - top)
    shown_across = _range_across(chart.x, [x for x, _ in points], is_padded=_is_padded(chart))
    return Plane(
        chart=chart,
        width=width,
        x=Scale(shown_across, widest(found) + 10, width - _RIGHT_MARGIN),
        y=Scale(shown_up, bottom, top),
        ticks=tuple(found),
    )


def _range_across(axis: Axis, values: Sequence[float], *, is_padded: bool) -> Range:
    return log_range(values) if axis.is_log else range_around(values, is_padded=is_padded)


def _is_padded(chart: LineChart) -> bool:
    """Dots on the very edge are half a dot; a curve may begin there."""
    return any(line.style == "scatter" or len(line.points) == 1 for line in chart.lines) or not chart.lines
