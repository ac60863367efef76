"""`llm-perf-opt sweep`: how cost, memory and time change with users and input, or from page to page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llm_perf_opt.cli.model_options import (
    MODEL_HELP,
    CacheOption,
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
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.number_ranges import MOST_POINTS, POINTS, read_range
from llm_perf_opt.core.output_files import free_file

if TYPE_CHECKING:
    from llm_perf_opt.api.answer import Answer
    from llm_perf_opt.core.report import Report

SweptArgument = Annotated[
    str, typer.Argument(metavar="MODEL_OR_FUNCTION", help=f"{MODEL_HELP} Or a saved function.", show_default=False)
]
UsersOption = Annotated[
    str | None,
    typer.Option(metavar="RANGE", help="Concurrent sequences: 1..512, a list 1,8,64, or one number. Default: 1..64."),
]
InputOption = Annotated[
    str | None,
    typer.Option(
        metavar="RANGE",
        help="Prompt length of each sequence, image tokens included: 1k..32k; k is 1,024. Default: 1k..8k.",
    ),
]
OutputOption = Annotated[
    int, typer.Option(min=0, help="Tokens to decode after the prefill: 0 or 1; with pages any number.")
]
GpusOption = Annotated[
    str | None,
    typer.Option(
        metavar="GPU,...", help="GPUs to time it on: l4,h100-sxm, or all; with a plan a cluster, 8x h100-sxm."
    ),
]
PageOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE,...", help="Pages to compare in place of a grid: 640x480, A4@150dpi, letter-landscape@300dpi."
    ),
]
CropsOption = Annotated[
    str | None, typer.Option(metavar="COLUMNSxROWS,...", help="Pages to compare, as grids of crops: 1x1,2x2,2x3.")
]
PointsOption = Annotated[
    int, typer.Option(min=2, max=MOST_POINTS, help="Largest number of values of each range; they are round numbers.")
]
TracesOption = Annotated[int | None, typer.Option(min=1, help="Largest number of traces of each phase. Default: 40.")]
OutOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File to write: of a model .html is a page to explore, else the report."),
]
CsvOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File for every point, as one CSV table in base units.")
]
FunctionOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File for the function; a later sweep of that file needs no model."),
]


@takes_workload(without=("batch", "prompt_tokens", "decode_steps", "code", "crops"), plans=True)
def sweep(
    model: SweptArgument,
    users: UsersOption = None,
    input: InputOption = None,
    output: OutputOption = 1,
    gpus: GpusOption = None,
    page: PageOption = None,
    crops: CropsOption = None,
    execution: ExecutionOption = "fused",
    points: PointsOption = POINTS,
    traces: TracesOption = None,
    weights: WeightsOption = None,
    cache: CacheOption = None,
    out: OutOption = None,
    csv: CsvOption = None,
    save_function: FunctionOption = None,
    devices: DevicesOption = None,
    routing: RoutingOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    trust_remote_code: TrustOption = False,
    *,
    workload: Mapping[str, Any],
) -> None:
    """Print how cost, memory and time change with users and input, or from page to page.

    A few traces give a function of users and input, and further traces prove it: figures are exact, not interpolated.
    """
    reporter = choose_reporter(format_name, json_wanted)
    _refuse_files(out, csv, save_function, force=force)
    options = {
        "gpus": gpus,
        "devices_file": devices,
        "execution": execution,
        "weights": weights,
        "cache": cache,
        "routing": routing,
        "trust_remote_code": trust_remote_code,
        **({} if output == 1 else {"decode_steps": output}),
        **workload,
    }
    is_of_pages = page is not None or crops is not None
    if not is_of_pages:
        grid = {"users": users, "input": input, "points": points, "traces": traces}
        answer, summary = _grid({"model": model, **grid, **options}, csv, save_function, force=force)
    else:
        _refuse_for_pages({"--traces": traces, "--csv": csv, "--save-function": save_function})
        answer, summary = _pages({"model": model, "page": page, "crops": crops, **_numbers(users, input), **options})
    if out is not None:
        _write(answer, out, force=force)
        return
    is_short = not verbose and not json_wanted and format_name in (None, "text")
    show(summary if is_short else answer.report(), reporter, verbose=verbose)
    if csv is None and save_function is None:
        more = "" if is_of_pages else ", --csv sweep.csv for all points"
        say(f"Nothing was saved. Add --out sweep.html for a page{more}.")


def _write(answer: Answer, out: Path, *, force: bool) -> None:
    """Of a grid of a model that can be served a page to explore; everything else as a report."""
    from llm_perf_opt.api.explore import explore_page, why_no_page
    from llm_perf_opt.api.sweep import SweepAnswer

    if out.suffix != ".html" or not isinstance(answer, SweepAnswer):
        say(f"Wrote {answer.save(out, force=force)}")
    elif (reason := why_no_page(answer)) is not None:
        say(f"Wrote {answer.save(out, force=force)}: the charts of the grid. There is no page to explore: {reason}")
    else:
        with model_prints_apart():
            explore_page(answer, out, force=force)
        say(f"Wrote {out}. Open it in a browser and move the sliders; the report is --format html.")


def _grid(
    options: Mapping[str, Any], csv: Path | None, save_function: Path | None, *, force: bool
) -> tuple[Answer, Report]:
    """A grid of users and inputs, with its report for a terminal; its files are written."""
    from llm_perf_opt.api.tracing import sweep as run_sweep

    with model_prints_apart(), few_lines_per_trace():
        answer = run_sweep(**options)
    if csv is not None:
        say(f"Wrote {answer.save_points(csv, force=force)}")
    if save_function is not None:
        say(f"Wrote {answer.save_function(save_function, force=force)}")
    return answer, answer.summary()


def _pages(options: Mapping[str, Any]) -> tuple[Answer, Report]:
    """Pages side by side; a terminal gets the whole report."""
    from llm_perf_opt.api.pages import pages

    with model_prints_apart():
        answer = pages(**options)
    return answer, answer.report()


def _numbers(users: str | None, prompt: str | None) -> dict[str, int]:
    """The workload of every page; it is one, since the pages are what varies."""
    given = {"batch": ("--users", users), "prompt_tokens": ("--input", prompt)}
    numbers = {}
    for name, (option, text) in given.items():
        if text is not None:
            numbers[name], *more = read_range(text, option).values
            if more:
                raise UsageError(
                    f"{option} {text[:40]} and pages cannot both vary.",
                    why="--page and --crops show each page with one number of users and one prompt length",
                    fix=f"give one number to {option}, or leave --page and --crops out",
                )
    return numbers


def _refuse_for_pages(of_grid: Mapping[str, Any]) -> None:
    for option in (option for option, given in of_grid.items() if given is not None):
        raise UsageError(
            f"A sweep of pages takes no {option}.",
            why="it belongs to a grid of users and input; each page is one trace",
            fix=f"leave {option} out; --out pages.csv has the tables",
        )


def _refuse_files(out: Path | None, *others: Path | None, force: bool) -> None:
    """A suffix that is no format, or a file that exists, is refused before any work."""
    from llm_perf_opt.api.answer import report_format_of

    if out is not None:
        report_format_of(out)
    for file in (out, *others):
        if file is not None:
            free_file(file, force=force)
