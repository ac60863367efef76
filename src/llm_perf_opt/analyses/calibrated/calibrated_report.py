"""The calibrated prediction as tables: how long each stage takes on the machine, and which work takes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.calibrated.predict import StageTime, predict_stages
from llm_perf_opt.analyses.run_description import workload_note
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware.calibration import Calibration
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table

_FAMILIES_SHOWN = 8
_STAGE_COLUMNS = (
    Column("stage"),
    Column("predicted", Kind.SECONDS),
    Column("low", Kind.SECONDS),
    Column("high", Kind.SECONDS),
    Column("fresh memory", Kind.BYTES),
    Column("ops without a prediction", Kind.COUNT),
)
_FAMILY_COLUMNS = (Column("stage"), Column("work"), Column("time", Kind.SECONDS), Column("share", Kind.RATIO))


def calibrated_report(graphs: Sequence[CallGraph], calibration: Calibration) -> Report:
    """Two tables per phase, and what the prediction leaves out."""
    tables: list[Table] = []
    notes = [
        workload_note(graphs),
        Note(f"Times on {calibration.title}, as its calibration measured them."),
        Note("Low and high: all work at the fastest, or all at the slowest try of the calibration."),
    ]
    if calibration.is_smoke:
        notes.append(Note("The calibration tried the smallest sizes only: these times mean nothing.", Level.WARNING))
    for graph in graphs:
        stages = predict_stages(graph, calibration)
        tables += (_stage_table(graph, stages), _family_table(graph, stages))
        notes += _holes(graph, stages)
    title = f"{graphs[0].model if graphs else 'Nothing'} on {calibration.title}"
    return Report(title=title, tables=tuple(tables), notes=tuple(notes))


def _stage_table(graph: CallGraph, stages: Sequence[StageTime]) -> Table:
    rows = tuple(map(_stage_row, stages))
    totals = tuple(
        sum(cell for cell in column if isinstance(cell, int | float)) for column in list(zip(*rows, strict=True))[1:]
    )
    return Table(
        title=f"Predicted time, {graph.phase}",
        columns=_STAGE_COLUMNS,
        rows=rows,
        footer=("total", *totals) if rows else (),
    )


def _stage_row(stage: StageTime) -> tuple[Cell, ...]:
    time = stage.time
    missing = sum(stage.unpredicted.values())
    return stage.name, time.median_s, time.fastest_s, time.slowest_s, stage.fresh_bytes, missing


def _family_table(graph: CallGraph, stages: Sequence[StageTime]) -> Table:
    rows = [row for stage in stages for row in _family_rows(stage)]
    return Table(title=f"Work with the most time, {graph.phase}", columns=_FAMILY_COLUMNS, rows=tuple(rows))


def _family_rows(stage: StageTime) -> Iterator[tuple[Cell, ...]]:
    for family, seconds in list(stage.by_family.items())[:_FAMILIES_SHOWN]:
        yield stage.name, family.replace("_", " "), seconds, seconds / stage.time.median_s


def _holes(graph: CallGraph, stages: Sequence[StageTime]) -> Iterator[Note]:
    for stage in stages:
        if stage.unpredicted:
            named = ", ".join(f"{name} ({count})" for name, count in stage.unpredicted.items())
            yield Note(f"{graph.phase}, {stage.name}: no calibrated work describes {named}.", Level.WARNING)
