"""Plain text for a terminal: tables lined up, charts as bars of `#`, the picture as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llm_perf_opt.core.report import BarChart, Chart, Column, LineChart, Report, SpanChart, Table
from llm_perf_opt.formats.charts.chart_table import short_tables
from llm_perf_opt.formats.one_screen import answer_text, note_text, screen_text, title_text
from llm_perf_opt.formats.text_drawing import TextDrawing
from llm_perf_opt.formats.text_table import PAGE_WIDTH, broken, table_text
from llm_perf_opt.formats.visible_text import visible_ascii

_BAR_LENGTH = 40


def chart_text(chart: Chart) -> str:
    """Title, numbers, bars where they fit, caption."""
    match chart:
        case BarChart():
            tables: tuple[Table, ...] = (_bars(chart),)
        case SpanChart():
            tables = (_spans(chart),)
        case LineChart():
            tables = short_tables(chart)
    parts = ["\n\n".join(map(table_text, tables)), *broken(visible_ascii(chart.caption), PAGE_WIDTH)]
    return "\n".join(part for part in parts if part)


def _bars(chart: BarChart) -> Table:
    """One row for each bar; all start at zero and share one scale. A bar below zero is drawn with `-`."""
    largest = max((abs(value) for series in chart.series for value in series.values if value is not None), default=0)
    rows = [
        (category, name, value, _bar(value, largest))
        for place, category in enumerate(chart.categories)
        for name, value in _values(chart, place)
    ]
    columns = (Column("category"), Column("series"), Column("value", chart.kind), Column(""))
    table = Table(title=chart.title, columns=columns, rows=tuple(rows))
    return table if len(chart.series) > 1 else _without_column(table, 1)


def _values(chart: BarChart, place: int) -> list[tuple[str, float | None]]:
    """The values of one category by series; a stack leaves out parts that are zero."""
    values = [(series.name, series.values[place]) for series in chart.series]
    parts = [(name, value) for name, value in values if value != 0] if chart.is_stacked else values
    return parts or values


def _spans(chart: SpanChart) -> Table:
    """The table of spans, each with its stretch of the axis; a logarithmic axis is drawn evenly here."""
    (table,) = short_tables(chart)
    low = min((span.start for span in chart.spans), default=0.0)
    whole = max((span.end for span in chart.spans), default=0.0) - low
    bars = [_stretch((span.start - low, span.end - low), whole) for span in chart.spans]
    rows = tuple((*row, bar) for row, bar in zip(table.rows, bars, strict=True))
    return replace(table, columns=(*table.columns, Column("")), rows=rows)


def _bar(value: float | None, largest: float) -> str:
    if not value:
        return ""
    return ("#" if value > 0 else "-") * max(1, round(abs(value) / largest * _BAR_LENGTH))


def _stretch(span: tuple[float, float], whole: float) -> str:
    start, end = (round(place / whole * _BAR_LENGTH) if whole else 0 for place in span)
    start = min(start, _BAR_LENGTH - 1)
    return " " * start + "#" * max(1, end - start)


def _without_column(table: Table, place: int) -> Table:
    columns = (*table.columns[:place], *table.columns[place + 1 :])
    rows = tuple((*row[:place], *row[place + 1 :]) for row in table.rows)
    return replace(table, columns=columns, rows=rows)


_RULES = ("", "=", "-")  # under the title of the report, of a chapter, of a chapter in a chapter


class TextReport:
    """ASCII only, so that it reads the same in a log, a mail and a terminal of any encoding; 100 columns wide."""

    suffix = ".txt"

    def render(self, report: Report) -> str:
        """The answer, title, tables, charts, picture and notes, each apart by one empty line; then the chapters."""
        return "\n\n".join(_parts(report, 0)) + "\n"

    def one_screen(self, report: Report) -> str:
        """The answer and the tables that matter most; the last line says what is left out, and how it is shown."""
        return screen_text(report) + "\n"


def _parts(report: Report, depth: int) -> Iterator[str]:
    if report.answer:
        yield answer_text(report.answer)
    yield title_text(report.title, _RULES[min(depth, len(_RULES) - 1)])
    yield from map(table_text, report.tables)
    yield from map(chart_text, report.charts)
    if report.graph is not None:
        yield TextDrawing().render(report.graph).rstrip("\n")
    for listing in report.listings:
        yield "\n".join(map(visible_ascii, (listing.title, *listing.lines)))
    if report.notes:
        yield "\n".join(map(note_text, report.notes))
    for chapter in report.chapters:
        yield from _parts(chapter, depth + 1)
