"""`llm-perf-opt trace`: run a model weightlessly, write its call graph, print what each stage costs and takes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

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
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.protocols import FORM
from llm_perf_opt.core.work_limits import refuse_decode_steps
from llm_perf_opt.core.workload import Deployment

if TYPE_CHECKING:
    from llm_perf_opt.api.stages import StagesAnswer
    from llm_perf_opt.api.trace import Trace
    from llm_perf_opt.core.report import Report
    from llm_perf_opt.measurements.measured_points import Given

WEIGHTLESS = "weightless"

CalibrationOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Time on a calibrated machine, from llm-perf-opt devices calibrate."),
]
EngineOption = Annotated[
    Literal["vllm", "sglang", "trtllm"] | None,
    typer.Option(help="Engine of the measured kernels, with --execution fused. Default: vllm."),
]
MeasuredOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Correct the times by a measurement: a line such as 'ttft=0.5s tpot=20ms batch=16', a file of such lines, "
        "a result of vllm bench serve, genai-perf, AIPerf or guidellm, a GPU recording, or the folder of a profile. "
        "Repeatable.",
    ),
]
WhatIfOption = Annotated[
    Literal["attention"] | None,
    typer.Option(help="Compare eager, fused and flash attention, instead of printing the time."),
]
TracerOption = Annotated[str, typer.Option(help=f"How to trace: {', '.join(TRACERS.names())}.")]
LoadWeightsOption = Annotated[
    str | None,
    typer.Option(
        metavar="random|none|DIR", help="Weights for a real run. Default: random; --tracer weightless has none."
    ),
]
PictureOption = Annotated[
    list[str] | None,
    typer.Option(metavar=FORM, help="With --tracer torchlens: write its own picture of a module. Repeatable."),
]
OnlyOption = Annotated[
    str | None,
    typer.Option(
        metavar="TERM,...",
        help="With --tracer hooks or profiler: record only these modules, by family (linear, ...), class or path.",
    ),
]
StageOption = Annotated[
    str | None, typer.Option(metavar="NAME,...", help="With --tracer hooks or profiler: record only these stages.")
]
StackOption = Annotated[
    bool, typer.Option("--with-stack", help="With --tracer profiler: record stacks, and the source line of each op.")
]
ModulesOption = Annotated[
    bool, typer.Option("--with-modules", help="With --tracer profiler: name the module of each op in the Chrome trace.")
]
MemoryOption = Annotated[
    bool, typer.Option("--profile-memory", help="With --tracer profiler: record the bytes that each op allocates.")
]
EventsOption = Annotated[
    bool, typer.Option("--events", help="With --out: also record enter and exit of every call, in order.")
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
    """Run MODEL_OR_TRACE once, by default without weights, and print what each stage costs.

    With --device it also prints how long each stage takes: a lower bound, and a low and a high estimate, for eager
    PyTorch, or with --execution fused for an engine's step. For a server, see llm-perf-opt serve.
    """
    _begin(is_verbose=verbose, has_place_for_events=not events or out is not None)
    from llm_perf_opt.core.callgraph.queries import shared_work

    reporter = choose_reporter(format_name, json_wanted)
    machine = {"device": device, "devices": devices, "calibration": calibration, "execution": execution}
    timed = RunTime.make(**machine, rates=rates, engine=engine, what_if=what_if, measured=measured)
    recorded = {"only": only, "stage": stage, "pictures": torchlens_picture, "events": events, "out": out}
    profiled = {"with_stack": with_stack, "with_modules": with_modules, "profile_memory": profile_memory}
    settings = {**recorded, **profiled, "routing": routing, "load_weights": load_weights, "torch_device": torch_device}
    options = {"weights": weights, "cache": cache, "force": force, "trust_remote_code": trust_remote_code}
    traced, decode_steps = _traced(model, workload, timed, tracer, settings, options)
    with model_prints_apart(), few_lines_per_trace(), shared_work():
        stages = traced.stages()
        report = timed.report(traced, stages, decode_steps) if tracer == WEIGHTLESS else None
    is_short = not verbose and not json_wanted and format_name in (None, "text")
    show(report or (stages.summary() if is_short else stages.report()), reporter, verbose=verbose)
    _close(model, [file for rank in traced.ranks for file in rank.files], out)
    if strict:
        _require_known(stages)


def _traced(
    model: str,
    workload: Mapping[str, Any],
    timed: RunTime,
    tracer: str,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
) -> tuple[Trace, int | None]:
    """The trace, made now or read from its files, and the decode steps that are computed from its first one.

    Only a trace that is made now has a use for `settings`.
    """
    from llm_perf_opt.api.tracing import load
    from llm_perf_opt.api.tracing import trace as run_trace
    from llm_perf_opt.tracing.trace_files import is_trace, refuse_options

    is_saved, formats = is_trace(model), {name: options[name] for name in ("weights", "cache")}
    torch_device = timed.checked(tracer, settings["torch_device"], is_saved=is_saved, **formats)
    if is_saved:
        refuse_options(workload, **{**settings, "torch_device": None, "tracer": tracer != WEIGHTLESS})
        return load(model, **formats), None
    run, decode_steps = timed.workload(workload, is_kept=tracer != WEIGHTLESS or settings["out"] is not None)
    with model_prints_apart():
        traced = run_trace(
            model,
            tracer=tracer,
            device=timed.device,
            devices_file=timed.devices,
            copies_key_heads=timed.execution == "fused",
            **{**settings, "torch_device": torch_device, "pictures": settings["pictures"] or ()},
            **options,
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


def _close(model: str, files: Sequence[Path], out: Path | None) -> None:
    """Say what was written and the next command; nothing of a trace that was there before."""
    from llm_perf_opt.tracing.trace_files import is_trace

    if is_trace(model):
        return
    for file in files:
        say(f"Wrote {file}")
    if out is None:
        say("The trace was not saved. To save it, add --out DIR.")
    else:
        say(f"Next: llm-perf-opt graph {shlex.quote(str(out))} --out graph.html")


def _unpriced_error(unpriced_ops: int | None) -> PerfOptError:
    if unpriced_ops is None:
        return PerfOptError(
            "The costs are unknown.",
            why="--strict was given, and the tracer sees no ops",
            fix="trace with --tracer weightless, and compare the two",
        )
    return PerfOptError(
        f"{unpriced_ops:,} ops have no price and are not in the totals.",
        why="--strict was given",
        fix="see the warnings above for their names, or leave --strict out",
    )


def _calls_error(wrong: Sequence[str]) -> PerfOptError:
    return PerfOptError(
        f"Modules ran more or less often than expected: {', '.join(dict.fromkeys(wrong))}.",
        why="--strict was given",
        fix="see the table of calls above; without --strict it is a warning",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """The machine that a run is timed on, and how; without a machine nothing is timed."""

    device: str | None
    devices: Path | None
    calibration: Path | None
    execution: str
    rates: str | None
    engine: str | None
    what_if: str | None
    measured: Given | None

    @classmethod
    def make(cls, *, measured: Sequence[str] | None, **machine: Any) -> Self:
        """Measurements are read at once: a file that cannot be is refused before any work."""
        if not measured:
            return cls(**machine, measured=None)
        from llm_perf_opt.measurements.measured_points import read_given

        return cls(**machine, measured=read_given(measured))

    def checked(
        self, tracer: str, torch_device: str | None, *, is_saved: bool, weights: str | None, cache: str | None
    ) -> str | None:
        """The torch device that code sees; what does not go together is refused before any work.

        A saved trace may name its device itself.
        """
        from llm_perf_opt.timing.rate_sources import find_machine, torch_device_of

        Deployment.make(weights=weights, cache=cache)
        if self.what_if is not None:
            self._refuse_with_what_if()
        if self.device is None and self.calibration is None:
            if not is_saved:
                _refuse_without_machine(self._given())
            return torch_device
        if tracer != WEIGHTLESS:
            _refuse_real_run(tracer, {"--calibration": self.calibration, **self._given()})
            return torch_device
        machine = find_machine(self.device, weights=weights, cache=cache, **self._machine())
        return torch_device or torch_device_of(machine)

    def workload(self, given: Mapping[str, Any], *, is_kept: bool) -> tuple[Mapping[str, Any], int | None]:
        """The workload to trace, and how many decode steps are computed from the first one alone; None: none are.

        A trace that is kept holds every step that was asked for.
        """
        steps = given.get("decode_steps", 1)
        refuse_decode_steps(steps)
        if is_kept or self.what_if is not None or steps <= 1 or (self.device or self.calibration) is None:
            return given, None
        return {**given, "decode_steps": 1}, steps

    def report(self, traced: Trace, stages: StagesAnswer, decode_steps: int | None) -> Report | None:
        """The time of a run in front of what it costs; None: there is no machine to time it on."""
        from llm_perf_opt.tracing.deployed_traces import deployed_device

        if self.device is None and self.calibration is None and deployed_device(traced.graphs) is None:
            _refuse_without_machine(self._given())
            return None
        if self.what_if is not None:
            return traced.what_if(self.what_if, self.device, devices_file=self.devices).report()
        options = {**self._machine(), "decode_steps": decode_steps, "measured": self.measured}
        report = traced.predict(self.device, **options).report()
        costs = stages.report()
        notes = dict.fromkeys((*report.notes, *costs.notes))
        return replace(report, tables=(*report.tables, *costs.tables), notes=tuple(notes))

    def _machine(self) -> Mapping[str, Any]:
        return {
            "calibration": self.calibration,
            "devices_file": self.devices,
            "execution": self.execution,
            "rates": self.rates,
            "engine": self.engine,
        }

    def _given(self) -> Mapping[str, object]:
        """What says how a machine is timed, as it is spelled."""
        return {
            "--execution": None if self.execution == "eager" else self.execution,
            "--rates": self.rates,
            "--engine": self.engine,
            "--measured": self.measured,
            "--what-if": self.what_if,
        }

    def _refuse_with_what_if(self) -> None:
        """What a comparison of kinds of attention has no use for."""
        if self.calibration is not None or self.execution != "eager":
            raise UsageError(
                "--what-if takes a device and eager execution.",
                why="a calibration has not measured every kind of attention, and an engine chooses its own",
                fix="leave --calibration and --execution out",
            )
        if self.rates == "tables" or self.engine is not None:
            raise UsageError(
                "--what-if compares kinds of attention by the data sheet.",
                why="tables hold one measured attention for a shape, not one of each kind",
                fix="leave --rates and --engine out",
            )
        if self.measured:
            raise UsageError(
                "--what-if takes no --measured.",
                why="one measurement is of one kind of attention, and corrects no other",
                fix="leave one of the two out",
            )


def _refuse_without_machine(given: Mapping[str, object]) -> None:
    for option in (option for option, value in given.items() if value):
        raise UsageError(
            f"{option} is about the time on a device.",
            why="neither --device nor --calibration is given",
            fix="add --device h100-sxm: llm-perf-opt devices list",
        )


def _refuse_real_run(tracer: str, given: Mapping[str, object]) -> None:
    for option in (option for option, value in given.items() if value):
        raise UsageError(
            f"{option} has no use with --tracer {tracer}.",
            why="a real run has times of its own, measured on this machine",
            fix=f"leave {option} out, or trace weightlessly",
        )
