"""The page of a study: a frontier of throughput and cost against latency, filters, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.api.ask import MOST_SHOWN, chosen_studies, report_table
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.report import FIELDS, Note, Report, StudyView
from llm_perf_opt.formats.html_format import study_page_text
from llm_perf_opt.sweeps.studies.parquet_store import StudyStore, require_packages
from llm_perf_opt.sweeps.studies.questions import COUNTS, LEGIBLE, TABLES, drawn_points, find_question, left_out_text
from llm_perf_opt.sweeps.studies.sql import answer, connection

_ASSUMED = (
    "Prices are those of the study file: assumed, not known. Times are bands: kernels between their measured best and "
    "worst share of what the device can do; a page or request is one whole batch with all its answers, without a queue."
)


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
