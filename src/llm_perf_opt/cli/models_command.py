"""`llm-perf-opt models`: what can be traced by name."""

from __future__ import annotations

from llm_perf_opt.cli.output import FormatOption, JsonOption, choose_reporter, show
from llm_perf_opt.core.protocols import MODELS
from llm_perf_opt.core.report import Column, Note, Report, Table


def models(format_name: FormatOption = None, json_wanted: JsonOption = False) -> None:
    """List the models known by name."""
    rows = tuple((name, MODELS.get(name).title, f"llm-perf-opt trace {name}") for name in MODELS.names())
    table = Table(title="", columns=(Column("model"), Column("what it is"), Column("command")), rows=rows)
    folder = Note(
        "Any other Hugging Face model: llm-perf-opt trace DIR, with config.json in DIR and no weights; "
        "add --trust-remote-code if DIR brings its own Python code."
    )
    show(
        Report(title="Models known by name", tables=(table,), notes=(folder,)),
        choose_reporter(format_name, json_wanted),
    )
