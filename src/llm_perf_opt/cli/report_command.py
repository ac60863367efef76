"""`llm-perf-opt report`: the tables of a trace made earlier, in any format, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_perf_opt.cli.output import FormatOption, JsonOption, choose_reporter, show

PATHS_HELP = "Trace files, or folders that hold them."


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="TRACE...", help=PATHS_HELP, show_default=False)],
    times: Annotated[
        list[Path] | None, typer.Option(metavar="TRACE", help="Traces that measured time, to put on the costs.")
    ] = None,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
) -> None:
    """Print the per-stage table of a trace made earlier; needs no torch."""
    from llm_perf_opt.pipeline import report_on

    show(report_on(paths, times or ()), choose_reporter(format_name, json_wanted))
