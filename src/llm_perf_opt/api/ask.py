"""Questions to the results of studies, by name or in SQL, and their page: answered from the Parquet files in place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.report import FIELDS, Cell, Column, Kind, Note, Report, StudyView, Table, counted, listed
from llm_perf_opt.core.units import format_count, format_seconds
from llm_perf_opt.formats.html_format import study_page_text
from llm_perf_opt.sweeps.studies.bounded_sql import MAX_SECONDS, bounded_answer
from llm_perf_opt.sweeps.studies.parquet_store import StudyStore, require_packages
from llm_perf_opt.sweeps.studies.questions import COUNTS, LEGIBLE, TABLES, drawn_points, find_question, left_out_text
from llm_perf_opt.sweeps.studies.sql import SqlResult, answer, connection

if TYPE_CHECKING:
    import pandas

_CELLS_IN_ANSWER = 5  # cells of the first row, in the answer
MOST_SHOWN = 200  # rows of a report; `to_arrow` and `to_pandas` have all
_KINDS = {"_bytes": Kind.BYTES, "_flops": Kind.FLOPS}
_RATES = ("_per_s", "per_s_low", "per_s_high")

_ASSUMED = (
    "Prices come from the study file: they are assumed. Times are low to high: kernels at their measured best and "
    "worst share of the device's peak. A page or request is one whole batch with all its answers, without a queue."
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AskAnswer(Answer):
    """The answer to one question: `columns` and `rows`, all of them in `to_arrow` and `to_pandas`."""

    question: str
    sql: str
    studies: tuple[str, ...]
    columns: tuple[str, ...]
    row_count: int
    rows: tuple[tuple[Cell, ...], ...]  # the first ones
    _result: SqlResult
    _assumes: str

    def report(self) -> Report:
        """The rows as one table, and what the question assumes."""
        cut = (
            [Note(f"These are the first {len(self.rows):,} of {self.row_count:,} rows.")]
            if self.row_count > MOST_SHOWN
            else []
        )
        none = [] if self.row_count else [Note("No point of the study matches the question.")]
        assumed = [Note(self._assumes)] if self._assumes else []
        table = report_table(self.question, self._result, MOST_SHOWN)
        return Report(
            title=f"{', '.join(self.studies)}: {self.question}",
            answer=tuple(self._lines(table)),
            tables=(table,),
            notes=(*none, *cut, *assumed),
        )

    def _lines(self, table: Table) -> Iterator[str]:
        """How many rows answer, and the first of them."""
        studies = counted(len(self.studies), "study", "studies")
        yield f"{self.question}: {counted(self.row_count, 'row')} from {studies}."
        if table.rows:
            cells = zip(table.columns, table.rows[0], strict=True)
            first_cells = [
                f"{column.name} {_cell_text(cell, column.kind)}" for column, cell in cells if cell is not None
            ]
            yield f"First: {listed(first_cells, _CELLS_IN_ANSWER)}."

    def to_arrow(self) -> Any:
        """All rows as a `pyarrow.Table`."""
        return self._result.table

    def to_pandas(self, table: str | None = None) -> pandas.DataFrame:
        """All rows as a data frame; the one table there is."""
        if table is not None:
            return super().to_pandas(table)
        return self._result.table.to_pandas()


def _cell_text(cell: Cell, kind: Kind) -> str:
    if isinstance(cell, int | float):
        return format_seconds(cell) if kind is Kind.SECONDS else format_count(cell)
    return str(cell)


def report_table(title: str, result: SqlResult, most: int) -> Table:
    """The first rows of an answer as a table of a report."""
    rows = tuple(tuple(map(_cell, row)) for row in result.rows(most))
    cells = list(zip(*rows, strict=True)) or [()] * len(result.columns)
    names = _distinct_names(result.columns)
    columns = [
        Column(name, _kind(sql_name, some)) for name, sql_name, some in zip(names, result.columns, cells, strict=True)
    ]
    return Table(title=title, columns=tuple(columns), rows=rows)


def _distinct_names(names: Sequence[str]) -> list[str]:
    """As a person reads them; SQL may give two columns one name, a table may not."""
    distinct: list[str] = []
    for name in names:
        shown = name.replace("_", " ")
        distinct.append(shown if shown not in distinct else f"{shown} ({len(distinct) + 1})")
    return distinct


def _kind(name: str, cells: Sequence[Cell]) -> Kind:
    """Words are text; what a number is says the name of its column, also inside a function: `min(tpot_s)`."""
    if any(isinstance(cell, str) for cell in cells) or all(cell is None for cell in cells):
        return Kind.TEXT
    name = name.rstrip(")")
    for suffix, kind in _KINDS.items():
        if name.endswith(suffix):
            return kind
    is_time = name.endswith("_s") and not name.endswith(_RATES) and "per_s" not in name
    return Kind.SECONDS if is_time else Kind.COUNT


def ask(
    results: str | Path,
    question: str | None = None,
    *,
    sql: str | None = None,
    study: str | Sequence[str] | None = None,
    max_seconds: float = MAX_SECONDS,
) -> AskAnswer:
    """One question to the results of studies.

    - `results`: the folder or address that `study` wrote to.
    - `question`: a named one, such as `cheapest plan under 50 ms TPOT for llama on h100-sxm`. Default: `summary`.
    - `sql`: any one select on the table `points` instead. It reads nothing else and changes nothing.
    - `study`: which of several. Default: all that lie there.
    - `max_seconds`: how long SQL may take; it is stopped then, and where it needs more than 1 GiB.
    """
    if question is not None and sql is not None:
        raise UsageError("A question and SQL exclude each other.", why="each is a query", fix="give one of the two")
    require_packages()
    named_question = None if sql is not None else find_question(question or "summary")
    store = StudyStore(str(results))
    chosen = chosen_studies(store, study)
    if named_question is None:
        assert sql is not None, "a question or SQL was given"
        text, result = sql, bounded_answer(store, chosen, sql, max_seconds=max_seconds)
    else:
        with connection(store, chosen) as opened:
            text, result = named_question.sql, answer(opened, named_question.sql, named_question.parameters)
    return AskAnswer(
        question=question or ("SQL" if sql is not None else "summary"),
        sql=text,
        studies=chosen,
        columns=result.columns,
        row_count=result.table.num_rows,
        rows=tuple(tuple(map(_cell, row)) for row in result.rows(MOST_SHOWN)),
        _result=result,
        _assumes="" if named_question is None else named_question.question.assumes,
    )


def _cell(value: Any) -> Cell:
    """A value that a report can hold; what is no number is a word."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)


