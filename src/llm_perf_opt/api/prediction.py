"""How fast a run could be: on a device from its figures, or on a machine that was calibrated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.per_rank import RanksAnswer, ranks_answer, with_ranks
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import found_once, shared_work
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.calibration import Calibration
from llm_perf_opt.core.hardware.links import Cluster, device_of, hardware_id
from llm_perf_opt.core.parallel_plan import plan_in
from llm_perf_opt.core.report import Level, Note, Report
from llm_perf_opt.core.units import format_bytes, format_count
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.costs.memory.need import (
    RunMemory,
    Shortage,
    fit_text,
    largest_need,
    need_table,
    run_memory,
    shortage_of,
    shortage_text,
)
from llm_perf_opt.costs.run_description import deployment_notes
from llm_perf_opt.serving.fit import ServingFit, TracedFit, fullest_traced_fit, with_serving_fit
from llm_perf_opt.sweeps.predicted_run import PredictedRun, predicted_run, with_run
from llm_perf_opt.timing.datasheet_rates import SOURCE, DataSheetRates, Execution
from llm_perf_opt.timing.lower_bound import BoundBy
from llm_perf_opt.timing.predict import StageTime, predict
from llm_perf_opt.timing.prediction_report import prediction_report
from llm_perf_opt.timing.rate_sources import DATA_SHEET, Machine, source_of
from llm_perf_opt.timing.rates import Band, RateSource
from llm_perf_opt.timing.speed import Speed, bottleneck_text, bottlenecks, pages_text, speed_of, speed_text
from llm_perf_opt.tracing.deployed_traces import redeployed
from llm_perf_opt.tracing.traced_run import TracedRun

if TYPE_CHECKING:
    from llm_perf_opt.measurements.correction_report import Correction

_AS_DENSE = Note(
    "The calibration timed matmuls with unquantized weights; quantized weights are timed as if they were unquantized.",
    Level.WARNING,
)

_NARROWER = ("fp8", "int4-g128")  # formats of weights to try, the widest first


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStage:
    """One stage of one phase. No implementation is faster than `lower_bound_s`; a run is expected in low to high.

    `expected_s` is the time of a calibration or of measured kernels; a data sheet has none. `bound_by`: compute,
    bandwidth, launches, kernel starts or communication; None is unknown. `launches` are of the code as written,
    `engine_kernels` what an engine launches instead; None: none does. `origins` is the share of the expected kernel
    time by where it came from: measured rows, interpolated, roofline; empty: one source alone. Of a rank, `sent_bytes`
    go to others, in `communication_low_s` to `communication_high_s`; `exposed_share` of the high edge nothing hides.
    """

    phase: str
    name: str
    lower_bound_s: float | None
    low_s: float
    high_s: float
    expected_s: float | None
    launches: int | None
    engine_kernels: int | None
    bound_by: str | None
    sent_bytes: int | None = None
    communication_low_s: float | None = None
    communication_high_s: float | None = None
    exposed_share: float | None = None
    origins: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBand:
    """All stages of one phase, one after the other; of a decode the time of one step. None is unknown."""

    name: str  # of the phase, `decode of one token` where steps were counted
    lower_bound_s: float | None
    low_s: float
    high_s: float
    expected_s: float | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PredictionAnswer(Answer):
    """The time of every stage. With a device also whether the run fits, and whether a server holds its batch."""

    model: str
    machine: str  # that the times hold for
    device: Device | None  # None: the times are of a calibration
    cluster: Cluster | None = None  # of these devices, where several were named
    execution: str
    rates: str = SOURCE  # the source of the times: data sheet, measured kernels, or a calibration
    engine: str | None = None  # the engine of the measured kernels; None: not an engine's
    stages: tuple[PredictedStage, ...]
    needed_bytes: int | None  # of the rank that needs most
    serving: ServingFit | None
    ranks: RanksAnswer | None = None  # None: the model runs on one device, or the times are of a calibration
    run: PredictedRun | None = None  # prefill and several decode steps, where they were asked for
    correction: Correction | None = None  # by what the user measured; None: nothing was
    shortage: Shortage | None = None  # None: it fits, or that is not known
    _graphs: tuple[CallGraph, ...]
    _machine: Machine
    _source: RateSource
    _times: tuple[tuple[StageTime, ...], ...]  # of each graph
    _memory: RunMemory
    _fit: TracedFit | None  # what `serving` rests on

    @property
    def lower_bound_s(self) -> float | None:
        """All stages one after the other; one unknown stage makes the sum unknown."""
        bounds = [stage.lower_bound_s for stage in self.stages]
        return None if None in bounds else sum(bound for bound in bounds if bound is not None)

    @property
    def low_s(self) -> float:
        """All stages, if everything goes as well as it ever does."""
        return sum(stage.low_s for stage in self.stages)

    @property
    def high_s(self) -> float:
        """All stages, if nothing does."""
        return sum(stage.high_s for stage in self.stages)

    @property
    def expected_s(self) -> float | None:
        """All stages one after the other; None: the source gives ends alone."""
        known = [stage.expected_s for stage in self.stages if stage.expected_s is not None]
        return sum(known) if len(known) == len(self.stages) else None

    def phase_band(self, graph: CallGraph) -> PhaseBand:
        """The time of the phase that `graph` is of."""
        stages = [stage for stage in self.stages if stage.phase == graph.phase]
        steps = graph.runtime.get("decode_steps") if graph.phase == "decode" else None
        parts = steps if isinstance(steps, int) and steps else 1
        bounds, expected = [stage.lower_bound_s for stage in stages], [stage.expected_s for stage in stages]
        return PhaseBand(
            name=f"{graph.phase} of one token" if isinstance(steps, int) and steps else graph.phase,
            lower_bound_s=None if None in bounds else sum(bound or 0 for bound in bounds) / parts,
            low_s=sum(stage.low_s for stage in stages) / parts,
            high_s=sum(stage.high_s for stage in stages) / parts,
            expected_s=None if None in expected else sum(time or 0 for time in expected) / parts,
        )

    @property
    def fits(self) -> bool | None:
        """Whether the device has the memory for this run as written; None: not known. For a server, see `serving`."""
        if self.device is None or self.needed_bytes is None:
            return None
        return self.needed_bytes <= self.device.memory_bytes

    @property
    def speed(self) -> Speed:
        """Time to the first token, time of a decode step, tokens and pages per second."""
        plan = plan_in(self._graphs[0].deployment)
        decode = None if self.run is None else self.run.decode
        return speed_of(
            self._graphs,
            self._times,
            devices=1 if plan is None else plan.ranks,
            decode=None if decode is None else Band(decode.low_s, decode.high_s, decode.expected_s),
            output_tokens=None if decode is None else decode.steps,
        )

    @property
    def answer(self) -> tuple[str, ...]:
        """The question, whether it fits, how fast it is and its bottleneck: three lines."""
        return prediction_lines(
            self._graphs,
            self._times,
            self.speed,
            self._memory,
            self.device,
            machine=self.machine
            if isinstance(self._machine, Calibration)
            else hardware_id(self._machine) or self.machine,
            how=Execution(self.execution).text if self.device is not None else "as calibrated",
            shortage=self.shortage,
            rates=self.rates,
        )

    def times(self) -> Report:
        """The part of the report about time, without memory and ranks."""
        return prediction_report(self._graphs, self._source, self._times)

    def report(self) -> Report:
        """The answer, stages with bound and band, the memory that is needed, where times come from, the slowest ops."""
        notes = tuple(deployment_notes(self._graphs))
        report = with_run(self.times(), self.run)
        if self.correction is not None:
            from llm_perf_opt.measurements.correction_report import with_correction

            report = with_correction(report, self.correction)
        report = replace(report, answer=self.answer)
        if isinstance(self._machine, Calibration):
            return replace(report, notes=(*notes, *((_AS_DENSE,) if notes else ()), *report.notes))
        first = 1 if self.run is None else 2
        memory = with_serving_fit(Report(title="", tables=(need_table(self._memory, self.device),)), self._fit)
        tables = (*report.tables[:first], *memory.tables, *report.tables[first:])
        report = with_ranks(replace(report, tables=tables, notes=(*report.notes, *memory.notes)), self.ranks)
        return replace(report, notes=(*notes, *report.notes, *_missing_tables(self._source)))


def prediction_answer(
    graphs: tuple[CallGraph, ...],
    machine: Machine,
    execution: str = Execution.EAGER,
    others: Sequence[tuple[CallGraph, ...]] = (),
    *,
    rates: str | None = DATA_SHEET,
    engine: str | None = None,
) -> PredictionAnswer:
    """The prediction of every stage of every phase; `others` are the phases of further kinds of rank."""
    with shared_work():
        return _prediction(graphs, machine, execution, others, rates, engine)


def _prediction(
    graphs: tuple[CallGraph, ...],
    machine: Machine,
    execution: str,
    others: Sequence[tuple[CallGraph, ...]],
    rates: str | None,
    engine: str | None,
) -> PredictionAnswer:
    device = None if isinstance(machine, Calibration) else device_of(machine)
    fit = None if device is None else fullest_traced_fit((graphs, *others), device)
    source = source_of(machine, execution, rates, engine, (graphs, *others))
    memory = largest_need((graphs, *others))
    times = tuple(tuple(predict(graph, source)) for graph in graphs)
    return PredictionAnswer(
        model=graphs[0].model,
        machine=source.title,
        device=device,
        cluster=machine if isinstance(machine, Cluster) else None,
        execution=execution,
        rates=source.name,
        engine=source.engine,
        stages=tuple(
            predicted_stage(graph.phase, stage)
            for graph, stage_times in zip(graphs, times, strict=True)
            for stage in stage_times
        ),
        needed_bytes=memory.total_bytes,
        serving=None if fit is None else fit[1],
        ranks=None if device is None else ranks_answer((graphs, *others), source, [times]),
        shortage=None if device is None else shortage_on((graphs, *others), device),
        _graphs=graphs,
        _machine=machine,
        _source=source,
        _times=times,
        _memory=memory,
        _fit=fit,
    )


def with_decode_steps(trace: TracedRun, answer: PredictionAnswer, decode_steps: int) -> PredictionAnswer:
    """The prediction of a trace, and with it the run of this many decode steps."""
    return replace(answer, run=predicted_run(trace, answer._times, answer._source, decode_steps))


def predicted_stage(phase: str, stage: StageTime) -> PredictedStage:
    """The time of a stage as an answer has it."""
    communication = stage.communication
    links = None if communication is None else communication.band
    return PredictedStage(
        phase=phase,
        name=stage.name,
        lower_bound_s=stage.lower_bound_s,
        low_s=stage.wall.low,
        high_s=stage.wall.high,
        expected_s=stage.wall.expected,
        launches=stage.launches,
        engine_kernels=stage.engine_kernels,
        bound_by=None if stage.bound_by is None else str(stage.bound_by),
        sent_bytes=None if communication is None else communication.sent_bytes,
        communication_low_s=None if links is None else links.low,
        communication_high_s=None if links is None else links.high,
        exposed_share=None if stage.exposed is None or not stage.wall.high else stage.exposed.high / stage.wall.high,
        origins=stage.by_origin,
    )


def _missing_tables(source: RateSource) -> Iterator[Note]:
    """What measured kernels would add, where they come near the device and are not installed."""
    if not isinstance(source, DataSheetRates):
        return
    from llm_perf_opt.timing.kernels.tables import INSTALL, missing_packages, system_of

    system = system_of(source.device)
    if system is not None and missing_packages():
        yield Note(
            f"Measured kernels of {system.system} would give an expected time and a narrower band: {INSTALL} installs "
            "their tables."
        )


def run_text(graphs: Sequence[CallGraph], speed: Speed, machine: str, how: str) -> str:
    """`llama31-8b on l4, eager PyTorch, 1 x 128 tokens, bfloat16`: model, deployment, execution and workload."""
    first, plan = graphs[0], plan_in(graphs[0].deployment)
    words = [machine, *([] if plan is None else [plan.describe()]), how]
    tokens = f" x {format_count(speed.context)} tokens" if speed.context else ""
    words.append(f"{format_count(speed.sequences)}{tokens}" if tokens else f"batch {format_count(speed.sequences)}")
    if plan is not None and (shared := plan.dp * plan.fsdp) > 1:
        words[-1] += f" in all ({format_count(speed.sequences // shared)} per rank)"
    words.append(str(first.deployment.get("weights") or first.workload.get("dtype") or "dtype not stated"))
    return f"{first.model} on {', '.join(words)}"


@found_once
def _needs_if_narrower(graphs: tuple[CallGraph, ...]) -> tuple[tuple[str, int], ...]:
    """Weight format -> what the run then needs."""
    memories = ((name, run_memory(redeployed(graphs, Deployment.make(weights=name)))) for name in _NARROWER)
    return tuple((name, memory.total_bytes) for name, memory in memories if memory.total_bytes is not None)


def shortage_on(kinds: Sequence[tuple[CallGraph, ...]], device: Device) -> Shortage | None:
    """What is short and what helps; None where every rank fits, or nobody knows."""
    short = shortage_of(kinds, device)
    if short is None:
        return None
    needs = [dict(_needs_if_narrower(graphs)) for graphs in kinds]
    largest = {name: max(need[name] for need in needs) for name in _NARROWER if all(name in need for need in needs)}
    return replace(short, formats=tuple((name, size) for name, size in largest.items() if size <= device.memory_bytes))


def prediction_lines(
    graphs: Sequence[CallGraph],
    times: Sequence[Sequence[StageTime]],
    speed: Speed,
    memory: RunMemory | None,
    device: Device | None,
    *,
    machine: str,
    how: str,
    shortage: Shortage | None = None,
    rates: str = "",
) -> tuple[str, ...]:
    """Three lines. Where the run does not fit, the first says so, how many devices hold it, and in which format."""
    run = run_text(graphs, speed, machine, how)
    fast = ", ".join(part for part in (speed_text(speed), pages_text(speed)) if part)
    fast = f"by the data sheet, {fast}" if rates == SOURCE else fast
    if shortage is not None and device is not None:
        over = f"{run}: {format_bytes(shortage.short_bytes)} over."
        return shortage_text(shortage, device), over, f"If it fit: {fast}."
    fit = "" if memory is None or device is None else f": {fit_text(memory, device)}"
    limits = bottleneck_text(graphs, times)
    last = f"Bottleneck: {limits}. " if limits else ""
    return f"{run}{fit}.", f"{fast[:1].upper()}{fast[1:]}.", f"{last}Next: {next_text(graphs, times, speed, how)}."


def next_text(graphs: Sequence[CallGraph], times: Sequence[Sequence[StageTime]], speed: Speed, how: str) -> str:
    """The option that changes most, by the bottleneck."""
    limits = bottlenecks(graphs, times)
    limit = limits.get("decode") or next(iter(limits.values()), None)
    if limit is BoundBy.LAUNCHES and how == Execution.EAGER.text:
        return "--execution fused"
    if limit is BoundBy.COMMUNICATION:
        return "a smaller --tp, or faster links"
    if limit is BoundBy.BANDWIDTH and speed.step is not None:
        return f"a larger --batch{', or --weights fp8' if graphs[0].deployment.get('weights') is None else ''}"
    if speed.pages and speed.output_tokens is None:
        return "--decode-steps N for whole pages"
    return "llm-perf-opt serve for what a server reaches"
