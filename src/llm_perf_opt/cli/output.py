"""The options about results, which mean the same in every verb, and the way a report reaches stdout."""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from llm_perf_opt.cli.leaving import put
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import free_file
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.protocols import FitsOneScreen, Reporter
from llm_perf_opt.core.report import Report

ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
ForceFileOption = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]
ReportFileOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write it there; the suffix is the format.")
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit 1 if an op has no price or a difference has no cause.")
]
FormatOption = Annotated[str | None, typer.Option("--format", help=f"One of: {', '.join(REPORTERS.names())}.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Short for --format json.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Print every table, row and note. Default: the answer and one screen.")
]


def choose_reporter(format_name: str | None, json_wanted: bool, out: Path | None = None) -> Reporter:
    """The format asked for, or that of the file; called before the work starts, so that a wrong name costs nothing."""
    name = asked_format(format_name, json_wanted)
    if not name and out is not None:
        from llm_perf_opt.api.answer import report_format_of

        name = report_format_of(out)
    return REPORTERS.get(name or "text")()


def asked_format(format_name: str | None, json_wanted: bool) -> str | None:
    """The name behind --format or --json; None where neither is given."""
    if json_wanted and format_name not in (None, "json"):
        raise UsageError(
            f"--json and --format {format_name} contradict each other.",
            why="--json is short for --format json",
            fix="give one of the two",
        )
    return "json" if json_wanted else format_name


def reserve_page(out: Path | None, *, force: bool) -> None:
    """Refuse, before any work, a suffix that is no format and a file that is there already."""
    from llm_perf_opt.api.answer import report_format_of

    if out is not None:
        report_format_of(out)
        free_file(out, force=force)


def model_prints_apart() -> AbstractContextManager[object]:
    """Some models print from their forward; that goes to stderr, since stdout is for the result."""
    return contextlib.redirect_stdout(sys.stderr)


def show(report: Report, reporter: Reporter, *, verbose: bool) -> None:
    """Print the result: the whole of it, or in a format for a terminal one screen."""
    if isinstance(reporter, FitsOneScreen) and not verbose:
        put(reporter.one_screen(report))
    else:
        put(reporter.render(report))
