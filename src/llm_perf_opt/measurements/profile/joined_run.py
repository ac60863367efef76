"""A profiled run laid on its trace: measured next to predicted by stage and kind of kernel, and the largest gaps.

The clock of the timed passes says how long a stage took, torch's profiler how long its kernels did. Of a decode the
last recorded step is joined, with the last step of the trace: the cache is as long in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph import CallGraph, OpKind
from llm_perf_opt.core.callgraph.records import TensorMeta
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.core.recordings.recording import Recording
from llm_perf_opt.core.report import BarChart, Cell, Column, Kind, Level, Note, Series, Table
from llm_perf_opt.core.units import format_ratio, format_seconds
from llm_perf_opt.measurements.correction import centre
from llm_perf_opt.measurements.join.attribution import ENOUGH
from llm_perf_opt.measurements.join.gaps import Gap, GapReason, largest_first, module_gaps
from llm_perf_opt.measurements.join.join_report import Joined, joined_with
from llm_perf_opt.measurements.profile.join import RunFigures, TimedStage
from llm_perf_opt.ops.kernel_names import launch_words
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.predict import StageTime, predict
from llm_perf_opt.timing.rate_sources import source_of
from llm_perf_opt.timing.rates import Band

BETWEEN, BETWEEN_OPS = "between kernels", "between ops"
_NS_PER_S = 10**9
_KINDS_SHOWN = 4  # of a phase
_GAPS_SHOWN = 10
_SOME = TensorMeta((4, 4), "float32", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStage:
    """One stage of one forward. `measured_s` is by the clock, `kernel_s` by the profiler; None is unknown."""

    phase: str
    name: str
    measured_s: float | None
    kernel_s: float
    kernels: int
    predicted: Band | None  # of the whole stage, from its first launch to its last result
    predicted_kernels: Band | None
    lower_bound_s: float | None
    mfu: float | None
    mbu: float | None

    @property
    def is_in_band(self) -> bool | None:
        """Whether the clock's time is in the predicted band."""
        return None if self.predicted is None or self.measured_s is None else self.predicted.holds(self.measured_s)

    @property
    def times_expected(self) -> float | None:
        """Measured over expected time."""
        expected_s = 0.0 if self.predicted is None else centre(self.predicted)
        return self.measured_s / expected_s if expected_s and self.measured_s is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRun:
    """All phases of one page. `gaps` are the largest first, of modules and between kernels."""

    phases: tuple[Joined, ...]
    stages: tuple[ComparedStage, ...]
    gaps: tuple[Gap, ...]
    on_host: bool  # the ops of a processor count as kernels

    @property
    def line(self) -> str:
        """The largest gap in one sentence."""
        if not self.gaps:
            return ""
        first = self.gaps[0]
        why = "" if first.reason is None else f" ({first.reason})"
        if first.gap_s is None:
            return f"Longest: {first.stage}, {first.place}, {format_seconds(first.measured_s)}{why}."
        return f"Largest gap: {first.stage}, {first.place}: {_more(first.gap_s)} expected{why}."

    @property
    def measured(self) -> str:
        """The stages by the clock in the words of a measurement, `ttft=0.5s tpot=0.02s`; empty where none was timed."""
        seconds: dict[str, float] = {}
        for stage in self.stages:
            if stage.measured_s is not None:
                name = "tpot" if stage.phase == DECODE else "ttft"
                seconds[name] = seconds.get(name, 0.0) + stage.measured_s
        return " ".join(f"{name}={time_s:.9f}s" for name, time_s in seconds.items())


def _more(gap_s: float) -> str:
    return f"{format_seconds(abs(gap_s))} {'more' if gap_s >= 0 else 'less'} than"


def join_profiled(
    graphs: Sequence[CallGraph], recording: Recording, figures: RunFigures, device: Device | None, *, on_host: bool
) -> JoinedRun:
    """Each phase with its range in the recording of one page."""
    from llm_perf_opt.harness.stage_ranges import STAGE_PREFIX

    timed = {stage.name: stage for stage in figures.stages}
    phases: list[Joined] = []
    stages: list[ComparedStage] = []
    gaps: list[Gap] = []
    for graph in graphs:
        part = recording.in_last_range(f"{STAGE_PREFIX}{graph.phase}")
        part = _without_views(part) if on_host else part
        if not part.work:
            continue
        joined = joined_with(graph, part, device)
        compared = list(_compared(joined, timed))
        phases.append(joined)
        stages += compared
        gaps += (*module_gaps(joined), *_between(compared, on_host=on_host))
    return JoinedRun(phases=tuple(phases), stages=tuple(stages), gaps=tuple(largest_first(gaps)), on_host=on_host)


