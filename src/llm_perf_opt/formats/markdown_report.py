"""Markdown for a page, a pull request or a mail."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from llm_perf_opt.core.report import Chart, Kind, Level, LineChart, Note, Report, Table
from llm_perf_opt.formats.cell_text import row_texts
from llm_perf_opt.formats.charts.chart_table import has_few_points, short_tables
from llm_perf_opt.formats.markdown_drawing import MarkdownDrawing
from llm_perf_opt.formats.visible_text import visible

_DEEPEST = 6
_LABELS = {Level.INFO: "", Level.WARNING: "**Warning:** "}
# What would act in a table or a sentence; an underscore inside a word and a lone bracket do not.
_ACTS = re.compile(r"[\\|<*]|(?<=\])\(|(?<![^\W_])_|_(?![^\W_])")


class MarkdownReport:
    """GitHub tables, numbers to the right, totals in bold; charts as the tables of their numbers."""

    suffix = ".md"

    def render(self, report: Report) -> str:
        """A heading, tables, charts and picture under theirs, the notes as a list; chapters one heading lower."""
        return "\n\n".join(_parts(report, 1)) + "\n"


def _parts(report: Report, level: int) -> Iterator[str]:
    yield _heading(report.title, level)
    for table in report.tables:
        yield from _titled(table, level + 1)
    for chart in report.charts:
        yield from _chart_parts(chart, level + 1)
    if report.graph is not None:
        drawing = MarkdownDrawing().render(report.graph).rstrip("\n")
        yield "#" * (min(level + 1, _DEEPEST) - 1) + drawing
    if report.notes:
        yield "\n".join(map(_note_text, report.notes))
    for chapter in report.chapters:
        yield from _parts(chapter, level + 1)


def _chart_parts(chart: Chart, level: int) -> Iterator[str]:
    for table in short_tables(chart):
        yield from _titled(table, level)
    if chart.caption:
        yield _escaped(chart.caption)
    if isinstance(chart, LineChart) and not has_few_points(chart):
        yield "Drawn in the format `html`; every point is in `json` and `csv`."


def _titled(table: Table, level: int) -> Iterator[str]:
    if table.title:
        yield _heading(table.title, level)
    marks = [":--" if column.kind is Kind.TEXT else "--:" for column in table.columns]
    lines = [_line([_escaped(column.name) for column in table.columns]), _line(marks)]
    lines += [_line(list(map(_escaped, row_texts(table, row)))) for row in table.rows]
    if table.footer:
        lines.append(_line([f"**{_escaped(text)}**" if text else "" for text in row_texts(table, table.footer)]))
    yield "\n".join(lines)


def _note_text(note: Note) -> str:
    return f"- {_LABELS[note.level]}{_escaped(note.text)}"


def _heading(title: str, level: int) -> str:
    return f"{'#' * min(level, _DEEPEST)} {_escaped(title)}"


def _escaped(text: str) -> str:
    """One line on which no name turns into markup."""
    return _ACTS.sub(lambda found: "\\" + found[0], visible(text))


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"
