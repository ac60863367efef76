"""The options `--format` and `--json`, which mean the same in every verb, and the way a report reaches stdout."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llm_perf_opt.document import Report
from llm_perf_opt.errors import UsageError
from llm_perf_opt.plugins import REPORTERS, Reporter

FormatOption = Annotated[str | None, typer.Option("--format", help=f"One of: {', '.join(REPORTERS.names())}.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Short for --format json.")]


def choose_reporter(format_name: str | None, json_wanted: bool) -> Reporter:
    """The format asked for; called before the work starts, so that a wrong name costs nothing."""
    if json_wanted and format_name not in (None, "json"):
        raise UsageError(
            f"--json and --format {format_name} contradict each other.",
            why="--json is short for --format json",
            fix="give one of the two",
        )
    return REPORTERS.get("json" if json_wanted else format_name or "text")()


def reporter_of_suffix(suffix: str) -> Reporter:
    """The format whose files end like this."""
    known = {REPORTERS.get(name).suffix: name for name in REPORTERS.names()}
    if suffix not in known:
        raise UsageError(
            f"No format ends in {suffix!r}.", why=f"known: {', '.join(known)}", fix="name the file so, or give --format"
        )
    return REPORTERS.get(known[suffix])()


def show(report: Report, reporter: Reporter) -> None:
    """Print the result."""
    sys.stdout.write(reporter.render(report))
    sys.stdout.flush()
