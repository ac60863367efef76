"""The verbs in one list, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from llm_perf_opt import __version__
from llm_perf_opt.cli.compare_command import compare
from llm_perf_opt.cli.doctor_command import doctor
from llm_perf_opt.cli.graph_command import graph
from llm_perf_opt.cli.models_command import models
from llm_perf_opt.cli.report_command import report
from llm_perf_opt.cli.talk import say, start_talking
from llm_perf_opt.cli.trace_command import trace
from llm_perf_opt.errors import PerfOptError

_LOADED_LATE = ("torch", "numpy", "PIL")  # dependencies that only some verbs import, and only when they run

# Plain help: importing rich for coloured boxes would take half of the time that --help may take.
app = typer.Typer(
    name="llm-perf-opt",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for verb in (trace, graph, report, compare, models, doctor):
    app.command()(verb)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"llm-perf-opt {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What a multimodal LLM runs and what it costs: no weights, no GPU, no edits.

    The result goes to stdout, the talk to stderr. Exit code 0: fine, 1: our failure, 2: wrong usage.
    """
    start_talking()


def main() -> None:
    """Entry point of `llm-perf-opt`."""
    try:
        app(prog_name="llm-perf-opt")
    except PerfOptError as error:
        _leave(error)
    except ModuleNotFoundError as error:
        if error.name not in _LOADED_LATE:
            raise
        _leave(_missing_module(error.name))


def _leave(error: PerfOptError) -> NoReturn:
    say(f"error: {error}")
    sys.exit(error.exit_code)


def _missing_module(name: str) -> PerfOptError:
    return PerfOptError(
        f"{name} is not installed.",
        why="running a model needs it; reading a trace does not",
        fix="llm-perf-opt doctor shows what is missing and the command that brings it",
    )
