"""Plain text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from llm_perf_opt.document import Level, Note, Report
from llm_perf_opt.reports.text_chart import chart_text
from llm_perf_opt.reports.text_drawing import TextDrawing
from llm_perf_opt.reports.text_table import table_text
from llm_perf_opt.reports.visible_text import visible_ascii

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