def chosen_studies(store: StudyStore, study: str | Sequence[str] | None) -> tuple[str, ...]:
    """Those that were named, or all that lie there."""
    known = store.studies()
    wanted = known if study is None else (study,) if isinstance(study, str) else tuple(study)
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"There is no study {name!r} at {store.root}.", why=f"there are: {', '.join(known)}", fix="choose one"
            )
    return wanted


def study_page(
    results: str | Path, path: str | Path, *, study: str | Sequence[str] | None = None, force: bool = False
) -> Path:
    """Write one HTML file that needs nothing else: chart, filters and tables of the results of studies."""
    require_packages()
    path = Path(path)
    free_file(path, force=force)
    write_result(path, study_page_text(study_view(results, study)))
    return path


def study_view(results: str | Path, study: str | Sequence[str] | None = None) -> StudyView:
    """What the page shows."""
    store = StudyStore(str(results))
    chosen = chosen_studies(store, study)
    with connection(store, chosen) as opened:
        total, failed, unheld, currency, is_pages = answer(opened, COUNTS).rows()[0]
        queries = drawn_points(total - failed - unheld)
        rows = list(dict.fromkeys(row for query in queries for row in answer(opened, query).rows()))
        chapters = tuple(_chapters(opened, is_pages=is_pages))
    return StudyView(
        title=f"Study {', '.join(chosen)}",
        points={name: [row[place] for row in rows] for place, name in enumerate(FIELDS)},
        total=total,
        currency=currency or "",
        is_pages=is_pages,
        left_out=left_out_text(total, failed, unheld, len(rows)),
        report=Report(title=f"Study {', '.join(chosen)}", chapters=chapters, notes=(Note(_ASSUMED),)),
    )


def _chapters(opened: Any, *, is_pages: bool) -> list[Report]:
    """A chapter for each question that the study has an answer to."""
    chapters = []
    for phrase in TABLES:
        question = find_question(phrase)
        result = answer(opened, question.sql, question.parameters)
        if not result.table.num_rows:
            continue
        with_pages, without = LEGIBLE.get(phrase, (phrase.capitalize(), phrase.capitalize()))
        title = with_pages if is_pages else without.replace("Pages", "Requests")
        chapters.append(
            Report(
                title=title,
                tables=(report_table(title, result, MOST_SHOWN),),
                notes=(Note(question.question.assumes),),
            )
        )
    return chapters