def _without_views(recording: Recording) -> Recording:
    """The ops that touch memory: a processor's profile has the views too."""
    memory_work = (work for work in recording.work if any(_touches_memory(op.name) for op in recording.chain_of(work)))
    return replace(recording, work=tuple(memory_work))


def _touches_memory(name: str) -> bool:
    packet = name.replace("::", ".")
    return bool(launch_words(OpKind(name=packet.rstrip("_") or packet, inputs=(_SOME,) * 3, outputs=(_SOME,))))


def _compared(joined: Joined, timed: dict[str, TimedStage]) -> Iterator[ComparedStage]:
    graph, forwards = joined.graph, max(1, joined.joined.forwards)
    predicted = _predicted(graph, joined.device)
    for row in joined.totals.stages:
        clock, expected = timed.get(row.name), predicted.get(row.name)
        steps = _steps(graph)
        per_step = None if clock is None or not clock.occurrences else clock.total_ns / clock.occurrences / _NS_PER_S
        efficiency = None if clock is None else clock.efficiency
        bound_s = None if expected is None else expected.lower_bound_s
        yield ComparedStage(
            phase=graph.phase,
            name=row.name,
            measured_s=per_step,
            kernel_s=row.device_ns / _NS_PER_S / forwards,
            kernels=row.kernels // forwards,
            predicted=None if expected is None else expected.wall.times(1 / steps),
            predicted_kernels=None if expected is None else expected.device_time.times(1 / steps),
            lower_bound_s=None if bound_s is None else bound_s / steps,
            mfu=None if efficiency is None else efficiency.mfu,
            mbu=None if efficiency is None else efficiency.mbu,
        )


def _predicted(graph: CallGraph, device: Device | None) -> dict[str, StageTime]:
    if device is None:
        return {}
    return {stage.work.name: stage for stage in predict(graph, source_of(device, Execution.EAGER, None))}


def _steps(graph: CallGraph) -> int:
    """Forwards in the trace of the phase: a decode has one for each token."""
    steps = graph.runtime.get("decode_steps") if graph.phase == DECODE else None
    return steps if isinstance(steps, int) and steps else 1


def _between(stages: Sequence[ComparedStage], *, on_host: bool) -> Iterator[Gap]:
    """What a stage took besides its kernels: the device waited for the host to launch the next one.

    On a processor it is the code around the ops, and views.
    """
    for stage in stages:
        if stage.measured_s is None or stage.measured_s <= stage.kernel_s:
            continue
        expected = None
        if stage.predicted is not None and stage.predicted_kernels is not None:
            expected = max(0.0, centre(stage.predicted) - centre(stage.predicted_kernels))
        yield Gap(
            stage=stage.name,
            place=BETWEEN_OPS if on_host else BETWEEN,
            kernels=stage.kernels,
            measured_s=stage.measured_s - stage.kernel_s,
            expected_s=expected,
            reason=GapReason.HOST if on_host else GapReason.LAUNCHES,
        )


def joined_tables(run: JoinedRun) -> tuple[Table, ...]:
    """Stages, kinds of kernels, and the ranked list of gaps."""
    tables: tuple[Table, ...] = (_stage_table(run), _kind_table(run), _gap_table(run))
    if run.on_host:
        tables = tuple(map(_of_ops, tables))
    is_predicted = any(joined.device is not None for joined in run.phases)
    return tables if is_predicted else tuple(map(_only_measured, tables))


def joined_chart(run: JoinedRun) -> BarChart:
    """The ranked list as bars."""
    shown = run.gaps[:_GAPS_SHOWN]
    series = [Series("measured", tuple(gap.measured_s for gap in shown))]
    if any(gap.expected_s is not None for gap in shown):
        series.append(Series("expected", tuple(gap.expected_s for gap in shown)))
    return BarChart(
        title="Largest gaps" if len(series) > 1 else "Longest times",
        categories=tuple(f"{gap.stage}: {gap.place}" for gap in shown),
        series=tuple(series),
        kind=Kind.SECONDS,
        caption="One forward of each phase, by stage and family of modules.",
    )


