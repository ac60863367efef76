"""Help in the order of need: verbs under what people do, of each verb the first options, the others under headings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from llm_perf_opt.core.plugins import workload_options
from llm_perf_opt.core.work_limits import WorkLimits

FIRST_OPTIONS = 15
VERBS: Mapping[str, tuple[str, ...]] = {
    "Look at a model": ("trace", "graph", "cost", "export", "report"),
    "Choose hardware": ("serve", "sweep", "study", "ask"),
    "Measure": ("profile", "join", "compare"),
    "Keep house": ("models", "devices", "engines", "doctor"),
}


# Verbs of earlier versions -> what is typed in their place.
ENDED: Mapping[str, str] = {
    "predict": "llm-perf-opt trace MODEL --device l4 for one run, llm-perf-opt serve MODEL --gpus l4 for a server",
    "plan": 'llm-perf-opt serve MODEL --gpus "8x h100-sxm" --input 4000 --users 32, or with --traffic',
    "pages": "llm-perf-opt sweep MODEL --page A4@150dpi,640x640, or --crops 1x1,2x2",
}


class Verb(TyperCommand):
    """A verb whose first screen shows at most fifteen options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, the first options, and the rest under headings."""
        shown = [
            (param, record) for param in self.get_params(ctx) if (record := param.get_help_record(ctx)) is not None
        ]
        arguments = [record for param, record in shown if param.param_type_name == "argument"]
        options = [(str(param.name), record) for param, record in shown if param.param_type_name == "option"]
        for heading, records in (("Arguments", arguments), *_headings(options)):
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _headings(options: list[tuple[str, tuple[str, str]]]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Options of some models and limits of the run come last; of the others the first fifteen come first."""
    of_models = {name for name, (_, takers) in workload_options().items() if takers}
    limits = set(WorkLimits.options())
    common = [record for name, record in options if name not in of_models | limits]
    yield "Options", [*common[: FIRST_OPTIONS - 1], *common[-1:]]  # the last is --help
    yield "More options", common[FIRST_OPTIONS - 1 : -1]
    yield "Of some models", [record for name, record in options if name in of_models]
    yield "Limits of this run", [record for name, record in options if name in limits]


class Verbs(TyperGroup):
    """All verbs, under what people do."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A verb that has ended says in one line what is typed in its place."""
        if args and args[0] in ENDED:
            typer.echo(f"{args[0]} has ended. In its place: {ENDED[args[0]]}.", err=True)
            raise typer.Exit(2)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A heading for each kind of work; a verb that no heading names would be lost, so it is an error."""
        named = {name for names in VERBS.values() for name in names}
        if named != set(self.commands):
            raise ValueError(f"verbs and their headings differ: {sorted(named ^ set(self.commands))}")
        limit = formatter.width - 6 - max(map(len, named))
        for heading, names in VERBS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in names])
