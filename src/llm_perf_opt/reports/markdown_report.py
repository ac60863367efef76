"""Markdown for a page, a pull request or a mail."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.document import Kind, Level, Report, Table
from llm_perf_opt.reports.cell_text import row_texts


class MarkdownReport:
    """GitHub tables, numbers to the right, totals in bold."""

    suffix = ".md"

    def render(self, report: Report) -> str:
        """A heading, the tables under theirs, then the notes as a list."""
        parts = [f"# {report.title}", *map(_table_text, report.tables)]
        if report.notes:
            labels = {Level.INFO: "", Level.WARNING: "**Warning:** "}
            parts.append("\n".join(f"- {labels[note.level]}{note.text}" for note in report.notes))
        return "\n\n".join(parts) + "\n"


def _table_text(table: Table) -> str:
    marks = [":--" if column.kind is Kind.TEXT else "--:" for column in table.columns]
    lines = [_line([column.name for column in table.columns]), _line(marks)]
    lines += [_line(row_texts(table, row)) for row in table.rows]
    if table.footer:
        lines.append(_line([f"**{text}**" if text else "" for text in row_texts(table, table.footer)]))
    text = "\n".join(lines)
    return f"## {table.title}\n\n{text}" if table.title else text


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, texts))} |"
