"""`llm-perf-opt cost`: what each stage costs, from several sources held side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_perf_opt.cli.output import (
    ForceOption,
    FormatOption,
    JsonOption,
    StrictOption,
    choose_reporter,
    model_prints_apart,
    show,
)
from llm_perf_opt.cli.talk import say
from llm_perf_opt.cli.workload_options import RoutingOption, SourceArgument, TrustOption, takes_workload
from llm_perf_opt.errors import PerfOptError
from llm_perf_opt.plugins import WITNESSES, Workload

SourcesOption = Annotated[
    str | None,
    typer.Option(help=f"Whom to ask, with commas: counted, {', '.join(WITNESSES.names())}. All of them unless told."),
]
OutOption = Annotated[Path | None, typer.Option(help="Folder for static_compute.json, .md, .csv, .html.")]


@takes_workload()
def cost(
    model: SourceArgument,
    workload: Workload,
    sources: SourcesOption = None,
    routing: RoutingOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    strict: StrictOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Print what MODEL_OR_TRACE costs per stage, from independent sources, with every difference explained."""
    from llm_perf_opt.pipeline.cost_files import free_cost_files, write_cost
    from llm_perf_opt.pipeline.costing import CostRequest, run_cost

    reporter = choose_reporter(format_name, json_wanted)
    if out is not None:
        free_cost_files(out, force=force)
    request = CostRequest(
        model=model,
        workload=workload,
        sources=tuple(name.strip() for name in sources.split(",")) if sources else None,
        routing=routing,
        trust_remote_code=trust_remote_code,
    )
    with model_prints_apart():
        run = run_cost(request)
    show(run.report, reporter)
    if out is None:
        say("Nothing written: add --out DIR to keep the report.")
    else:
        for file in write_cost(run, out, force=force):
            say(f"Wrote {file}")
    if strict:
        _refuse_holes(run.static.unpriced_ops, len(run.static.ledger.unexplained))


def _refuse_holes(unpriced_ops: int | None, unexplained: int) -> None:
    if unpriced_ops:
        raise PerfOptError(
            f"{unpriced_ops:,} ops have no price and are not in the totals.",
            why="--strict was given",
            fix="see the warnings above for their names; without --strict the report stands with its holes listed",
        )
    if unexplained:
        raise PerfOptError(
            f"{unexplained} differences between sources have no known cause.",
            why="--strict was given",
            fix="see the ledger above; ask fewer sources with --sources, or report the difference",
        )
