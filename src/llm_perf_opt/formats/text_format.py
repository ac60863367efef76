"""Plain text for a terminal: tables lined up, charts as bars of `#`, the picture as a tree."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from llm_perf_opt.core.graph_metric import metric_named, total
from llm_perf_opt.core.graph_view import Box, GraphView
from llm_perf_opt.core.report import BarChart, Chart, Column, Kind, Level, LineChart, Note, Report, SpanChart, Table
from llm_perf_opt.formats.box_figures import collectives_text, figure_texts, has_collectives, hidden_text, loops_text
from llm_perf_opt.formats.charts.chart_table import has_few_points, short_tables
from llm_perf_opt.formats.visible_text import ELLIPSIS, row_texts, shortened, visible_ascii

_LONGEST_LABEL = 76
_LONGEST_CAPTION = 400
_HEADING = ("box", "loops", "instances", "calls", "FLOPs", "bytes moved", "activations", "params", "share")
_NUMBERS_END = len(_HEADING)  # what stands behind is text again
_GAP = "  "


class TextDrawing:
    """ASCII only. `metric` decides what the last column is a share of."""

    suffix = ".txt"

    def __init__(self, metric: str = "flops") -> None:
        self._metric = metric_named(metric)

    def render(self, view: GraphView) -> str:
        """Title and caption, then one line per box of the default picture."""
        whole = total(view, self._metric)
        rows = [[*_HEADING[:-1], f"{_HEADING[-1]} of {self._metric}"]]
        branches = [pair for root in view.roots for pair in _branches(root, "", "")]
        rows += [self._row(box, branch, whole) for box, branch in branches]
        if has_collectives(view):
            texts = ["collectives", *(collectives_text(box) for box, _ in branches)]
            rows = [[*row, text] for row, text in zip(rows, texts, strict=True)]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        rule = _GAP.join("-" * width for width in widths)
        lines = [_tree_line(row, widths) for row in rows]
        words = [_ascii(text, _LONGEST_CAPTION) for text in (view.title, *view.caption)]
        return "\n".join([*words, "", lines[0], rule, *lines[1:]]) + "\n"

    def _row(self, box: Box, branch: str, whole: int | None) -> list[str]:
        label = _ascii(box.label, _LONGEST_LABEL)
        hidden = hidden_text(box)
        return [
            f"{branch}{label}" + (f" ({hidden})" if hidden else ""),
            loops_text(box),
            *figure_texts(box, self._metric, whole),
        ]


def _ascii(text: str, length: int) -> str:
    """One line; where it is shortened stand three dots, since the one-character ellipsis is not ASCII."""
    return visible_ascii(shortened(text, length).replace(ELLIPSIS, "..."))


def _branches(box: Box, first: str, rest: str) -> list[tuple[Box, str]]:
    """Each box with the lines that hang it in the tree."""
    rows = [(box, first)]
    children = box.children if box.is_open else ()
    for child in children:
        is_last = child is children[-1]
        rows += _branches(child, rest + ("`- " if is_last else "|- "), rest + ("   " if is_last else "|  "))
    return rows


def _tree_line(cells: list[str], widths: list[int]) -> str:
    words = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[2:_NUMBERS_END], widths[2:_NUMBERS_END], strict=True)]
    return _GAP.join([*words, *numbers, *cells[_NUMBERS_END:]]).rstrip()


def table_text(table: Table) -> str:
    """ASCII, under its title if it has one."""
    heading = [visible_ascii(column.name) for column in table.columns]
    body = [list(map(visible_ascii, row_texts(table, row))) for row in table.rows]
    footer = [list(map(visible_ascii, row_texts(table, table.footer)))] if table.footer else []
    widths = [max(map(len, cells)) for cells in zip(heading, *body, *footer, strict=True)]
    rule = _GAP.join("-" * width for width in widths)
    lines = [_line(table, heading, widths), rule, *(_line(table, row, widths) for row in body)]
    if footer:
        lines += [rule, _line(table, footer[0], widths)]
    return "\n".join([visible_ascii(table.title), *lines] if table.title else lines)


def _line(table: Table, texts: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        text.ljust(width) if column.kind is Kind.TEXT else text.rjust(width)
        for column, text, width in zip(table.columns, texts, widths, strict=True)
    )
    return _GAP.join(cells).rstrip()


_BAR_LENGTH = 40
_MANY_POINTS = "Drawn in the format html; every point is in json and csv."


def chart_text(chart: Chart) -> str:
    """Title, numbers, bars where they fit, caption."""
    match chart:
        case BarChart():
            tables: tuple[Table, ...] = (_bars(chart),)
        case SpanChart():
            tables = (_spans(chart),)
        case LineChart():
            tables = short_tables(chart)
    parts = ["\n\n".join(map(table_text, tables)), visible_ascii(chart.caption)]
    if isinstance(chart, LineChart) and not has_few_points(chart):
        parts.append(_MANY_POINTS)
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


_NOTE_WIDTH = 110
_RULES = ("", "=", "-")  # under the title of the report, of a chapter, of a chapter in a chapter


class TextReport:
    """ASCII only, so that it reads the same in a log, a mail and a terminal of any encoding."""

    suffix = ".txt"

    def render(self, report: Report) -> str:
        """Title, tables, charts, picture and notes, each apart by one empty line; then the chapters."""
        return "\n\n".join(_parts(report, 0)) + "\n"


def _parts(report: Report, depth: int) -> Iterator[str]:
    title = visible_ascii(report.title)
    rule = _RULES[min(depth, len(_RULES) - 1)] * len(title)
    yield f"{title}\n{rule}" if rule else title
    yield from map(table_text, report.tables)
    yield from map(chart_text, report.charts)
    if report.graph is not None:
        yield TextDrawing().render(report.graph).rstrip("\n")
    for listing in report.listings:
        yield "\n".join(map(visible_ascii, (listing.title, *listing.lines)))
    if report.notes:
        yield "\n".join(map(_note_text, report.notes))
    for chapter in report.chapters:
        yield from _parts(chapter, depth + 1)


def _note_text(note: Note) -> str:
    label = "warning: " if note.level is Level.WARNING else "note: "
    wrap = textwrap.TextWrapper(
        width=_NOTE_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return wrap.fill(label + visible_ascii(note.text))
