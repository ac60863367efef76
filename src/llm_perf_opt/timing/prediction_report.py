"""The predicted times of a run as tables and charts, for any source of rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.report import BarChart, Cell, Chart, Column, Kind, Report, Series, Table
from llm_perf_opt.costs.coverage import counted_or_unknown, known_sum, priced_sum
from llm_perf_opt.timing.kernel_origin_tables import fusion_tables, origin_tables, step_tables
from llm_perf_opt.timing.lower_bound import is_known
from llm_perf_opt.timing.predict import StageTime, predict, total_wall
from llm_perf_opt.timing.prediction_notes import bound_claim, has_experts, prediction_notes
from llm_perf_opt.timing.rates import Band, RateSource
from llm_perf_opt.timing.roofline import op_rooflines, roofline_of_bands, roofline_table

_SHOWN_OPS = 12
_SHOWN_RATES = 8


def prediction_report(
    graphs: Sequence[CallGraph], rates: RateSource, times: Sequence[Sequence[StageTime]] | None = None
) -> Report:
    """Every stage of every phase by one source of rates, and what takes the time.

    A source with a data sheet shows the lower bound, where bound and band come from, the ops that take longest at the
    roof, and by measured kernels what an engine fuses. A calibration shows what it expects, and which of its rates take
    the time. `times` are what `predict` gives for each graph, if that is known already.
    """
    found_times = [predict(graph, rates) for graph in graphs] if times is None else times
    phases = list(zip(graphs, found_times, strict=True))
    stages = [stage for _, found in phases for stage in found]
    model = graphs[0].model if graphs else "Nothing"
    notes = tuple(prediction_notes(phases, rates))
    if rates.device is None:
        tables = (table for graph, found in phases for table in _measured_tables(graph.phase, found))
        return Report(title=f"{model} on {rates.title}", tables=tuple(tables), notes=notes)
    return Report(
        title=f"{model} on {rates.title}: how fast could it be",
        tables=(
            _stage_table("Predicted time by stage", stages, _bounded_columns(stages)),
            *origin_tables(stages),
            _detail_table(stages),
            *_communication_tables(stages),
            *step_tables(stages),
            *(fusion_tables(graphs, stages) if rates.is_engine and any(stage.by_origin for stage in stages) else ()),
            roofline_table(op_rooflines(graphs, rates.device)[:_SHOWN_OPS]),
        ),
        notes=notes,
        charts=_charts(stages, rates.device),
    )


@dataclass(frozen=True, slots=True)
class _StageColumn:
    """A column of the table of stages: its cell for one stage, and how the cells of all stages add up."""

    column: Column
    cell: Callable[[StageTime], Cell]
    total: Callable[[Sequence[StageTime]], Cell]


def _summed(column: Column, cell: Callable[[StageTime], int | float | None]) -> _StageColumn:
    """A column whose total is the sum of its known cells."""
    return _StageColumn(column, cell, lambda stages: sum(cell(stage) or 0 for stage in stages))


def _counted(column: Column, figure: Callable[[StageTime], int]) -> _StageColumn:
    """A column of what a stage costs, which is unknown where an op without a price ran."""

    def cell(stage: StageTime) -> int | None:
        return counted_or_unknown(figure(stage), stage.work.unpriced_ops)

    return _StageColumn(column, cell, lambda stages: priced_sum(cell(stage) for stage in stages))


_STAGE = _StageColumn(Column("stage"), lambda stage: stage.name, lambda _: "total")
_LOW = _StageColumn(Column("low", Kind.SECONDS), lambda stage: stage.wall.low, lambda stages: total_wall(stages).low)
_HIGH = _StageColumn(
    Column("high", Kind.SECONDS), lambda stage: stage.wall.high, lambda stages: total_wall(stages).high
)
_EXPECTED = _StageColumn(
    Column("expected", Kind.SECONDS),
    lambda stage: stage.wall.expected,
    lambda stages: total_wall(stages).expected,
)
_LAUNCHES = _summed(Column("launches", Kind.COUNT), lambda stage: stage.launches)
_ENGINE_KERNELS = _summed(Column("engine kernels", Kind.COUNT), lambda stage: stage.engine_kernels)
_BOUNDED_COLUMNS = (
    _STAGE,
    _counted(Column("FLOPs", Kind.FLOPS), lambda stage: stage.work.flops),
    _counted(Column("bytes moved", Kind.BYTES), lambda stage: stage.work.bytes_moved),
    _LAUNCHES,
    _StageColumn(
        Column("lower bound", Kind.SECONDS),
        lambda stage: stage.lower_bound_s,
        lambda stages: known_sum(stage.lower_bound_s for stage in stages),
    ),
    _LOW,
    _HIGH,
    _StageColumn(Column("bound by"), lambda stage: str(stage.bound_by), lambda _: ""),
)
_MEASURED_COLUMNS = (
    _STAGE,
    _summed(Column("predicted", Kind.SECONDS), lambda stage: stage.wall.expected),
    _LOW,
    _HIGH,
    _summed(Column("fresh memory", Kind.BYTES), lambda stage: stage.fresh_bytes),
    _summed(Column("ops without a prediction", Kind.COUNT), lambda stage: sum(stage.untimed.values())),
)


def _bounded_columns(stages: Sequence[StageTime]) -> Iterator[_StageColumn]:
    """With what is expected between low and high, where the source says that; of an engine its own kernels.

    A band of measured kernels and one of a data sheet are two figures, so each has its own name.
    """
    is_engine = any(stage.is_engine for stage in stages)
    is_measured = any(stage.wall.expected is not None for stage in stages)
    for column in _BOUNDED_COLUMNS:
        if column is _HIGH and is_measured:
            yield _EXPECTED
        if column in (_LOW, _HIGH) and not is_measured:
            yield replace(column, column=Column(f"data sheet {column.column.name}", Kind.SECONDS))
        else:
            yield _ENGINE_KERNELS if column is _LAUNCHES and is_engine else column


def _stage_table(title: str, stages: Sequence[StageTime], columns: Iterable[_StageColumn]) -> Table:
    shown = tuple(columns)
    return Table(
        title=title,
        columns=tuple(column.column for column in shown),
        rows=tuple(tuple(column.cell(stage) for column in shown) for stage in stages),
        footer=tuple(column.total(stages) for column in shown) if stages else (),
    )


def _measured_tables(phase: str, stages: Sequence[StageTime]) -> tuple[Table, Table]:
    columns = (Column("stage"), Column("work"), Column("time", Kind.SECONDS), Column("share", Kind.RATIO))
    rows = [row for stage in stages for row in _rate_rows(stage)]
    return (
        _stage_table(f"Predicted time, {phase}", stages, _MEASURED_COLUMNS),
        Table(title=f"Work with the most time, {phase}", columns=columns, rows=tuple(rows)),
    )


def _rate_rows(stage: StageTime) -> list[tuple[Cell, ...]]:
    expected = {rate: band.expected for (_, rate), band in stage.by_rate.items() if band.expected}
    return [
        (stage.name, rate.replace("_", " "), seconds, seconds / (stage.wall.expected or seconds))
        for rate, seconds in list(expected.items())[:_SHOWN_RATES]
    ]


def _detail_table(stages: Sequence[StageTime]) -> Table:
    with_experts = has_experts(stages)
    names = (
        ("necessary FLOPs", Kind.FLOPS),
        ("at the peak", Kind.SECONDS),
        ("bytes read once", Kind.BYTES),
        ("at full bandwidth", Kind.SECONDS),
        *((("bound with the fewest experts", Kind.SECONDS),) if with_experts else ()),
        ("device low", Kind.SECONDS),
        ("device high", Kind.SECONDS),
        ("host low", Kind.SECONDS),
        ("host high", Kind.SECONDS),
    )
    rows = tuple(
        (
            stage.name,
            None if stage.work.necessary is None else stage.work.necessary.flops,
            None if stage.lower_bound is None else stage.lower_bound.compute_s,
            stage.work.must_read_bytes,
            None if stage.lower_bound is None else stage.lower_bound.bandwidth_s,
            *([None if (fewest := stage.fewest_experts_bound) is None else fewest.seconds] if with_experts else []),
            stage.device_time.low,
            stage.device_time.high,
            stage.host_time.low,
            stage.host_time.high,
        )
        for stage in stages
    )
    columns = (Column("stage"), *(Column(*name) for name in names))
    return Table(title="Where the bound and the band come from", columns=columns, rows=rows)


def _communication_tables(stages: Sequence[StageTime]) -> Iterator[Table]:
    """What each stage exchanges with other ranks; nothing where no stage does."""
    rows: list[tuple[Cell, ...]] = []
    for stage in stages:
        if (found := stage.communication) is not None:
            bound = None if stage.lower_bound is None else stage.lower_bound.communication_s
            rows.append(
                (
                    stage.name,
                    found.collectives,
                    found.payload_bytes,
                    found.sent_bytes,
                    None if found.unknown else bound,
                    *(_ends(found.band)),
                    *(_ends(stage.exposed)),
                    None if stage.exposed is None or not stage.wall.high else stage.exposed.high / stage.wall.high,
                )
            )
    if rows:
        names = (
            ("collectives", Kind.COUNT),
            ("payload", Kind.BYTES),
            ("bytes sent", Kind.BYTES),
            ("lower bound", Kind.SECONDS),
            ("low", Kind.SECONDS),
            ("high", Kind.SECONDS),
            ("exposed low", Kind.SECONDS),
            ("exposed high", Kind.SECONDS),
            ("exposed share", Kind.RATIO),
        )
        columns = (Column("stage"), *(Column(*name) for name in names))
        yield Table(title="Communication of this rank", columns=columns, rows=tuple(rows))


def _ends(band: Band | None) -> tuple[float | None, float | None]:
    return (None, None) if band is None else (band.low, band.high)


def _charts(stages: Sequence[StageTime], device: Device) -> tuple[Chart, ...]:
    bars = BarChart(
        title="Predicted time by stage",
        categories=tuple(stage.name for stage in stages),
        series=(
            Series("lower bound", tuple(stage.lower_bound_s for stage in stages)),
            Series("low", tuple(stage.wall.low for stage in stages)),
            *_expected_series(stages),
            Series("high", tuple(stage.wall.high for stage in stages)),
        ),
        kind=Kind.SECONDS,
        caption=f"{bound_claim(device, stages)}; a run is expected between low and high.",
    )
    dtype = main_dtype(stages)
    if dtype is None or not is_known(dtype, device):
        return (bars,)
    rates = {
        stage.name: (
            stage.work.flops / stage.work.bytes_moved,
            stage.work.flops / stage.wall.high,
            stage.work.flops / stage.wall.low,
        )
        for stage in stages
        if stage.work.flops and stage.work.bytes_moved
    }
    return bars, roofline_of_bands(rates, device, dtype)


def _expected_series(stages: Sequence[StageTime]) -> Iterator[Series]:
    if any(stage.wall.expected is not None for stage in stages):
        yield Series("expected", tuple(stage.wall.expected for stage in stages))


def main_dtype(stages: Sequence[StageTime]) -> str | None:
    """The dtype in which most FLOPs run; None where none run."""
    flops: dict[str, int] = {}
    for stage in stages:
        for dtype, count in stage.work.flops_by_dtype.items():
            flops[dtype] = flops.get(dtype, 0) + count
    return max(flops, key=lambda dtype: flops[dtype], default=None)
