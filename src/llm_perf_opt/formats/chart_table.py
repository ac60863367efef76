"""A chart as tables: for formats that draw nothing, and next to the picture for readers who cannot see it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from llm_perf_opt.core.report import BarChart, Cell, Chart, Column, Kind, Line, LineChart, SpanChart, Table

_FEW_POINTS = 24  # that a person still reads one by one


def full_tables(chart: Chart) -> tuple[Table, ...]:
    """Every number of the chart, one in a row, for programs."""
    match chart:
        case BarChart():
            return (_single_bars(chart),)
        case LineChart():
            return (_points(chart), *_marks(chart))
        case SpanChart():
            return (_spans(chart),)


def short_tables(chart: Chart) -> tuple[Table, ...]:
    """For people: series of bars side by side; a line of many points is given by its ends and extremes."""
    if isinstance(chart, BarChart):
        return (_bars(chart),)
    if isinstance(chart, LineChart) and not has_few_points(chart):
        return (_extremes(chart), *_marks(chart))
    return full_tables(chart)


def has_few_points(chart: LineChart) -> bool:
    """Whether a table of all points is short."""
    return sum(len(line.points) for line in chart.lines) <= _FEW_POINTS


def _bars(chart: BarChart) -> Table:
    names = _distinct(["category", *(series.name or "value" for series in chart.series)])
    columns = [Column(names[0]), *(Column(name, chart.kind) for name in names[1:])]
    rows = zip(chart.categories, *(series.values for series in chart.series), strict=True)
    return Table(title=chart.title, columns=tuple(columns), rows=tuple(rows))


def _single_bars(chart: BarChart) -> Table:
    rows = [
        (category, series.name, series.values[place])
        for place, category in enumerate(chart.categories)
        for series in chart.series
    ]
    columns = (Column("category"), Column("series"), Column("value", chart.kind))
    return Table(title=chart.title, columns=columns, rows=tuple(rows))


def _points(chart: LineChart) -> Table:
    rows = [(line.name, x, y) for line in chart.lines for x, y in line.points]
    return Table(title=chart.title, columns=_point_columns(chart, "line"), rows=tuple(rows))


def _marks(chart: LineChart) -> tuple[Table, ...]:
    if not chart.marks:
        return ()
    rows = tuple((mark.text, mark.x, mark.y) for mark in chart.marks)
    return (Table(title=f"{chart.title}: marks", columns=_point_columns(chart, "mark"), rows=rows),)


def _extremes(chart: LineChart) -> Table:
    x, y = chart.x, chart.y
    names = _distinct(["line", "points", f"first {x.name}", f"last {x.name}", f"lowest {y.name}", f"highest {y.name}"])
    kinds = (Kind.TEXT, Kind.COUNT, x.kind, x.kind, y.kind, y.kind)
    columns = tuple(Column(name, kind) for name, kind in zip(names, kinds, strict=True))
    return Table(title=chart.title, columns=columns, rows=tuple(map(_extremes_of, chart.lines)))


def _extremes_of(line: Line) -> tuple[Cell, ...]:
    if not line.points:
        return (line.name, 0, None, None, None, None)
    across, up = zip(*line.points, strict=True)
    return (line.name, len(line.points), min(across), max(across), min(up), max(up))


def _spans(chart: SpanChart) -> Table:
    columns = (Column("lane"), Column("name"), *(Column(name, chart.axis.kind) for name in ("start", "end", "length")))
    rows = tuple((span.lane, span.name, span.start, span.end, span.end - span.start) for span in chart.spans)
    return Table(title=chart.title, columns=columns, rows=rows)


def _point_columns(chart: LineChart, first: str) -> tuple[Column, ...]:
    names = _distinct([first, chart.x.name or "x", chart.y.name or "y"])
    return Column(names[0]), Column(names[1], chart.x.kind), Column(names[2], chart.y.kind)


def _distinct(names: Sequence[str]) -> list[str]:
    """A table refuses two columns of one name; a chart may well have two series of one."""
    seen: dict[str, None] = {}
    for name in names:
        numbered = (name if number == 1 else f"{name} ({number})" for number in count(1))
        seen[next(text for text in numbered if text not in seen)] = None
    return list(seen)
