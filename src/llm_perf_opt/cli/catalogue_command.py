"""`llm-perf-opt models` and `llm-perf-opt doctor`: what can be traced by name, and what is installed."""

from __future__ import annotations

from typing import Annotated

import typer

from llm_perf_opt.cli.output import FormatOption, JsonOption, VerboseOption, choose_reporter, show

SearchOption = Annotated[
    str | None, typer.Option("--search", metavar="WORDS", help="List the names that hold these words, such as qwen.")
]


def models(
    search: SearchOption = None,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """List the models known by name: those with code of their own here, and a catalogue of released ones."""
    from llm_perf_opt.api.catalogue import known_models

    reporter = choose_reporter(format_name, json_wanted)
    show(known_models(search).report(), reporter, verbose=verbose)


def doctor(format_name: FormatOption = None, json_wanted: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Say what is installed and what is missing."""
    from llm_perf_opt.api.catalogue import doctor as look_for_needs

    reporter = choose_reporter(format_name, json_wanted)
    found = look_for_needs()
    show(found.report(), reporter, verbose=verbose)
    if not found.is_complete:
        raise typer.Exit(1)
