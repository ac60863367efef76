"""`llm-perf-opt trace`: run a model weightlessly, write its call graph, print the per-stage table."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llm_perf_opt.cli.model_options import (
    CacheOption,
    DeviceOption,
    DevicesOption,
    ModelArgument,
    RoutingOption,
    TorchDeviceOption,
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
from llm_perf_opt.cli.progress import log_debug_too, say
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.protocols import FORM

if TYPE_CHECKING:
    from llm_perf_opt.api.stages import StagesAnswer

TracerOption = Annotated[str, typer.Option(help=f"How to look: {', '.join(TRACERS.names())}.")]
LoadWeightsOption = Annotated[
    str | None,
    typer.Option(metavar="random|none|DIR", help="Weights for a real run. Default: random; weightless has none."),
]
PictureOption = Annotated[
    list[str] | None,
    typer.Option(metavar=FORM, help="With --tracer torchlens: its own picture of a module. Repeatable."),
]
OnlyOption = Annotated[
    str | None,
    typer.Option(
        metavar="TERM,...",
        help="With --tracer hooks or profiler: record these modules; families (linear, ...), classes, paths.",
    ),
]
StageOption = Annotated[
    str | None, typer.Option(metavar="NAME,...", help="With --tracer hooks or profiler: record these stages.")
]
StackOption = Annotated[
    bool, typer.Option("--with-stack", help="With --tracer profiler: stacks, and the source line of each op.")
]
ModulesOption = Annotated[
    bool, typer.Option("--with-modules", help="With --tracer profiler: the module of each op in the Chrome trace.")
]
MemoryOption = Annotated[
    bool, typer.Option("--profile-memory", help="With --tracer profiler: the bytes that each op allocates.")
]
EventsOption = Annotated[
    bool, typer.Option("--events", help="Also list enter and exit of every call, in order; with --out.")
]
OutOption = Annotated[Path | None, typer.Option(help="Folder for the trace, one file per phase.")]
StrictOption = Annotated[
    bool,
    typer.Option("--strict", help="Exit 1 if any op has no price, or modules ran more or less often than expected."),
]


@takes_workload(plans=True)
def trace(
    model: ModelArgument,
    workload: Mapping[str, Any],
    tracer: TracerOption = "weightless",
    load_weights: LoadWeightsOption = None,
    device: DeviceOption = None,
    devices: DevicesOption = None,
    weights: WeightsOption = None,
    cache: CacheOption = None,
    only: OnlyOption = None,
    stage: StageOption = None,
    torchlens_picture: PictureOption = None,
    with_stack: StackOption = False,
    with_modules: ModulesOption = False,
    profile_memory: MemoryOption = False,
    events: EventsOption = False,
    routing: RoutingOption = None,
    torch_device: TorchDeviceOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    strict: StrictOption = False,
    trust_remote_code: TrustOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run MODEL_OR_DIR, by default without weights, and print what each stage costs."""
    from llm_perf_opt.api.tracing import trace as run_trace

    _begin(is_verbose=verbose, has_place_for_events=not events or out is not None)
    reporter = choose_reporter(format_name, json_wanted)
    with model_prints_apart():
        traced = run_trace(
            model,
            tracer=tracer,
            load_weights=load_weights,
            device=device,
            devices_file=devices,
            weights=weights,
            cache=cache,
            only=only,
            stage=stage,
            pictures=torchlens_picture or (),
            with_stack=with_stack,
            with_modules=with_modules,
            profile_memory=profile_memory,
            events=events,
            routing=routing,
            torch_device=torch_device,
            out=out,
            force=force,
            trust_remote_code=trust_remote_code,
            **workload,
        )
    stages = traced.stages()
    is_short = not verbose and not json_wanted and format_name in (None, "text")
    show(stages.summary() if is_short else stages.report(), reporter, verbose=verbose)
    _close([file for rank in traced.ranks for file in rank.files], out, has_pictures=bool(torchlens_picture))
    if strict:
        _require_known(stages)


def _begin(*, is_verbose: bool, has_place_for_events: bool) -> None:
    if is_verbose:
        log_debug_too()
    if not has_place_for_events:
        raise typer.BadParameter("the events are part of the trace file: add --out DIR", param_hint="--events")


def _require_known(stages: StagesAnswer) -> None:
    if stages.unpriced_ops != 0:
        raise _unpriced_error(stages.unpriced_ops)
    if stages.calls_as_expected is False:
        raise _calls_error([check.what for check in stages.call_checks if not check.is_as_expected])


def _close(files: Sequence[Path], out: Path | None, *, has_pictures: bool) -> None:
    """Say what was written and the next command."""
    for file in files:
        say(f"Wrote {file}")
    if out is None:
        say(f"{'The trace is not kept' if has_pictures else 'Nothing written'}: add --out DIR to keep the trace.")
    else:
        say(f"Next: llm-perf-opt graph {shlex.quote(str(out))} --out graph.html")


def _unpriced_error(unpriced_ops: int | None) -> PerfOptError:
    if unpriced_ops is None:
        return PerfOptError(
            "The costs are not known.",
            why="--strict was given, and the tracer sees no ops",
            fix="trace with --tracer weightless, and compare the two",
        )
    return PerfOptError(
        f"{unpriced_ops:,} ops have no price and are not in the totals.",
        why="--strict was given",
        fix="see the warnings above for their names; without --strict the table stands with its holes listed",
    )


def _calls_error(wrong: Sequence[str]) -> PerfOptError:
    return PerfOptError(
        f"Modules ran more or less often than expected: {', '.join(dict.fromkeys(wrong))}.",
        why="--strict was given",
        fix="see the table of calls above; without --strict it is a warning",
    )
