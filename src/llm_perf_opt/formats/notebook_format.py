"""A report inside a notebook: the page in a frame that grows with it, in at most so many bytes.

A notebook keeps every output, so one that holds whole pages cannot be read or compared any more. What does not fit is
left out from the end, and a note says what and where it is.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llm_perf_opt.core.report import Note, Report, Table
from llm_perf_opt.formats.html_format import HtmlReport

MOST_BYTES = 60_000
_FIRST_HEIGHT = 480  # pixels, until the page in the frame says how high it is


@dataclass(frozen=True, slots=True, kw_only=True)
class _Detail:
    """How much of a report is shown; None is all. `inner` is the same for its chapters, and None shows none."""

    rows: int
    tables: int | None = None
    charts: int | None = None
    notes: int | None = None
    inner: _Detail | None = None


_LINE = _Detail(rows=6, tables=1, charts=0, notes=0)
_DETAILS = (  # from much to little; the first that fits is shown
    _Detail(rows=60, inner=_Detail(rows=30, inner=_Detail(rows=15))),
    _Detail(rows=30, inner=_Detail(rows=15, tables=2, charts=1, notes=3)),
    _Detail(rows=20, charts=2, inner=_Detail(rows=10, tables=1, charts=1, notes=0)),
    _Detail(rows=20, charts=1, inner=_LINE),
    _Detail(rows=15, tables=4, charts=1, notes=8),
    _Detail(rows=10, tables=1, charts=0, notes=4),
)


def notebook_html(report: Report) -> str:
    """The frame. Neither its style nor the notebook's touches the other."""
    return next(frame for frame in _frames(report) if len(frame.encode()) <= MOST_BYTES)


def _frames(report: Report) -> Iterator[str]:
    for detail in _DETAILS:
        yield _frame(_shortened(report, detail))
    yield _frame(Report(title=report.title[:200], notes=(_note("everything"),)))


def _frame(report: Report) -> str:
    page = HtmlReport().render(report, in_notebook=True)
    # Pages have many double quotes and few single ones, so these are cheaper to escape.
    text = page.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;")
    title = html.escape(report.title[:200], quote=True)
    style = f"width:100%;height:{_FIRST_HEIGHT}px;border:0"
    return f'<iframe srcdoc=\'{text}\' style="{style}" title="{title}"></iframe>'


def _shortened(report: Report, detail: _Detail) -> Report:
    """The report to that detail, with a note of what is left out."""
    shown = _cut(report, detail)
    missing = _missing(report, shown)
    return replace(shown, notes=(*shown.notes, _note(missing))) if missing else shown


def _note(missing: str) -> Note:
    return Note(f"Left out in the notebook: {missing}. save('answer.html') writes all of it, to_pandas(title) a table.")


def _cut(report: Report, detail: _Detail) -> Report:
    inner = detail.inner
    return replace(
        report,
        tables=tuple(_cut_table(table, detail.rows) for table in report.tables[: detail.tables]),
        charts=report.charts[: detail.charts],
        notes=report.notes[: detail.notes],
        listings=(),
        graph=None,
        chapters=() if inner is None else tuple(_cut(chapter, inner) for chapter in report.chapters),
    )


def _cut_table(table: Table, rows: int) -> Table:
    return table if len(table.rows) <= rows else replace(table, rows=table.rows[:rows])


def _missing(whole: Report, shown: Report) -> str:
    """`12 rows, 3 tables, 2 chapters`; empty where nothing is missing."""
    before, after = _counts(whole), _counts(shown)
    left = {name: before[name] - after[name] for name in before}
    return ", ".join(f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in left.items() if count)


def _counts(report: Report) -> dict[str, int]:
    """What there is, chapters included."""
    inner = [_counts(chapter) for chapter in report.chapters]
    own = {
        "row": sum(len(table.rows) for table in report.tables),
        "table": len(report.tables),
        "chart": len(report.charts),
        "picture": int(report.graph is not None),
        "listing": len(report.listings),
        "note": len(report.notes),
        "chapter": len(report.chapters),
    }
    return {name: count + sum(one[name] for one in inner) for name, count in own.items()}
