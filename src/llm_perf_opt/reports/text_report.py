"""Plain text for a terminal: columns lined up, numbers to the right, totals under a rule."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from llm_perf_opt.document import Kind, Level, Note, Report, Table
from llm_perf_opt.reports.cell_text import row_texts

_GAP = "  "
_NOTE_WIDTH = 110


class TextReport:
    """ASCII only, so that it reads the same in a log, a mail and a terminal of any encoding."""

    suffix = ".txt"

    def render(self, report: Report) -> str:
        """Title, tables and notes, each apart by one empty line."""
        parts = [report.title, *map(_table_text, report.tables)]
        if report.notes:
            parts.append("\n".join(map(_note_text, report.notes)))
        return "\n\n".join(parts) + "\n"


def _table_text(table: Table) -> str:
    heading = [column.name for column in table.columns]
    body = [row_texts(table, row) for row in table.rows]
    footer = [row_texts(table, table.footer)] if table.footer else []
    widths = [max(map(len, cells)) for cells in zip(heading, *body, *footer, strict=True)]
    rule = _GAP.join("-" * width for width in widths)
    lines = [_line(table, heading, widths), rule, *(_line(table, row, widths) for row in body)]
    if footer:
        lines += [rule, _line(table, footer[0], widths)]
    return "\n".join([table.title, *lines] if table.title else lines)


def _line(table: Table, texts: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        text.ljust(width) if column.kind is Kind.TEXT else text.rjust(width)
        for column, text, width in zip(table.columns, texts, widths, strict=True)
    )
    return _GAP.join(cells).rstrip()


def _note_text(note: Note) -> str:
    label = "warning: " if note.level is Level.WARNING else "note: "
    wrap = textwrap.TextWrapper(
        width=_NOTE_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return wrap.fill(label + note.text)
