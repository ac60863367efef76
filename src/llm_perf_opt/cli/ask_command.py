"""`llm-perf-opt ask`: named questions and SQL to the results of studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_perf_opt.cli.output import (
    ForceOption,
    FormatOption,
    JsonOption,
    ReportFileOption,
    VerboseOption,
    choose_reporter,
    reserve_page,
    show,
)
from llm_perf_opt.cli.progress import say
from llm_perf_opt.core.output_files import free_file

ResultsArgument = Annotated[str, typer.Argument(metavar="RESULTS", help="Where a study wrote to.", show_default=False)]
QuestionArgument = Annotated[
    str | None,
    typer.Argument(metavar="[QUESTION]", help='As "cheapest plan under 50 ms TPOT".', show_default=False),
]
SqlOption = Annotated[str | None, typer.Option(metavar="QUERY", help="Any select on the table `points` instead.")]
SecondsOption = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long --sql may take.")]
StudyOption = Annotated[str | None, typer.Option(metavar="NAME", help="Which of several studies. Default: all.")]
PageOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a page with the frontier, costs, filters and tables.")
]


def ask(
    results: ResultsArgument,
    question: QuestionArgument = None,
    sql: SqlOption = None,
    study: StudyOption = None,
    max_seconds: SecondsOption = 60.0,
    out: ReportFileOption = None,
    page: PageOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Answer a question from the results of studies: a named one, or SQL on the Parquet files in place."""
    from llm_perf_opt.api.ask import ask as ask_results

    reporter = choose_reporter(format_name, json_wanted)
    reserve_page(out, force=force)
    if page is not None:
        from llm_perf_opt.api.study_page import study_page

        free_file(page, force=force)
        say(f"Wrote {study_page(results, page, study=study, force=force)}")
        if question is None and sql is None:
            return
    answer = ask_results(results, question, sql=sql, study=study, max_seconds=max_seconds)
    if out is not None:
        say(f"Wrote {answer.save(out, force=force)}")
        return
    show(answer.report(), reporter, verbose=verbose)
