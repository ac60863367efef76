"""CSV for a spreadsheet or a data frame: one block for each table and chart, raw numbers in base units.

Names come from a model, and a spreadsheet runs a cell that begins like a formula; such a cell gets an apostrophe in
front.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from llm_perf_opt.core.report import Cell, Report, Table
from llm_perf_opt.formats.chart_table import full_tables
from llm_perf_opt.formats.visible_text import column_keys, visible

_FORMULA = re.compile("\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]")  # the wide forms too, which some spreadsheets read alike
# Some spreadsheets cut at semicolons, even inside quotes; a line without quotes is cut at commas too.
_AFTER_SEMICOLON = re.compile(f"(;\\s*)(?={_FORMULA.pattern})")
_AFTER_SEPARATOR = re.compile(f"([,;]\\s*)(?={_FORMULA.pattern})")


class CsvReport:
    """Words are quoted, numbers are not; an empty cell is not known, which is never 0.

    A line that begins with `#` is a title or a note. The row of totals, where a table has one, is its last.
    """

    suffix = ".csv"

    def render(self, report: Report) -> str:
        """Blocks apart by an empty line."""
        return "\n\n".join(_blocks(report, ())) + "\n"


def _blocks(report: Report, outer: tuple[str, ...]) -> Iterator[str]:
    place = (*outer, report.title)
    yield "\n".join(map(_comment, (" / ".join(place), *report.answer)))
    for table in report.tables:
        yield "\n".join(_table_lines(table, place))
    for chart in report.charts:
        for table in full_tables(chart):
            yield "\n".join(_table_lines(table, place))
        if chart.caption:
            yield _comment(chart.caption)
    if report.graph is not None:
        boxes = sum(1 for root in report.graph.roots for _ in root.walk())
        yield _comment(f"picture: {report.graph.title}, {boxes} boxes, which the formats json and html have")
    for listing in report.listings:
        yield _comment(f"{listing.title}: {len(listing.lines)} lines, which the other formats have")
    if report.notes:
        yield "\n".join(_comment(f"{note.level.value}: {note.text}") for note in report.notes)
    for chapter in report.chapters:
        yield from _blocks(chapter, place)


def _table_lines(table: Table, place: Sequence[str]) -> Iterator[str]:
    yield _comment(" / ".join([*place[1:], table.title] if table.title else place))
    yield _line(column_keys(table.columns))
    yield from map(_line, table.rows)
    if table.footer:
        yield _line(table.footer)


def _line(cells: Sequence[Cell]) -> str:
    return ",".join(map(_cell, cells))


def _cell(cell: Cell) -> str:
    if cell is None:
        return ""
    if not isinstance(cell, str):
        return repr(cell)
    shown = _AFTER_SEMICOLON.sub(r"\1'", visible(cell))
    guarded = f"'{shown}" if _FORMULA.match(shown) else shown
    return '"' + guarded.replace('"', '""') + '"'


def _comment(text: str) -> str:
    """Without quotes, so that readers know the line by its first character; commas in it begin no formula."""
    return "# " + _AFTER_SEPARATOR.sub(r"\1'", visible(text).replace('"', "'"))
