"""Curves, steps and named points over two axes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from llm_perf_opt.core.report import Line, LineChart
from llm_perf_opt.formats.picture import (
    AXIS_HEIGHT,
    NARROW,
    SIZE,
    Hues,
    Key,
    Picture,
    Scale,
    Tick,
    axis_name,
    bottom_axis,
    hued,
    left_axis,
    legend,
    log_range,
    nothing_to_draw,
    range_around,
    range_from_zero,
    shortened_label,
    ticks_up,
    widest,
)
from llm_perf_opt.formats.svg_style import escaped, number, text
from llm_perf_opt.formats.visible_text import cell_text, exact_text, fitted, text_width, visible

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
    up = [y for _, y in points]
    shown_up = log_range(up, chart.y.base) if chart.y.is_log else range_from_zero(up)
    ticks = ticks_up(chart.y.kind, shown_up, bottom - top)
    across = [x for x, _ in points]
    shown_across = (
        log_range(across, chart.x.base) if chart.x.is_log else range_around(across, is_padded=_is_padded(chart))
    )
    return Plane(
        chart=chart,
        width=width,
        x=Scale(shown_across, widest(ticks) + 10, width - _RIGHT_MARGIN),
        y=Scale(shown_up, bottom, top),
        ticks=tuple(ticks),
    )


def _is_padded(chart: LineChart) -> bool:
    """Dots on the very edge are half a dot; a curve may begin there."""
    return any(line.style == "scatter" or len(line.points) == 1 for line in chart.lines) or not chart.lines


_WIDEST = 0.5  # of the picture, for one label
_TAIL = 0.35  # of a label that is cut: its beginning says which peak it is and how high
_LINE = 18.0
_MOST_LISTED = 12
_NEAR = 12.0  # pixels, from which on a label needs a thread to its point


@dataclass(frozen=True, slots=True)
class PlacedMark:
    """Where a mark is, what is next to it, and what its tooltip says."""

    at: Point
    name: str
    tooltip: str
    has_dot: bool  # a mark on a dot of a line needs none of its own


@dataclass(frozen=True, slots=True)
class DrawnMarks:
    """Elements, and the lower edge of the list under the chart."""

    elements: str
    bottom: float


def draw_marks(marks: Sequence[PlacedMark], places: LabelPlaces, width: float, foot: float) -> DrawnMarks:
    """Every mark is a dot; its name is next to it or in a list that begins at `foot`."""
    parts: list[str] = []
    listed: list[str] = []
    for mark in marks:
        name = fitted(visible(mark.name), SIZE, width * _WIDEST, keep=_TAIL)
        area = places.place(mark.at, text_width(name, SIZE))
        dot = (
            f'<circle class="mark" cx="{number(mark.at[0])}" cy="{number(mark.at[1])}" r="4"/>' if mark.has_dot else ""
        )
        parts.append(f"<g><title>{escaped(mark.tooltip)}</title>{dot}")
        if area is not None:
            parts.append(_thread(mark.at, area) + text(area.left, area.bottom - 3.5, name, SIZE, classes="mark-name"))
        else:
            listed.append(visible(mark.name))
            parts.append(_number(mark.at, str(len(listed)), places))
        parts.append("</g>")
    lines = [f"{place}  {name}" for place, name in enumerate(listed[:_MOST_LISTED], start=1)]
    if len(listed) > _MOST_LISTED:
        lines.append(f"and {len(listed) - _MOST_LISTED:,} more in the table")
    rows = [text(0, foot + 14 + place * _LINE, shortened_label(line, width), SIZE) for place, line in enumerate(lines)]
    return DrawnMarks("".join([*parts, *rows]), foot + len(lines) * _LINE)


def _number(at: Point, figure: str, places: LabelPlaces) -> str:
    """Next to the mark, if there is space."""
    area = places.place(at, text_width(figure, SIZE))
    return "" if area is None else text(area.left, area.bottom - 3.5, figure, SIZE, classes="mark-name")


def _thread(at: Point, label: Area) -> str:
    """From a point to the nearest edge of a label that is not right next to it."""
    x = min(max(at[0], label.left), label.right)
    y = min(max(at[1], label.top), label.bottom)
    if abs(x - at[0]) + abs(y - at[1]) <= _NEAR:
        return ""
    return f'<path class="thread" d="M{number(at[0])} {number(at[1])}L{number(x)} {number(y)}"/>'


_SAMPLES_APART = 5.0
_SIGNS = {"scatter": "dot", "dashed": "dashed"}
_DENSE = 600  # points, from which on a thick line would be a band
_DOTS_WITH_TOOLTIPS = 300  # in a line, with a tooltip each; more would make the page heavy


def line_picture(chart: LineChart, hues: Hues, width: float) -> Picture:
    """Axes fit what is shown; what a logarithmic axis has no place for goes into the remarks."""
    points = [point for point in _all_points(chart) if _has_place(chart, *point)]
    if not points:
        return nothing_to_draw(width)
    numbers = hues.of([line.family or line.name for line in chart.lines])
    keys = [Key(line.name, hue, _SIGNS.get(line.style, "line")) for line, hue in zip(chart.lines, numbers, strict=True)]
    head = legend(keys if len(keys) > 1 else [], width)
    plane = plane_for(chart, points, width, head.height)
    ways = [_way(line, plane) for line in chart.lines]
    curves = [
        hued(hue, _curve(line, way, plane), line.name)
        for line, hue, way in zip(chart.lines, numbers, ways, strict=True)
        if way
    ]
    marks = draw_marks(_marks(plane), _places(plane, ways), width, plane.foot)
    elements = "".join([head.elements, plane.axes(), *curves, marks.elements])
    return Picture(elements, width, marks.bottom, _remarks(chart))


def _way(line: Line, plane: Plane) -> list[Point]:
    """The pixels a line goes through, or its dots."""
    shown = [plane.at(x, y) for x, y in line.points if plane.shows(x, y)]
    if line.style == "scatter":
        return scattered(shown)
    return stepped(thinned(shown)) if line.style == "step" else thinned(shown)


def _curve(line: Line, way: Sequence[Point], plane: Plane) -> str:
    if line.style == "scatter" or len(way) == 1:
        return "".join(_dots(line, way, plane))
    density = " dense" if len(way) > _DENSE else ""
    curve = f'<path class="curve {line.style}{density}" d="{path(way)}"/>'
    is_alone = line.style == "step" and len(plane.chart.lines) == 1 and not plane.chart.y.is_log
    return _ground(way, plane) + curve if is_alone else curve


def _ground(way: Sequence[Point], plane: Plane) -> str:
    """The area between a line and zero."""
    zero = plane.y.at(0)
    return f'<path class="ground" d="{path([(way[0][0], zero), *way, (way[-1][0], zero)])}z"/>'


def _dots(line: Line, way: Sequence[Point], plane: Plane) -> Iterator[str]:
    points = (
        {plane.at(x, y): (x, y) for x, y in line.points if plane.shows(x, y)} if len(way) <= _DOTS_WITH_TOOLTIPS else {}
    )
    for x, y in way:
        circle = f'<circle class="dot" cx="{number(x)}" cy="{number(y)}" r="4"'
        if (x, y) in points:
            words = escaped(f"{line.name}: {_point_text(plane.chart, *points[x, y])}")
            yield f"{circle}><title>{words}</title></circle>"
        else:
            yield f"{circle}/>"


def _marks(plane: Plane) -> list[PlacedMark]:
    dots = {point for line in plane.chart.lines if line.style == "scatter" for point in line.points}
    return [
        PlacedMark(
            at=plane.at(mark.x, mark.y),
            name=mark.text,
            tooltip=f"{mark.text}: {_point_text(plane.chart, mark.x, mark.y)}",
            has_dot=(mark.x, mark.y) not in dots,
        )
        for mark in plane.chart.marks
        if plane.shows(mark.x, mark.y)
    ]


def _places(plane: Plane, ways: Sequence[Sequence[Point]]) -> LabelPlaces:
    styled = [(line.style == "scatter", way) for line, way in zip(plane.chart.lines, ways, strict=True)]
    dots = [point for is_scatter, way in styled if is_scatter for point in way]
    dots += [mark.at for mark in _marks(plane)]
    lines = [point for is_scatter, way in styled if not is_scatter for point in sampled(way, _SAMPLES_APART)]
    return LabelPlaces(plane.area, dots, lines)


def _point_text(chart: LineChart, x: float, y: float) -> str:
    pairs = ((axis, value, cell_text(value, axis.kind)) for axis, value in ((chart.x, x), (chart.y, y)))
    return ", ".join(f"{axis.name} {short} ({exact_text(value, axis.kind)})" for axis, value, short in pairs)


def _all_points(chart: LineChart) -> Iterator[Point]:
    for line in chart.lines:
        yield from line.points
    yield from ((mark.x, mark.y) for mark in chart.marks)


def _has_place(chart: LineChart, x: float, y: float) -> bool:
    return (x > 0 or not chart.x.is_log) and (y > 0 or not chart.y.is_log)


def _remarks(chart: LineChart) -> tuple[str, ...]:
    missing = sum(not _has_place(chart, *point) for point in _all_points(chart))
    if not missing:
        return ()
    words = "1 point at or below zero has" if missing == 1 else f"{missing:,} points at or below zero have"
    return (f"{words} no place on a logarithmic axis.",)


Point = tuple[float, float]  # pixels
_FEW = 400


def thinned(points: Sequence[Point]) -> list[Point]:
    """The first, the last, the highest and the lowest point of every pixel column, in their order."""
    if len(points) <= _FEW:
        return list(points)
    shown: list[Point] = []
    for _, column in groupby(points, key=lambda point: int(point[0])):
        inside = list(column)
        heights = [y for _, y in inside]
        places = {0, heights.index(min(heights)), heights.index(max(heights)), len(inside) - 1}
        shown += [inside[place] for place in sorted(places)]
    return shown


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


_LABEL_HEIGHT = 15.0
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
            top = y + down * _LABEL_HEIGHT + distance * (down + 0.5) * 2
            yield Area(left, top, left + width, top + _LABEL_HEIGHT)
