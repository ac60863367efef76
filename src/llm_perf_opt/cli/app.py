"""The command itself, and its help in the order of need.

Verbs stand under what people do; a verb shows its first options, then the others under headings.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from llm_perf_opt import __version__
from llm_perf_opt.cli.output import exit_codes, put
from llm_perf_opt.cli.progress import log_to_stderr, signs_of_life, visible_streams

FIRST_OPTIONS = 15
_HERE = "llm_perf_opt.cli."
# What people do -> verb -> its function or group, and what fits on a line of the list; `VERB --help` has the rest.
VERBS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Look at a model": {
        "trace": ("trace_command:trace", "Run a model without weights: cost of each stage, time on a device."),
        "graph": ("graph_command:graph", "Draw a trace as a picture that a person can read."),
        "cost": ("cost_command:cost", "Show what each stage costs, from several sources."),
        "export": ("export_command:export", "Export parts as static graphs, and say why others fail."),
        "report": ("report_command:report", "Write everything that needs no weights on one page."),
    },
    "Choose hardware": {
        "serve": ("serve_command:serve", "Find the GPU, how many, and the plan: fit, speed and price."),
        "train": ("train_command:train", "Say whether a training run fits, how fast it is, and what it costs."),
        "sweep": ("sweep_command:sweep", "Show how cost changes with users and input, or from page to page."),
        "study": ("study_command:study", "Compute thousands of points: models x plans x devices."),
        "ask": ("study_command:ask", "Ask the results of a study a question, also in SQL."),
    },
    "Make it faster": {
        "advise": ("advise_command:advise", "Show where the time goes, and what to change first."),
        "compare": ("compare_command:compare", "Explain what changed between two traces or models; check budgets."),
    },
    "Measure": {
        "profile": ("profile_command:profile", "Run a model for real on this machine, and find its bottleneck."),
        "join": ("join_command:join", "Match a GPU recording with the traced ops: time, MFU, MBU."),
    },
    "Set up and look up": {
        "models": ("devices_command:models", "List the models known by name."),
        "devices": ("devices_command:devices_app", "List devices, describe one, measure this machine, add your own."),
        "tables": ("tables_command:tables_app", "List, add or remove tables of measured kernels."),
        "engines": ("engines_command:engines_app", "Install an engine that replays traffic."),
        "cache": ("cache_command:cache_app", "List or clear the stored traces and step times."),
        "doctor": ("devices_command:doctor", "Check what is installed and what is missing."),
    },
}
_PLACES = {name: place for verbs in VERBS.values() for name, (place, _) in verbs.items()}

# Verbs of earlier versions -> what to type now.
ENDED: Mapping[str, str] = {
    "predict": "llm-perf-opt trace MODEL --device l4 for one run, llm-perf-opt serve MODEL --gpus l4 for a server",
    "plan": 'llm-perf-opt serve MODEL --gpus "8x h100-sxm" --input 4000 --users 32, or with --traffic',
    "pages": "llm-perf-opt sweep MODEL --page A4@150dpi,640x640, or --crops 1x1,2x2",
}


class Verb(TyperCommand):
    """A verb that shows at most fifteen options on its first help screen."""

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
    from llm_perf_opt.core.plugins import workload_options
    from llm_perf_opt.core.work_limits import WorkLimits

    of_models = {name for name, (_, takers) in workload_options().items() if takers}
    limits = set(WorkLimits.options())
    common = [record for name, record in options if name not in of_models | limits]
    yield "Options", [*common[: FIRST_OPTIONS - 1], *common[-1:]]  # the last is --help
    yield "More options", common[FIRST_OPTIONS - 1 : -1]
    yield "Of some models", [record for name, record in options if name in of_models]
    yield "Limits of this run", [record for name, record in options if name in limits]


# Verbs that may read times from tables.
_WITH_TABLES = ("trace", "report", "serve", "train", "sweep", "study", "compare")


def _tables_option() -> Any:
    """`--tables`: for as long as the verb runs it stands in the variable, which further processes see too."""

    def use(ctx: Any, param: Any, value: str | None) -> None:
        if value is None:
            return
        from llm_perf_opt.timing.kernels.table_sets import VARIABLE, named_set

        named_set(value)  # a wrong one is refused before any work
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = value
        ctx.call_on_close(
            lambda: os.environ.pop(VARIABLE, None) if before is None else os.environ.update({VARIABLE: before})
        )

    return TyperOption(
        param_decls=["--tables"],
        callback=use,
        expose_value=False,
        metavar="DIR",
        help="Tables of measured kernels: a folder, or a set of `llm-perf-opt tables list`.",
    )


class _LoadedVerbs(Mapping[str, Any]):
    """The commands by name. A command is imported when it is called: a run needs one of them, and help none."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            module, _, attribute = _PLACES[name].partition(":")
            loaded = getattr(importlib.import_module(_HERE + module), attribute)
            alone = (
                loaded if isinstance(loaded, typer.Typer) else typer.Typer(rich_markup_mode=None, add_completion=False)
            )
            if alone is not loaded:
                alone.command(name, cls=Verb)(loaded)
            self._loaded[name] = command = typer.main.get_command(alone)
            if name in _WITH_TABLES:
                command.params.append(_tables_option())
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


class Verbs(TyperGroup):
    """All verbs, under what people do."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _LoadedVerbs()  # type: ignore[assignment]  # nobody adds a verb while it runs

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A verb that was removed says in one line what replaces it."""
        if args and args[0] in ENDED:
            typer.echo(f"{args[0]} was removed. Use {ENDED[args[0]]}.", err=True)
            raise typer.Exit(2)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A heading for each kind of work."""
        for heading, verbs in VERBS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, line) for name, (_, line) in verbs.items()])


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
    """Show what a multimodal LLM runs, what it costs and how fast it is: no weights, no GPU, no edits.

    For a module of your own, use Python: import llm_perf_opt as lpo; lpo.trace(module, (inputs,)).

    Results go to stdout, progress to stderr. Exit codes: 0 success, 1 failure, 2 wrong usage,
    3 a budget or an SLO is not met.
    """
    log_to_stderr()


def main() -> None:
    """Entry point of `llm-perf-opt`."""
    with visible_streams(), exit_codes(), signs_of_life(sys.argv[1:]):
        app(prog_name="llm-perf-opt")
