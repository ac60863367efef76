"""`llm-perf-opt models` and `llm-perf-opt doctor`: what can be traced by name, and what is installed."""

from __future__ import annotations

import typer

from llm_perf_opt.cli.output import FormatOption, JsonOption, VerboseOption, choose_reporter, show


def models(format_name: FormatOption = None, json_wanted: JsonOption = False, verbose: VerboseOption = False) -> None:
    """List the models known by name."""
    from llm_perf_opt.api.catalogue import known_models

    reporter = choose_reporter(format_name, json_wanted)
    show(known_models().report(), reporter, verbose=verbose)


def doctor(format_name: FormatOption = None, json_wanted: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Say what is installed and what is missing."""
    from llm_perf_opt.api.catalogue import doctor as look_for_needs

    reporter = choose_reporter(format_name, json_wanted)
    found = look_for_needs()
    show(found.report(), reporter, verbose=verbose)
    if not found.is_complete:
        raise typer.Exit(1)
