"""`llm-perf-opt pages`: what pages of several sizes cost, and what one more crop adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from llm_perf_opt.cli.model_options import (
    CacheOption,
    DeviceOption,
    DevicesOption,
    ExecutionOption,
    ModelArgument,
    RoutingOption,
    TrustOption,
    WeightsOption,
    takes_workload,
)
from llm_perf_opt.cli.output import (
    ForceOption,
    FormatOption,
    JsonOption,
    ReportFileOption,
    VerboseOption,
    choose_reporter,
    model_prints_apart,
    reserve_page,
    show,
)
from llm_perf_opt.cli.progress import say

SizesOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE,SIZE,...", help="Pages: 640x480, A4@150dpi, letter-landscape@300dpi. Default: a mix of sizes."
    ),
]
GridsOption = Annotated[
    str | None, typer.Option(metavar="GRID,GRID,...", help="Grids of crops in place of sizes: 1x1,2x2,2x3.")
]


@takes_workload()
def pages(
    model: ModelArgument,
    workload: Mapping[str, Any],
    sizes: SizesOption = None,
    grids: GridsOption = None,
    device: DeviceOption = None,
    devices: DevicesOption = None,
    execution: ExecutionOption = "eager",
    weights: WeightsOption = None,
    cache: CacheOption = None,
    routing: RoutingOption = None,
    out: ReportFileOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Print what pages of several sizes cost: crops, tokens, FLOPs, cache, time; and what one more crop adds."""
    from llm_perf_opt.api.pages import pages as run_pages

    reporter = choose_reporter(format_name, json_wanted)
    reserve_page(out, force=force)
    with model_prints_apart():
        answer = run_pages(
            model,
            sizes=_listed(sizes),
            grids=_listed(grids),
            device=device,
            devices_file=devices,
            execution=execution,
            weights=weights,
            cache=cache,
            routing=routing,
            trust_remote_code=trust_remote_code,
            **workload,
        )
    if out is not None:
        say(f"Wrote {answer.save(out, force=force)}")
        return
    show(answer.report(), reporter, verbose=verbose)
    say("Nothing written: add --out pages.html for the charts.")


def _listed(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())
