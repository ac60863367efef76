"""`study`: a declared grid of models, plans, formats and devices, computed into Parquet; `ask` queries it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from llm_perf_opt.cli.model_options import TrustOption
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
from llm_perf_opt.cli.progress import few_lines_per_trace, plain_stderr, say
from llm_perf_opt.core.output_files import free_file

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The study: a YAML file.", show_default=False)]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Values that replace those in the file.", show_default=False),
]
OutOption = Annotated[
    str,
    typer.Option("--out", metavar="PLACE", help="Folder or address for the results. Points in it are not repeated."),
]
EngineOption = Annotated[
    str, typer.Option(help="Where to compute: local, in processes of this machine; or ray (extra `ray`).")
]
AddressOption = Annotated[
    str | None, typer.Option(help="Address of a Ray cluster, or auto. Default: Ray on this machine.")
]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Number of processes. Default: as cores and memory allow.")
]
MemoryOption = Annotated[
    float | None, typer.Option(min=0.1, metavar="GIB", help="Memory that one task may take. Default: 2 GiB.")
]
RetryOption = Annotated[bool, typer.Option("--retry-failed", help="Compute failed points again.")]
_LINE_EVERY_S = 10.0


def study(
    file: FileArgument,
    overrides: OverridesArgument = None,
    out: OutOption = "results",
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    task_memory_gib: MemoryOption = None,
    retry_failed: RetryOption = False,
    trust_remote_code: TrustOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Compute a grid of models, plans, formats and devices into Parquet files, which llm-perf-opt ask queries.

    A killed study resumes where it stopped. For one question about one model use sweep or serve.
    """
    from llm_perf_opt.api.study import study as run_study

    reporter = choose_reporter(format_name, json_wanted)
    with few_lines_per_trace(), study_bar() as progress:
        answer = run_study(
            file,
            overrides or (),
            out=out,
            engine=engine,
            address=address,
            workers=workers,
            task_memory_gib=task_memory_gib,
            retry_failed=retry_failed,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    show(answer.report(), reporter, verbose=verbose)
    say(f"Wrote {answer.points:,} points to {answer.folder}")
    say(f'Next: llm-perf-opt ask {answer.folder} "cheapest plan under 50 ms TPOT"')


class _Lines:
    """Progress where stderr is not a terminal: a line every few seconds."""

    def __init__(self) -> None:
        self.points = self.done = self.failed = self.kept = 0
        self.began = self.told = time.monotonic()

    def begin(self, points: int, done: int) -> None:
        """How many there are, and how many are there already."""
        self.points, self.done, self.kept = points, done, done
        say(f"{points:,} points, {done:,} of them already computed")

    def advance(self, points: int, failed: int) -> None:
        """A task is finished."""
        self.done, self.failed = self.done + points, self.failed + failed
        now = time.monotonic()
        if now - self.told >= _LINE_EVERY_S and self.done < self.points:
            self.told = now
            rate = (self.done - self.kept) / (now - self.began)
            left = (self.points - self.done) / rate
            say(f"  {self.done:,} of {self.points:,} points, {self.failed:,} failed, {rate:,.1f}/s, {left:,.0f} s left")


class _Bar:
    """The same as a bar of rich."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, failed=0, rate="")
        self._failed = 0

    def begin(self, points: int, done: int) -> None:
        """The bar begins at what was computed before."""
        self._bar.update(self._task, total=points, completed=done)

    def advance(self, points: int, failed: int) -> None:
        """A task is finished."""
        self._failed += failed
        speed = self._bar.tasks[0].speed
        rate = "" if speed is None else f"{speed:,.1f}/s"
        self._bar.update(self._task, advance=points, failed=self._failed, rate=rate)


@contextmanager
def study_bar() -> Iterator[_Lines | _Bar]:
    """Points done, failed, rate and time left, on stderr."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("points, {task.fields[failed]} failed", markup=False),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=plain_stderr()), refresh_per_second=4, transient=True) as bar:
        yield _Bar(bar)


ResultsArgument = Annotated[
    str, typer.Argument(metavar="RESULTS", help="Folder or address with the results of a study.", show_default=False)
]
QuestionArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[QUESTION]", help='A question such as "cheapest plan under 50 ms TPOT".', show_default=False
    ),
]
SqlOption = Annotated[
    str | None, typer.Option(metavar="QUERY", help="A SELECT on the table `points`, instead of a question.")
]
SecondsOption = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time limit of --sql.")]
StudyOption = Annotated[str | None, typer.Option(metavar="NAME", help="Study to query, of several. Default: all.")]
PageOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write an HTML page with the frontier, costs, filters and tables.")
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
    """Answer a question from the results of studies: a named question, or SQL on the Parquet files."""
    from llm_perf_opt.api.ask import ask as ask_results

    reporter = choose_reporter(format_name, json_wanted)
    reserve_page(out, force=force)
    if page is not None:
        from llm_perf_opt.api.ask import study_page

        free_file(page, force=force)
        say(f"Wrote {study_page(results, page, study=study, force=force)}")
        if question is None and sql is None:
            return
    answer = ask_results(results, question, sql=sql, study=study, max_seconds=max_seconds)
    if out is not None:
        say(f"Wrote {answer.save(out, force=force)}")
        return
    show(answer.report(), reporter, verbose=verbose)
