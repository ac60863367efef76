"""`llm-perf-opt trace`: run a model weightlessly, write its call graph, print what each stage costs and takes."""

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
    ExecutionOption,
    RatesOption,
    RoutingOption,
    SourceArgument,
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
from llm_perf_opt.cli.progress import few_lines_per_trace, log_debug_too, say
from llm_perf_opt.cli.run_time import WEIGHTLESS, CalibrationOption, EngineOption, MeasuredOption, RunTime, WhatIfOption
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.protocols import FORM

if TYPE_CHECKING:
    from llm_perf_opt.api.stages import StagesAnswer
    from llm_perf_opt.api.trace import Trace

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
    model: SourceArgument,
    workload: Mapping[str, Any],
    device: DeviceOption = None,
    execution: ExecutionOption = "eager",
    weights: WeightsOption = None,
    cache: CacheOption = None,
    out: OutOption = None,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    devices: DevicesOption = None,
    calibration: CalibrationOption = None,
    rates: RatesOption = None,
    engine: EngineOption = None,
    measured: MeasuredOption = None,
    what_if: WhatIfOption = None,
    tracer: TracerOption = "weightless",
    load_weights: LoadWeightsOption = None,
    only: OnlyOption = None,
    stage: StageOption = None,
    torchlens_picture: PictureOption = None,
    with_stack: StackOption = False,
    with_modules: ModulesOption = False,
    profile_memory: MemoryOption = False,
    events: EventsOption = False,
    routing: RoutingOption = None,
    torch_device: TorchDeviceOption = None,
    force: ForceOption = False,
    strict: StrictOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Run MODEL_OR_TRACE once, by default without weights: what each stage costs, and with --device how long it takes.

    The time is that of the code as written, or with --execution fused that of an engine's step: a bound that nothing
    beats, and a band of what is likely. What a server reaches, and which GPU: llm-perf-opt serve.
    """
    _begin(is_verbose=verbose, has_place_for_events=not events or out is not None)
    reporter = choose_reporter(format_name, json_wanted)
    machine = {"device": device, "devices": devices, "calibration": calibration, "execution": execution}
    timed = RunTime.make(**machine, rates=rates, engine=engine, what_if=what_if, measured=measured)
    seen: dict[str, Any] = {"only": only, "stage": stage, "pictures": torchlens_picture, "with_stack": with_stack}
    seen |= {"with_modules": with_modules, "profile_memory": profile_memory, "events": events, "routing": routing}
    seen |= {"load_weights": load_weights, "torch_device": torch_device, "out": out}
    kept = {"weights": weights, "cache": cache, "force": force, "trust_remote_code": trust_remote_code}
    traced, decode_steps = _traced(model, workload, timed, tracer, seen, kept)
    stages = traced.stages()
    with model_prints_apart(), few_lines_per_trace():
        report = timed.report(traced, stages, decode_steps) if tracer == WEIGHTLESS else None
    is_short = not verbose and not json_wanted and format_name in (None, "text")
    show(report or (stages.summary() if is_short else stages.report()), reporter, verbose=verbose)
    _close(model, [file for rank in traced.ranks for file in rank.files], out, has_pictures=bool(torchlens_picture))
    if strict:
        _require_known(stages)


def _traced(
    model: str, workload: Mapping[str, Any], timed: RunTime, tracer: str, seen: dict[str, Any], kept: Mapping[str, Any]
) -> tuple[Trace, int | None]:
    """The trace, made now or read from its files, and the decode steps that are computed from its first one.

    `seen` is what only a trace made now has a use for.
    """
    from llm_perf_opt.api.tracing import load
    from llm_perf_opt.api.tracing import trace as run_trace
    from llm_perf_opt.tracing.trace_files import is_trace, refuse_options

    is_saved, formats = is_trace(model), {name: kept[name] for name in ("weights", "cache")}
    seen["torch_device"] = timed.checked(tracer, seen["torch_device"], is_saved=is_saved, **formats)
    if is_saved:
        refuse_options(workload, **{**seen, "torch_device": None, "tracer": tracer != WEIGHTLESS})
        return load(model, **formats), None
    run, decode_steps = timed.workload(workload, is_kept=tracer != WEIGHTLESS or seen["out"] is not None)
    with model_prints_apart():
        traced = run_trace(
            model,
            tracer=tracer,
            device=timed.device,
            devices_file=timed.devices,
            copies_key_heads=timed.execution == "fused",
            **{**seen, "pictures": seen["pictures"] or ()},
            **kept,
            **run,
        )
    return traced, decode_steps


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


def _close(model: str, files: Sequence[Path], out: Path | None, *, has_pictures: bool) -> None:
    """Say what was written and the next command; nothing of a trace that was there before."""
    from llm_perf_opt.tracing.trace_files import is_trace

    if is_trace(model):
        return
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
