"""A correction as tables and sentences: what was measured, what it changed, and how wide the band is now."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_calls
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.core.report import Column, Kind, Level, Note, Report, Table, table_of
from llm_perf_opt.core.units import format_count, format_ratio, format_seconds
from llm_perf_opt.measurements.correction import (
    Fit,
    FitPoint,
    Remaining,
    StageCorrection,
    StageFactor,
    centre,
    corrected_stage,
    families,
    fitted,
    remaining,
    width,
)
from llm_perf_opt.measurements.join.attribution import JoinedRecording, JoinedWork
from llm_perf_opt.measurements.measurement import MeasuredRun, Measurement, Quantity, run_of
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.timing.predict import StageTime

MEASURED_TABLE = "What was measured"
CORRECTED_TABLE = "Corrected by measurement"
FAMILY_TABLE = "Factors by kind of kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One measured time next to what was predicted for the same work before the correction. None is not recorded."""

    source: str
    file: str
    quantity: Quantity
    stage: str | None  # of a time of one stage
    statistic: str
    samples: int
    measured_s: float
    predicted_s: float
    lower_bound_s: float | None
    factor: float
    batch: int | None  # that it was predicted at
    context: int | None
    is_same_point: bool  # the workload of this prediction

    @property
    def what(self) -> str:
        """TTFT, TPOT or the stage."""
        return self.stage or str(self.quantity)

    @property
    def where(self) -> str:
        """Batch and context in words."""
        parts = (("batch", self.batch), ("context", self.context))
        return ", ".join(f"{name} {format_count(value)}" for name, value in parts if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What measurements did to a prediction. `corrected_share` is how much of the time they corrected."""

    points: tuple[MeasuredPoint, ...]
    stages: tuple[StageCorrection, ...]
    corrected_share: float
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]


def with_correction(report: Report, correction: Correction) -> Report:
    """The report with the tables of the correction behind the table of stages, and what it did as the first notes."""
    tables = (_measured_table(correction), _corrected_table(correction), *_family_tables(correction))
    notes = tuple(_notes(correction))
    return replace(report, tables=(*report.tables[:1], *tables, *report.tables[1:]), notes=(*notes, *report.notes))


def _measured_table(correction: Correction) -> Table:
    return table_of(
        MEASURED_TABLE,
        correction.points,
        {
            Column("time"): lambda point: point.what,
            Column("source"): lambda point: point.source,
            Column("file"): lambda point: point.file,
            Column("statistic"): lambda point: point.statistic,
            Column("batch", Kind.COUNT): lambda point: point.batch,
            Column("context", Kind.COUNT): lambda point: point.context,
            Column("measured", Kind.SECONDS): lambda point: point.measured_s,
            Column("predicted", Kind.SECONDS): lambda point: point.predicted_s,
            Column("lower bound", Kind.SECONDS): lambda point: point.lower_bound_s,
            Column("measured / predicted", Kind.RATIO): lambda point: point.factor,
        },
    )


def _corrected_table(correction: Correction) -> Table:
    return table_of(
        CORRECTED_TABLE,
        correction.stages,
        {
            Column("stage"): lambda stage: stage.stage,
            Column("by"): lambda stage: str(stage.by),
            Column("measurements", Kind.COUNT): lambda stage: stage.measurements,
            Column("before", Kind.SECONDS): lambda stage: stage.before_s,
            Column("factor", Kind.RATIO): lambda stage: stage.factor,
            Column("after", Kind.SECONDS): lambda stage: stage.after_s,
            Column("low", Kind.SECONDS): lambda stage: stage.low_s,
            Column("high", Kind.SECONDS): lambda stage: stage.high_s,
            Column("high / low before", Kind.RATIO): lambda stage: stage.width_before,
            Column("high / low after", Kind.RATIO): lambda stage: stage.width_after,
        },
    )


def _family_tables(correction: Correction) -> Iterator[Table]:
    rows = [(stage.stage, family, factor) for stage in correction.stages for family, factor in stage.by_family.items()]
    if rows:
        columns = (Column("stage"), Column("kernels"), Column("factor", Kind.RATIO))
        yield Table(title=FAMILY_TABLE, columns=columns, rows=tuple(rows))


def _notes(correction: Correction) -> Iterator[Note]:
    for warning in correction.warnings:
        yield Note(warning, Level.WARNING)
    for stage in correction.stages:
        yield Note(_sentence(stage, correction))
    yield Note(
        f"{format_ratio(correction.corrected_share)} of the predicted time is corrected by a measurement; the "
        "lower bound is not. docs/how/one-measurement.md explains it."
    )
    yield from (Note(remark) for remark in correction.remarks)


def _sentence(stage: StageCorrection, correction: Correction) -> str:
    named = [point for point in correction.points if point.quantity is stage.by and point.stage in (None, stage.stage)]
    places = list(dict.fromkeys(point.where for point in named if point.where))
    where = f" at {'; '.join(places[:3])}{' ...' if len(places) > 3 else ''}" if places else ""
    count = f"{stage.measurements} measurement{'s' if stage.measurements != 1 else ''}"
    what = "the stage" if stage.by is Quantity.STAGE else str(stage.by)
    text = f"{stage.stage} is multiplied by {stage.factor:.3g}, from {count} of {what}{where}: "
    text += f"{format_seconds(stage.before_s)} becomes {format_seconds(stage.after_s)}"
    before, after = stage.width_before, stage.width_after
    if before is None or after is None:
        return f"{text}. Its band: {stage.why}."
    change = "keeps its width" if abs(after / before - 1) < 0.005 else "shrinks" if after < before else "widens"
    return f"{text}. The band {change}: high / low was {before:.3g} and is {after:.3g}; {stage.why}."


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedTime:
    """A measured time with the prediction of the same work."""

    run: MeasuredRun
    time: Measurement
    scale: float  # on the measured seconds: tokens that one step gives
    predicted: PredictedPoint
    point: MeasuredPoint
    is_contradicted: bool  # it names another model or device than the prediction

    @property
    def key(self) -> tuple[Quantity, str | None, str | None]:
        """What it measured: the kind of time, the stage, the phase that a recording is of."""
        return self.time.quantity, self.time.stage, self.run.phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A fit and which stages it corrects."""

    quantity: Quantity
    stage: str | None
    phase: str | None
    fit: Fit
    by_family: dict[str, Fit]
    is_device_time: bool
    is_same_point: bool
    is_contradicted: bool

    @property
    def remaining(self) -> Remaining | None:
        """None where the measurement is of another model or device: then no record says what is left."""
        if self.is_contradicted:
            return None
        return remaining(self.quantity, self.fit, is_same_point=self.is_same_point)


def applied(times: Sequence[MatchedTime]) -> Iterator[Applied]:
    """One fit for each kind of time, single stages first: they say more than the time of a whole phase."""
    keys = dict.fromkeys(matched.key for matched in times)
    for quantity, stage, phase in sorted(keys, key=lambda key: key[0] is not Quantity.STAGE):
        chosen = [matched for matched in times if matched.key == (quantity, stage, phase)]
        points = [
            FitPoint(
                samples_s=tuple(sample * matched.scale for sample in matched.time.samples_s),
                predicted_s=matched.point.predicted_s,
            )
            for matched in chosen
        ]
        yield Applied(
            quantity=quantity,
            stage=stage,
            phase=phase,
            fit=fitted(points),
            by_family=_family_fits(chosen, phase),
            is_device_time=chosen[0].time.is_device_time,
            is_same_point=any(matched.point.is_same_point for matched in chosen),
            is_contradicted=any(matched.is_contradicted for matched in chosen),
        )


def _family_fits(chosen: Sequence[MatchedTime], phase: str | None) -> dict[str, Fit]:
    points: dict[str, list[FitPoint]] = {}
    for matched in chosen:
        predicted = matched.predicted.family_seconds(matched.time, phase)
        for family, seconds in matched.time.by_family.items():
            if predicted.get(family):
                points.setdefault(family, []).append(FitPoint(samples_s=(seconds,), predicted_s=predicted[family]))
    return {family: fitted(family_points) for family, family_points in points.items()}


def corrected(
    stage: StageTime, graph: CallGraph, own: PredictedPoint, fits: Sequence[Applied]
) -> tuple[StageTime, StageCorrection | None]:
    """A stage by the first fit that covers it, and what that did; `own` is the uncorrected prediction of all stages."""
    chosen = next(
        (
            fit
            for fit in fits
            if is_covered(fit.quantity, fit.stage, graph.phase, stage.name) and fit.phase in (None, graph.phase)
        ),
        None,
    )
    if chosen is None:
        return stage, None
    time = Measurement(
        quantity=chosen.quantity,
        stage=chosen.stage,
        samples_s=(1.0,),
        is_device_time=chosen.is_device_time,
    )
    families = own.family_seconds(time, chosen.phase)
    left = chosen.remaining
    given = StageFactor(
        factor=chosen.fit.factor_at(own.seconds(time, chosen.phase)),
        remaining=left,
        is_device_time=chosen.is_device_time,
        by_family={name: fit.factor_at(families[name]) for name, fit in chosen.by_family.items() if families.get(name)},
    )
    after = corrected_stage(stage, given)
    before_s, after_s = centre(stage.wall), centre(after.wall)
    return after, StageCorrection(
        phase=graph.phase,
        stage=stage.name,
        by=chosen.quantity,
        measurements=chosen.fit.measurements,
        factor=after_s / before_s if before_s else given.factor,
        before_s=before_s,
        after_s=after_s,
        low_s=after.wall.low,
        high_s=after.wall.high,
        width_before=width(stage.wall),
        width_after=width(after.wall),
        by_family=given.by_family,
        is_same_point=chosen.is_same_point,
        why=left.why if left is not None else "nothing says what a measurement of something else leaves",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPoint:
    """The stages of every phase at one workload, before any correction."""

    times: Mapping[str, Sequence[StageTime]]  # phase -> its stages
    steps: int  # decode steps in the times of `decode`
    batch: int | None
    context: int | None
    is_same_point: bool  # the workload of the prediction that is corrected

    def stages(self, quantity: Quantity, stage: str | None, phase: str | None) -> list[tuple[str, StageTime]]:
        """Phase and stage of everything that a measured time covers."""
        return [
            (name, covered)
            for name, all_stages in self.times.items()
            for covered in all_stages
            if is_covered(quantity, stage, name, covered.name) and phase in (None, name)
        ]

    def seconds(self, time: Measurement, phase: str | None) -> float:
        """What was predicted for the measured time; 0 where no stage is covered."""
        return sum(
            centre(predicted.device_time if time.is_device_time else predicted.wall) / self._steps(name)
            for name, predicted in self.stages(time.quantity, time.stage, phase)
        )

    def family_seconds(self, time: Measurement, phase: str | None) -> dict[str, float]:
        """The same by kind of kernel."""
        by_family: dict[str, float] = {}
        for name, stage in self.stages(time.quantity, time.stage, phase):
            for family, spent in families(stage).items():
                by_family[family] = by_family.get(family, 0.0) + spent / self._steps(name)
        return by_family

    def bound_s(self, time: Measurement, phase: str | None) -> float | None:
        """What no run is faster than, whichever experts its routers choose; None: not known of every stage."""
        total = 0.0
        for name, stage in self.stages(time.quantity, time.stage, phase):
            bound = stage.fewest_experts_bound or stage.lower_bound
            if bound is None:
                return None
            total += bound.seconds / self._steps(name)
        return total

    def _steps(self, phase: str) -> int:
        return self.steps if phase == DECODE else 1


def is_covered(quantity: Quantity, stage: str | None, phase: str, name: str) -> bool:
    """Whether a measured time includes a stage: the first token all phases before decode, a later one a decode step."""
    if quantity is Quantity.STAGE:
        return name == stage
    return (phase == DECODE) == (quantity is Quantity.TPOT)


def steps_of(graph: CallGraph) -> int:
    """How many decode steps a graph holds; 1 for other phases."""
    steps = graph.runtime.get("decode_steps", 1) if graph.phase == DECODE else 1
    return steps if isinstance(steps, int) and steps > 0 else 1


def batch_of(graph: CallGraph) -> int | None:
    """The sequences that a graph was traced with; None: its header does not say."""
    batch = graph.workload.get("batch")
    return batch if isinstance(batch, int) else None


def context_of(graph: CallGraph) -> int | None:
    """Tokens of one sequence after the prefill, tokens of media included; None: the header does not say."""
    tokens = graph.workload.get("context_tokens", graph.workload.get("prompt_tokens"))
    return tokens if isinstance(tokens, int) else None


_NS = 1e-9
_ORDER = (KernelKind.MATMUL, KernelKind.ATTENTION, KernelKind.COMMUNICATION, KernelKind.VECTOR)


def recorded_run(
    joined: JoinedRecording, graph: CallGraph, *, file: str, source: str, device: str | None
) -> MeasuredRun:
    """Seconds of one forward: of the attributed kernels of each stage, and of each kind of kernel in it."""
    spent: dict[str, Counter[str]] = defaultdict(Counter)
    for stage, family, duration_ns in _attributed(joined, graph):
        spent[stage][family] += duration_ns
    forwards = max(1, joined.forwards)
    times = [
        Measurement(
            quantity=Quantity.STAGE,
            stage=stage,
            samples_s=(of_stage.total() * _NS / forwards,),
            statistic=f"kernels, mean of {forwards:,} forwards" if forwards > 1 else "kernels of one forward",
            is_device_time=True,
            by_family={family: spent_ns * _NS / forwards for family, spent_ns in of_stage.items() if spent_ns},
        )
        for stage, of_stage in spent.items()
        if of_stage.total()
    ]
    return run_of(times, source=source, file=file, model=None, device=device, phase=graph.phase)


def _attributed(joined: JoinedRecording, graph: CallGraph) -> Iterator[tuple[str, str, int]]:
    """Stage, kind of kernel and nanoseconds of all work that belongs to an op or to a module."""
    names, stages, ops = stage_names(graph), stage_of_calls(graph), ops_of(graph)
    for work in joined.work:
        if work.evidence is None:
            continue
        call = ops.call[work.ops[0]] if work.ops else work.call
        yield names[stages[call]] if call >= 0 else graph.phase, _family(work, graph), work.duration_ns


def _family(work: JoinedWork, graph: CallGraph) -> str:
    """Of several ops in one kernel the heaviest kind; a kernel without an op is a small one between two ops."""
    kinds = {kernel.kind for row in work.ops for kernel in kernels_of(graph.op_kinds[ops_of(graph).kind[row]])}
    return str(next((kind for kind in _ORDER if kind in kinds), KernelKind.VECTOR))
