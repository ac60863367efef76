"""Markdown for a page, a pull request or a mail; the picture as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from llm_perf_opt.core.graph_view import Box, GraphView, total
from llm_perf_opt.core.report import Chart, Kind, Level, LineChart, Listing, Note, Report, Table
from llm_perf_opt.formats.box_figures import (
    WeighedDrawing,
    collectives_text,
    figure_texts,
    has_collectives,
    hidden_text,
    loops_text,
)
from llm_perf_opt.formats.chart_table import has_few_points, short_tables
from llm_perf_opt.formats.visible_text import row_texts, shortened, visible

_LONGEST_LABEL = 160
_INDENT = "&emsp;"
_MARKUP = str.maketrans({char: f"&#{ord(char)};" for char in "\\`*_{}[]()#+!|~<>&"})


class MarkdownDrawing(WeighedDrawing):
    """A GitHub table, one row per box of the default picture. `metric` decides what the last column is a share of."""

    suffix = ".md"

    def render(self, view: GraphView) -> str:
        """A heading, the caption as a list, the table."""
        total_cost = total(view, self._metric)
        with_collectives = has_collectives(view)
        lines = [
            f"| box | loops | stage | instances | calls | FLOPs | bytes moved | activations | params "
            f"| share of {self._metric} |" + " collectives |" * with_collectives,
            "| :-- | :-- | :-- | --: | --: | --: | --: | --: | --: | --: |" + " :-- |" * with_collectives,
        ]
        for box, depth in (pair for root in view.roots for pair in _depths(root, 0)):
            lines.append(self._row(box, depth, total_cost) + f" {_words(collectives_text(box))} |" * with_collectives)
        parts = [f"# {_words(view.title)}"]
        if view.caption:
            parts.append("\n".join(f"- {_words(line)}" for line in view.caption))
        return "\n\n".join([*parts, "\n".join(lines)]) + "\n"

    def _row(self, box: Box, depth: int, total_cost: int | None) -> str:
        hidden = hidden_text(box)
        cells = [
            _INDENT * depth + _code(box.label) + (f" ({hidden})" if hidden else ""),
            loops_text(box),
            _words(box.stage),
            *figure_texts(box, self._metric, total_cost),
        ]
        return f"| {' | '.join(cells)} |"


def _depths(box: Box, depth: int) -> list[tuple[Box, int]]:
    rows = [(box, depth)]
    for child in box.children if box.is_open else ():
        rows += _depths(child, depth + 1)
    return rows


def _code(label: str) -> str:
    """A code span, in which nothing acts but a backtick and a bar; those two are written as escapes."""
    text = shortened(visible(label), _LONGEST_LABEL)
    return f"`{text.replace('`', chr(92) + 'x60').replace('|', chr(92) + 'x7c')}`"


def _words(text: str) -> str:
    """Prose that cannot turn into markup."""
    return visible(text).translate(_MARKUP)


_DEEPEST = 6
_LABELS = {Level.INFO: "", Level.WARNING: "**Warning:** "}
# What would act in a table or a sentence; an underscore inside a word and a lone bracket do not.
_ACTS = re.compile(r"[\\|<*]|(?<=\])[(:]|(?<![^\W_])_|_(?![^\W_])")


class MarkdownReport:
    """GitHub tables, numbers to the right, totals in bold; charts as the tables of their numbers."""

    suffix = ".md"

    def render(self, report: Report) -> str:
        """A heading, tables, charts and picture under theirs, the notes as a list; chapters one heading lower."""
        return "\n\n".join(_parts(report, 1)) + "\n"


def _parts(report: Report, level: int) -> Iterator[str]:
    yield _heading(report.title, level)
    if report.answer:
        yield "\n".join(f"- {_escaped(line)}" for line in report.answer)
    for table in report.tables:
        yield from _titled(table, level + 1)
    for chart in report.charts:
        yield from _chart_parts(chart, level + 1)
    if report.graph is not None:
        drawing = MarkdownDrawing().render(report.graph).rstrip("\n")
        yield "#" * (min(level + 1, _DEEPEST) - 1) + drawing
    for listing in report.listings:
        yield _heading(listing.title, level + 1)
        yield _fenced(listing)
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
        yield "The formats `json` and `csv` have every point."


def _titled(table: Table, level: int) -> Iterator[str]:
    if table.title:
        yield _heading(table.title, level)
    marks = [":--" if column.kind is Kind.TEXT else "--:" for column in table.columns]
    lines = [_line([_escaped(column.name) for column in table.columns]), _line(marks)]
    lines += [_line(list(map(_escaped, row_texts(table, row)))) for row in table.rows]
    if table.footer:
        lines.append(_line([f"**{_escaped(text)}**" if text else "" for text in row_texts(table, table.footer)]))
    yield "\n".join(lines)


def _fenced(listing: Listing) -> str:
    """A code block, under a fence that no line of it can close."""
    longest = max(map(len, re.findall("`+", listing.text)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join((f"{fence}text", *map(visible, listing.lines), fence))


def _note_text(note: Note) -> str:
    return f"- {_LABELS[note.level]}{_escaped(note.text)}"


def _heading(title: str, level: int) -> str:
    return f"{'#' * min(level, _DEEPEST)} {_escaped(title)}"


def _escaped(text: str) -> str:
    """One line on which no name turns into markup."""
    return _ACTS.sub(lambda act: "\\" + act[0], visible(text))


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"
