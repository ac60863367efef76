"""`llm-perf-opt compare`: what differs between two traces, why, and whether it stays within the budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_perf_opt.cli.output import FormatOption, JsonOption, choose_reporter, show
from llm_perf_opt.core.errors import PerfOptError

SIDE_HELP = "A trace file, or a folder that holds some."
LeftArgument = Annotated[Path, typer.Argument(metavar="A", help=SIDE_HELP, show_default=False)]
RightArgument = Annotated[Path, typer.Argument(metavar="B", help=SIDE_HELP, show_default=False)]
StrictOption = Annotated[bool, typer.Option("--strict", help="Exit 1 if any difference is unexplained.")]
PhaseOption = Annotated[list[str] | None, typer.Option("--phase", help="Compare this phase only; may be repeated.")]
BudgetOption = Annotated[
    list[str] | None,
    typer.Option("--budget", help='Exit 1 unless it holds for B, like "prefill.flops<=+1%"; may be repeated.'),
]
RowsOption = Annotated[int, typer.Option("--rows", min=1, help="Families of modules to list.")]


def compare(
    left: LeftArgument,
    right: RightArgument,
    phase: PhaseOption = None,
    budget: BudgetOption = None,
    rows: RowsOption = 25,
    strict: StrictOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
) -> None:
    """Hold two traces side by side and name the cause of every difference; needs no torch."""
    from llm_perf_opt.api.tracing import load

    reporter = choose_reporter(format_name, json_wanted)
    answer = load(left).compare(load(right), phases=phase or (), budgets=budget or (), rows=rows)
    show(answer.report(), reporter)
    if answer.budgets_broken:
        raise _violation(answer.budgets_broken)
    if strict and answer.unexplained:
        raise _unexplained(answer.unexplained)


def _violation(budgets: tuple[str, ...]) -> PerfOptError:
    return PerfOptError(
        f"Budgets that do not hold: {', '.join(budgets)}.",
        why="B is beyond the limit, or the figure is not known; the table of budgets has both sides",
        fix="the table of differences starts with what changed most; or change the budget",
    )


def _unexplained(count: int) -> PerfOptError:
    return PerfOptError(
        f"Unexplained differences: {count:,}.",
        why="--strict was given, and the two traces hold no proof of a known cause for them",
        fix="they are the first rows of the table of differences; without --strict the report stands as it is",
    )
