"""`llm-perf-opt cost`: what each stage costs, from several sources side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llm_perf_opt.cli.model_options import (
    CacheOption,
    RoutingOption,
    SourceArgument,
    TorchDeviceOption,
    TrustOption,
    WeightsOption,
    takes_workload,
    trace_or_load,
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
from llm_perf_opt.cli.progress import say
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plugins import SOURCES
from llm_perf_opt.core.source_figures import left_out

if TYPE_CHECKING:
    from llm_perf_opt.api.cost import CostAnswer

SourcesOption = Annotated[
    str | None,
    typer.Option(help=f"Sources to use, with commas: counted, {', '.join(SOURCES.names())}. Default: all of them."),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit 1 if an op has no price, a difference has no cause, or a named source has no figure or left work "
        "out.",
    ),
]
OutOption = Annotated[Path | None, typer.Option(help="Folder for static_compute.json, .md, .csv and .html.")]


@takes_workload(plans=True)
def cost(
    model: SourceArgument,
    workload: Mapping[str, Any],
    weights: WeightsOption = None,
    cache: CacheOption = None,
    sources: SourcesOption = None,
    routing: RoutingOption = None,
    torch_device: TorchDeviceOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    strict: StrictOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Print what MODEL_OR_TRACE costs per stage, from independent sources, with every difference explained."""
    from llm_perf_opt.api.cost import check_sources, reserve_cost_files
    from llm_perf_opt.api.tracing import cost as run_cost
    from llm_perf_opt.tracing.trace_files import is_trace, refuse_options

    reporter = choose_reporter(format_name, json_wanted)
    if out is not None:
        reserve_cost_files(out, force=force)
    named = tuple(name.strip() for name in sources.split(",")) if sources else None
    check_sources(named)
    if is_trace(model):
        refuse_options({}, torch_device=torch_device)
        traced = trace_or_load(
            model, workload, weights=weights, cache=cache, routing=routing, trust_remote_code=trust_remote_code
        )
        answer = traced.cost(named)
    else:
        with model_prints_apart():
            answer = run_cost(
                model,
                sources=named or "all",
                weights=weights,
                cache=cache,
                routing=routing,
                torch_device=torch_device,
                trust_remote_code=trust_remote_code,
                **workload,
            )
    show(answer.report(), reporter, verbose=verbose)
    if out is None:
        say("The report was not saved. To save it, add --out DIR.")
    else:
        for file in answer.save_files(out, force=force):
            say(f"Wrote {file}")
    if strict:
        _refuse_holes(answer, named or ("counted",))


def _refuse_holes(answer: CostAnswer, must_speak: Sequence[str]) -> None:
    for what, why, fix in _holes(answer, must_speak):
        raise PerfOptError(what, why=", and ".join(filter(None, ("--strict was given", why))), fix=fix)


def _holes(answer: CostAnswer, must_speak: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """What is missing, why if there is more to say, and what to do.

    Sources that nobody named may have no figure, except the count itself.
    """
    if answer.unpriced_ops:
        yield (
            f"{answer.unpriced_ops:,} ops have no price and are not in the totals.",
            "",
            "see the warnings above for their names, or leave --strict out",
        )
    for source, phase, stage, _ in answer.ledger.missing:
        if source in must_speak:
            yield (
                f"{source} has no figures for {stage} ({phase}).",
                "",
                "see the warnings above for the reason, or leave it out of --sources",
            )
    if answer.flops is None:
        yield ("The total is unknown.", _why_unknown(answer), _source_to_add(answer))
    for name in must_speak:
        gaps = [
            f"{left_out(stage_source)} in {stage_source.stage} ({stage_source.phase})"
            for stage_source in answer.incomplete
            if stage_source.source == name
        ]
        if gaps:
            yield (
                f"{name} left something out, or added something, in {len(gaps)} of {len(answer.stages)} stages.",
                "; ".join(gaps),
                f"leave {name} out of --sources; without --strict the report shows a lower bound",
            )
    if answer.ledger.unexplained:
        yield (
            f"{len(answer.ledger.unexplained)} differences between sources have no known cause.",
            "",
            "see the ledger above; name fewer sources with --sources, or report the difference",
        )


def _why_unknown(answer: CostAnswer) -> str:
    """Which stages no source counted in full, and what the one that counted most says of itself."""
    partial = ((stage, stage.incomplete) for stage in answer.stages)
    return "; ".join(
        f"{source.source} {left_out(source)} in {stage.name} ({stage.phase})"
        for stage, source in partial
        if source is not None
    )


def _source_to_add(answer: CostAnswer) -> str:
    used = {source.source for stage in answer.stages for source in stage.sources}
    if "counted" in used:
        return "see the warnings above for the stages that no source could count"
    partial = {source.source for source in answer.incomplete}
    return f"add a source that sees everything: --sources {','.join(('counted', *sorted(used - partial)))}"
