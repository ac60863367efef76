"""`llm-perf-opt sweep`: how cost, memory and time change with batch and context."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from llm_perf_opt.cli.model_options import (
    MODEL_HELP,
    CacheOption,
    DeviceOption,
    DevicesOption,
    ExecutionOption,
    RoutingOption,
    TrustOption,
    WeightsOption,
    takes_workload,
)
from llm_perf_opt.cli.output import (
    ForceOption,
    FormatOption,
    JsonOption,
    VerboseOption,
    choose_reporter,
    model_prints_apart,
    show,
)
from llm_perf_opt.cli.progress import few_lines_per_trace, say
from llm_perf_opt.core.number_ranges import MOST_POINTS, POINTS
from llm_perf_opt.core.output_files import free_file

SweptArgument = Annotated[
    str, typer.Argument(metavar="MODEL_OR_FUNCTION", help=f"{MODEL_HELP} Or a saved function.", show_default=False)
]
BatchOption = Annotated[
    str | None,
    typer.Option(metavar="RANGE", help="Sequences run together: 1..512, a list 1,8,64, or one number. Default: 1..64."),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        metavar="RANGE", help="Tokens of each sequence, image tokens included: 1k..128k; k is 1,024. Default: 1k..8k."
    ),
]
PointsOption = Annotated[
    int, typer.Option(min=2, max=MOST_POINTS, help="At most so many values of each range, as round numbers.")
]
TracesOption = Annotated[int | None, typer.Option(min=1, help="At most so many traces of each phase. Default: 40.")]
OutOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the report there; the suffix is the format. .html has the charts."),
]
CsvOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write every point there, as one CSV table in base units.")
]
FunctionOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Keep the function there; a later sweep of that file needs no model."),
]


@takes_workload(without=("batch", "prompt_tokens", "code"), plans=True)
def sweep(
    model: SweptArgument,
    workload: Mapping[str, Any],
    batch: BatchOption = None,
    context: ContextOption = None,
    points: PointsOption = POINTS,
    device: DeviceOption = None,
    devices: DevicesOption = None,
    execution: ExecutionOption = "eager",
    traces: TracesOption = None,
    weights: WeightsOption = None,
    cache: CacheOption = None,
    routing: RoutingOption = None,
    out: OutOption = None,
    csv: CsvOption = None,
    save_function: FunctionOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Print how cost, memory and time change with batch and context.

    A few traces make a function of both, which others prove: every figure is exact, none is interpolated.
    """
    from llm_perf_opt.api.tracing import sweep as run_sweep

    reporter = choose_reporter(format_name, json_wanted)
    _refuse_files(out, csv, save_function, force=force)
    with model_prints_apart(), few_lines_per_trace():
        answer = run_sweep(
            model,
            batch=batch,
            context=context,
            points=points,
            device=device,
            devices_file=devices,
            execution=execution,
            traces=traces,
            weights=weights,
            cache=cache,
            routing=routing,
            trust_remote_code=trust_remote_code,
            **workload,
        )
    if csv is not None:
        say(f"Wrote {answer.save_points(csv, force=force)}")
    if save_function is not None:
        say(f"Wrote {answer.save_function(save_function, force=force)}")
    if out is not None:
        say(f"Wrote {answer.save(out, force=force)}")
        return
    is_short = not verbose and not json_wanted and format_name in (None, "text")
    show(answer.summary() if is_short else answer.report(), reporter, verbose=verbose)
    if csv is None and save_function is None:
        say("Nothing written: add --out sweep.html for the charts, --csv sweep.csv for all points.")


def _refuse_files(out: Path | None, *others: Path | None, force: bool) -> None:
    """A suffix that is no format, or a file that exists, is refused before any work."""
    from llm_perf_opt.api.answer import report_format_of

    if out is not None:
        report_format_of(out)
    for file in (out, *others):
        if file is not None:
            free_file(file, force=force)
