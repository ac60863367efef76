"""Curves, steps and points over two axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.document import Line, LineChart
from llm_perf_opt.reports.cell_text import cell_text, exact_text
from llm_perf_opt.reports.charts.hues import Hues
from llm_perf_opt.reports.charts.label_places import LabelPlaces
from llm_perf_opt.reports.charts.line_paths import Point, path, sampled, scattered, stepped, thinned
from llm_perf_opt.reports.charts.mark_svg import PlacedMark, draw_marks
from llm_perf_opt.reports.charts.picture import Key, Picture, hued, legend, nothing_to_draw
from llm_perf_opt.reports.charts.plane import Plane, plane_for
from llm_perf_opt.reports.svg_shapes import escaped, number

_SAMPLES_APART = 5.0
_SIGNS = {"scatter": "dot", "dashed": "dashed"}
_DENSE = 600  # points, from which on a thick line would be a band
_TOLD_DOTS = 300  # in a line, with a tooltip each; more would make the page heavy


def line_picture(chart: LineChart, hues: Hues, width: float) -> Picture:
    """Axes fit what is shown; what a logarithmic axis has no place for is told in the remarks."""
    points = [point for point in _all_points(chart) if _has_place(chart, *point)]
    if not points:
        return nothing_to_draw(width)
    numbers = hues.of([line.name for line in chart.lines])
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
    told = {plane.at(x, y): (x, y) for x, y in line.points if plane.shows(x, y)} if len(way) <= _TOLD_DOTS else {}
    for x, y in way:
        circle = f'<circle class="dot" cx="{number(x)}" cy="{number(y)}" r="4"'
        if (x, y) in told:
            words = escaped(f"{line.name}: {_point_text(plane.chart, *told[x, y])}")
            yield f"{circle}><title>{words}</title></circle>"
        else:
            yield f"{circle}/>"


def _marks(plane: Plane) -> list[PlacedMark]:
    dots = {point for line in plane.chart.lines if line.style == "scatter" for point in line.points}
    return [
        PlacedMark(
            at=plane.at(mark.x, mark.y),
            name=mark.text,
            told=f"{mark.text}: {_point_text(plane.chart, mark.x, mark.y)}",
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
