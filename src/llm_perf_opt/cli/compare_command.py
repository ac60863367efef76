"""`llm-perf-opt compare`: what differs between two traces, why, and whether it stays within the budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llm_perf_opt.cli.model_options import (
    MODEL_HELP,
    SERVER_WORDS,
    CacheOption,
    DevicesOption,
    ExecutionOption,
    RatesOption,
    TrustOption,
    WeightsOption,
    in_server_words,
    takes_workload,
    trace_or_load,
)
from llm_perf_opt.cli.output import FormatOption, JsonOption, VerboseOption, choose_reporter, show
from llm_perf_opt.core.errors import BrokenBudgetError, PerfOptError
from llm_perf_opt.core.units import format_number_of

if TYPE_CHECKING:
    from llm_perf_opt.api.trace import Trace

SIDE_HELP = "A trace file, a folder of traces, or a model, which is traced first."
LeftArgument = Annotated[str, typer.Argument(metavar="A", help=SIDE_HELP, show_default=False)]
RightArgument = Annotated[str, typer.Argument(metavar="B", help=f"The same. {MODEL_HELP}", show_default=False)]
StrictOption = Annotated[bool, typer.Option("--strict", help="Exit 1 if any difference is unexplained.")]
PhaseOption = Annotated[list[str] | None, typer.Option("--phase", help="Compare only this phase. Repeatable.")]
BudgetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        help="Limit for B; exit 3 if B exceeds it. On FLOPs, bytes, peak_memory, cache, or with --gpus on bound and "
        'time, such as "prefill.flops<=+1%", "peak_memory<=20GiB", "decode.time<=12ms". Repeatable.',
    ),
]
GpusOption = Annotated[
    str | None,
    typer.Option(
        metavar="GPU",
        help="GPU to time both on, such as h100-sxm or 8x h100-sxm. Default: no times, or for a budget on time the "
        "device that both traces were made for.",
    ),
]
RowsOption = Annotated[int, typer.Option("--rows", min=1, help="Number of module families to list.")]


@takes_workload(words=SERVER_WORDS)
def compare(
    left: LeftArgument,
    right: RightArgument,
    workload: Mapping[str, Any],
    weights: WeightsOption = None,
    cache: CacheOption = None,
    phase: PhaseOption = None,
    budget: BudgetOption = None,
    gpus: GpusOption = None,
    devices: DevicesOption = None,
    execution: ExecutionOption = "fused",
    rates: RatesOption = None,
    rows: RowsOption = 25,
    strict: StrictOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Compare two traces or two models and name the cause of every difference; two traces need no torch."""
    from llm_perf_opt.comparisons import parse_budget

    reporter = choose_reporter(format_name, json_wanted)
    for text in budget or ():
        parse_budget(text)  # one that cannot be meant is refused before any work
    formats = {"weights": weights, "cache": cache}
    before, after = (_side(side, (left, right), workload, formats, trust_remote_code) for side in (left, right))
    answer = before.compare(
        after,
        phases=phase or (),
        budgets=budget or (),
        rows=rows,
        device=gpus,
        devices_file=devices,
        execution=execution,
        rates=rates,
    )
    show(answer.report(), reporter, verbose=verbose)
    if answer.budgets_broken:
        raise _violation(answer.budgets_broken)
    if strict and answer.unexplained:
        raise _unexplained(answer.unexplained)


def _side(
    side: str,
    sides: tuple[str, str],
    workload: Mapping[str, Any],
    formats: Mapping[str, str | None],
    trust_remote_code: bool,
) -> Trace:
    """A trace as it was made, or a new one of the model; what neither side could take is refused."""
    from llm_perf_opt.tracing.trace_files import is_trace, refuse_options

    if all(map(is_trace, sides)):
        refuse_options(in_server_words(workload))
    taken = {} if is_trace(side) else workload
    return trace_or_load(
        side, taken, weights=formats["weights"], cache=formats["cache"], trust_remote_code=trust_remote_code
    )


def _violation(budgets: tuple[str, ...]) -> PerfOptError:
    return BrokenBudgetError(
        f"These budgets are not met: {', '.join(budgets)}.",
        why="B exceeds the limit, or a figure is unknown; the tables show both sides, and the notes say why",
        fix="look at the table of differences, which starts with the largest change; or change the budget",
    )


def _unexplained(count: int) -> PerfOptError:
    return PerfOptError(
        f"{format_number_of(count, 'difference')} {'has' if count == 1 else 'have'} no known cause.",
        why="--strict was given, and nothing in the two traces proves a cause",
        fix="see the first rows of the table of differences, or leave --strict out",
    )
