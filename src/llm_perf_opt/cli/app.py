"""The verbs in one list."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llm_perf_opt import __version__
from llm_perf_opt.cli.compare_command import compare
from llm_perf_opt.cli.cost_command import cost
from llm_perf_opt.cli.devices_command import devices_app, doctor, models
from llm_perf_opt.cli.engines_command import engines_app
from llm_perf_opt.cli.export_command import export
from llm_perf_opt.cli.graph_command import graph
from llm_perf_opt.cli.help_screens import Verb, Verbs
from llm_perf_opt.cli.join_command import join
from llm_perf_opt.cli.output import exit_codes, put
from llm_perf_opt.cli.profile_command import profile
from llm_perf_opt.cli.progress import log_to_stderr, signs_of_life, visible_streams
from llm_perf_opt.cli.report_command import report
from llm_perf_opt.cli.serve_command import serve
from llm_perf_opt.cli.study_command import ask, study
from llm_perf_opt.cli.sweep_command import sweep
from llm_perf_opt.cli.trace_command import trace

# Plain help: importing rich for coloured boxes would take half of the time that --help may take.
app = typer.Typer(
    cls=Verbs,
    name="llm-perf-opt",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for verb, line in (  # what fits on a line of the list; `VERB --help` tells the rest
    (trace, "Run a model without weights: cost of each stage, time on a device."),
    (graph, "Fold a trace into a picture that a person can read."),
    (cost, "What each stage costs, from several sources."),
    (sweep, "How cost changes with users and input, or from page to page."),
    (report, "Everything that needs no weights, on one page."),
    (serve, "Which GPU, how many, which plan; does it fit, how fast, what cost."),
    (study, "Thousands of points: models x plans x devices."),
    (ask, "Questions to the results of a study, also in SQL."),
    (profile, "Run it here for real, and say what holds it back."),
    (join, "A GPU recording on the traced ops: time, MFU, MBU."),
    (export, "Parts as static graphs, and why others refuse."),
    (compare, "What changed between two traces or models; budgets."),
    (models, "The models known by name."),
    (doctor, "What is installed and what is missing."),
):
    app.command(short_help=line, cls=Verb)(verb)
app.add_typer(engines_app, short_help="Make the environment of an engine for replays.")
app.add_typer(devices_app, short_help="List devices, describe one, measure this one, add your own.")


def _show_version(wanted: bool) -> None:
    if wanted:
        put(f"llm-perf-opt {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What a multimodal LLM runs and what it costs: no weights, no GPU, no edits.

    A module of your own is asked from Python: import llm_perf_opt as lpo; lpo.trace(module, (inputs,)).

    The result goes to stdout, progress to stderr. Exit code 0: fine, 1: our failure, 2: wrong usage,
    3: a budget is broken.
    """
    log_to_stderr()


def main() -> None:
    """Entry point of `llm-perf-opt`."""
    with visible_streams(), exit_codes(), signs_of_life(" ".join(sys.argv[1:2])):
        app(prog_name="llm-perf-opt")
