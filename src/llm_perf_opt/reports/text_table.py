"""A table in plain text: columns lined up, numbers to the right, totals under a rule."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.document import Kind, Table
from llm_perf_opt.reports.cell_text import row_texts
from llm_perf_opt.reports.visible_text import visible_ascii

_GAP = "  "


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