def joined_notes(run: JoinedRun) -> Iterator[Note]:
    """What was joined, how much of it is known, and what the figures are of."""
    what = "time of the ops" if run.on_host else "kernel time"
    for joined in run.phases:
        text = (
            f"{joined.graph.phase}: {format_ratio(joined.attributed)} of the {what} belongs to traced ops or modules."
        )
        yield Note(text, Level.INFO if joined.attributed >= ENOUGH else Level.WARNING)
    yield Note(
        "Times of stages are medians of the timed passes; times of kernels are from one pass under torch's profiler. "
        "A decode is one step. The low and high of a kind add up the low and high of its kernels."
    )
    if run.on_host:
        yield Note("The run was on the processor: each op of torch counts as a kernel.")
    first = run.phases[0] if run.phases else None
    if first is not None and first.device is not None and not run.on_host and first.recording.device_name is None:
        yield Note(f"The recording names no GPU: it is taken to be of {first.device.name}.", Level.WARNING)
    if first is not None and first.device is None:
        yield Note(
            "The peaks of this device are not known: nothing is predicted, and the list is sorted by measured time."
        )


_IN_BAND, _GAP = Column("in band"), Column("gap", Kind.SECONDS)
_BAND = (Column("low", Kind.SECONDS), Column("expected", Kind.SECONDS), Column("high", Kind.SECONDS))


def _ends(band: Band | None) -> tuple[Cell, Cell, Cell]:
    return (None, None, None) if band is None else (band.low, centre(band), band.high)


_OF_DEVICE = (*_BAND, Column("measured / expected", Kind.RATIO), Column("MFU", Kind.RATIO), Column("MBU", Kind.RATIO))


def _only_measured(table: Table) -> Table:
    """Without the columns of a device, where none is known."""
    unknown = (*_OF_DEVICE, _IN_BAND, _GAP)
    places = [place for place, column in enumerate(table.columns) if column not in unknown]
    title = "Longest times, one forward of each phase" if _GAP in table.columns else table.title
    return Table(
        title=title.replace("Measured and predicted", "Measured"),
        columns=tuple(table.columns[place] for place in places),
        rows=tuple(tuple(row[place] for place in places) for row in table.rows),
    )


def _of_ops(table: Table) -> Table:
    """In the words of a processor."""
    names = {"kernels": "ops", "kernel time": "op time", "kind": "kind of op"}
    columns = tuple(replace(column, name=names.get(column.name, column.name)) for column in table.columns)
    return replace(table, columns=columns, title=table.title.replace("kernel", "op"))


def _stage_table(run: JoinedRun) -> Table:
    columns = (
        Column("stage"),
        Column("measured", Kind.SECONDS),
        Column("kernels", Kind.COUNT),
        Column("kernel time", Kind.SECONDS),
        *_OF_DEVICE,
        _IN_BAND,
    )
    words = {True: "yes", False: "no", None: None}
    rows = tuple(
        (
            stage.name,
            stage.measured_s,
            stage.kernels,
            stage.kernel_s,
            *_ends(stage.predicted),
            stage.times_expected,
            stage.mfu,
            stage.mbu,
            words[stage.is_in_band],
        )
        for stage in run.stages
    )
    return Table(title="Measured and predicted by stage", columns=columns, rows=rows)


def _kind_table(run: JoinedRun) -> Table:
    columns = (
        Column("phase"),
        Column("kind"),
        Column("kernels", Kind.COUNT),
        Column("kernel time", Kind.SECONDS),
        *_OF_DEVICE,
    )
    rows = tuple(
        (
            joined.graph.phase,
            kind.name,
            kind.kernels,
            kind.device_ns / _NS_PER_S,
            *_ends(kind.predicted),
            kind.times_predicted,
            kind.mfu,
            kind.mbu,
        )
        for joined in run.phases
        for kind in joined.totals.op_kinds[:_KINDS_SHOWN]
    )
    return Table(title="Measured and predicted by kind of kernel", columns=columns, rows=rows)


def _gap_table(run: JoinedRun) -> Table:
    columns = (
        Column("rank", Kind.COUNT),
        Column("stage"),
        Column("where"),
        Column("measured", Kind.SECONDS),
        _BAND[1],
        _GAP,
        Column("reason"),
    )
    rows = tuple(
        (place, gap.stage, gap.place, gap.measured_s, gap.expected_s, gap.gap_s, gap.reason)
        for place, gap in enumerate(run.gaps[:_GAPS_SHOWN], 1)
    )
    title = "Largest gaps between measured and expected time, one forward of each phase"
    return Table(title=title, columns=columns, rows=rows)
