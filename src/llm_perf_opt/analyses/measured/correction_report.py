"""A correction as tables and sentences: what was measured, what it changed, and how wide the band is now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llm_perf_opt.analyses.measured.correction import StageCorrection
from llm_perf_opt.analyses.measured.measurement import Quantity
from llm_perf_opt.core.report import Column, Kind, Level, Note, Report, Table, table_of
from llm_perf_opt.core.units import format_count, format_ratio, format_seconds

MEASURED_TABLE = "What was measured"
CORRECTED_TABLE = "Corrected by measurement"
FAMILY_TABLE = "Factors by kind of kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One measured time beside what was predicted for the same work before the correction. None is not recorded."""

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


def with_correction(report: Report, correction: Correction | None) -> Report:
    """The report with the tables of the correction after that of the stages, and what it did as the first notes."""
    if correction is None:
        return report
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
        f"{format_ratio(correction.corrected_share)} of the predicted time is corrected by measurement; the lower "
        "bound is not. docs/one-measurement.md explains it."
    )
    yield from (Note(remark) for remark in correction.remarks)


def _sentence(stage: StageCorrection, correction: Correction) -> str:
    named = [point for point in correction.points if point.quantity is stage.by and point.stage in (None, stage.stage)]
    places = list(dict.fromkeys(one.where for one in named if one.where))
    where = f" at {'; '.join(places[:3])}{' ...' if len(places) > 3 else ''}" if places else ""
    count = f"{stage.measurements} measurement{'s' if stage.measurements != 1 else ''}"
    what = "the stage" if stage.by is Quantity.STAGE else str(stage.by)
    text = f"{stage.stage} x{stage.factor:.3g} from {count} of {what}{where}: "
    text += f"{format_seconds(stage.before_s)} becomes {format_seconds(stage.after_s)}"
    before, after = stage.width_before, stage.width_after
    if before is None or after is None:
        return f"{text}. The band: {stage.why}."
    change = "keeps its width" if abs(after / before - 1) < 0.005 else "shrinks" if after < before else "widens"
    return f"{text}. The band {change}: high over low {before:.3g} before, {after:.3g} after; {stage.why}."
