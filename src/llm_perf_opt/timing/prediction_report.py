"""The predicted times of a run as tables and charts, for any source of rates, and what they rest on.

A prediction by measured kernels has tables of its own: the origin of the times, what an engine launches, what it fuses.
The notes below the tables name every reservation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.device import PEAKS_OF_DTYPE
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.report import BarChart, Cell, Chart, Column, Kind, Level, Note, Report, Series, Table
from llm_perf_opt.core.units import format_bytes, format_seconds
from llm_perf_opt.costs.coverage import counted_or_unknown, known_sum, priced_sum
from llm_perf_opt.costs.necessary.stage_needs import StageNeeds, difference_notes, expert_notes
from llm_perf_opt.costs.run_description import run_notes, workload_note
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.timing.efficiency import op_rooflines, roofline_of_bands, roofline_table
from llm_perf_opt.timing.engine_kernels import RuleUse, fused_run
from llm_perf_opt.timing.lower_bound import BoundBy, is_known
from llm_perf_opt.timing.predict import StageTime, predict, total_wall
from llm_perf_opt.timing.rates import NOTHING, Band, RateSource

_PREDICTED = (
    "work of the traced ops over the rates of the device, and the host's launches (docs/start/how-fast-could-it-be.md)"
)


def origin_tables(stages: Sequence[StageTime]) -> Iterator[Table]:
    """The share of the expected kernel time by where it came from; nothing where a source keeps no origin."""
    origins: dict[str, float] = {}
    for stage in stages:
        for origin, share in stage.by_origin.items():
            origins[origin] = origins.get(origin, 0.0) + share
    names = sorted(origins, key=lambda origin: -origins[origin])
    if names:
        yield Table(
            title="Where kernel times come from",
            columns=(Column("stage"), *(Column(name, Kind.RATIO) for name in names)),
            rows=tuple((stage.name, *(stage.by_origin.get(name, 0.0) for name in names)) for stage in stages),
            origin="expected kernel time of the stage from this origin over all of it",
        )


def step_tables(stages: Sequence[StageTime]) -> Iterator[Table]:
    """The kernels of steps that an engine runs as a whole, by what they do."""
    rows = [
        (stage.name, rate, count, seconds)
        for stage in stages
        if stage.is_step
        for rate, (count, seconds) in _by_rate(stage).items()
    ]
    if rows:
        yield Table(
            title="Kernels that an engine launches in a step",
            columns=(
                Column("stage"),
                Column("kernel"),
                Column("kernel launches", Kind.COUNT),
                Column("expected", Kind.SECONDS),
            ),
            rows=tuple(rows),
        )


def _by_rate(stage: StageTime) -> dict[str, tuple[int, float]]:
    """What a kernel is timed as -> launches and seconds of one device, the longest first."""
    by_name: dict[str, tuple[int, float]] = {}
    for piece in stage.pieces:
        for time in piece.times:
            count, seconds = by_name.get(time.rate, (0, 0.0))
            by_name[time.rate] = (count + piece.count, seconds + piece.count * (time.band.expected or 0.0))
    return dict(sorted(by_name.items(), key=lambda item: -item[1][1]))


def fusion_tables(graphs: Sequence[CallGraph], stages: Sequence[StageTime]) -> Iterator[Table]:
    """Which rules applied in the other stages, how often, and the launches before and after."""
    steps = {stage.name for stage in stages if stage.is_step}
    uses: list[RuleUse] = [use for graph in graphs for use in fused_run(graph).rules if use.stage not in steps]
    if uses:
        yield _fusion_table(uses)


def _fusion_table(uses: Sequence[RuleUse]) -> Table:
    return Table(
        title="What an engine fuses",
        columns=(
            Column("stage"),
            Column("rule"),
            Column("times", Kind.COUNT),
            Column("kernel launches before", Kind.COUNT),
            Column("kernel launches after", Kind.COUNT),
        ),
        rows=tuple((use.stage, str(use.rule), use.times, use.before, use.after) for use in uses),
    )


Phases = Sequence[tuple[CallGraph, Sequence[StageTime]]]


def prediction_notes(phases: Phases, rates: RateSource) -> Iterator[Note]:
    """The workload, what the source of rates is, what follows from the times, and what they leave out."""
    graphs = [graph for graph, _ in phases]
    stages = [stage for _, of_phase in phases for stage in of_phase]
    yield workload_note(graphs)
    if rates.device is not None:
        yield from run_notes(graphs)
    yield from rates.notes()
    if rates.device is not None:
        yield from _bound_notes(stages, rates.device)
        yield from _decode_notes(graphs, stages)
        yield from _raised_notes(stages)
        yield from _launch_notes(stages)
        yield from _reservations(stages, rates.device)
        yield from _link_notes(stages, rates.cluster)
    yield from _untimed_notes(phases)


def _link_notes(stages: Sequence[StageTime], cluster: Cluster | None) -> Iterator[Note]:
    """How communication is timed, by which figures, and which of it has no time."""
    communications = [stage.communication for stage in stages if stage.communication is not None]
    unknown: Counter[str] = Counter()
    for communication in communications:
        unknown.update(communication.unknown)
    for why, count in unknown.items():
        yield Note(f"{count:,} collectives have no known time and are left out of every sum: {why}.", Level.WARNING)
    if not communications or cluster is None:
        return
    yield Note(
        "Communication may overlap with other work, so the lower bound is the largest of compute, memory and "
        "communication, and the band runs from full overlap (the longer of the two) to none (their sum). "
        "docs/reference/links.md explains the times of collectives."
    )
    for link in (cluster.inside, cluster.between if cluster.nodes > 1 else None):
        if link is not None and link.unverified:
            yield Note(
                f"These figures of {link.name} are used here and were not read in a source: "
                f"{', '.join(link.unverified)}.",
                Level.WARNING,
            )


def _untimed_notes(phases: Phases) -> Iterator[Note]:
    for graph, stages in phases:
        for stage in stages:
            others = {name: count for name, count in stage.untimed.items() if name != KernelKind.COMMUNICATION}
            if others:
                named = ", ".join(f"{name} ({count})" for name, count in others.items())
                text = f"{graph.phase}, {stage.name}: the calibration measured nothing like {named}."
                yield Note(text, Level.WARNING)


def bound_claim(device: Device, stages: Sequence[StageTime], *, with_experts: bool = False) -> str:
    """How far the lower bound can be trusted."""
    if device.is_measured:
        return "The lower bound rests on measured rates; a run in a quiet moment may be faster"
    is_rank = any(stage.communication is not None for stage in stages)
    nothing = f"No run{' of this plan as traced' if is_rank else ''} is faster than the lower bound"
    if with_experts:
        nothing += " unless its routers touch fewer experts, and none is faster than the bound with the fewest"
    return f"{nothing}; an engine that shards what the plan replicates may be" if is_rank else nothing


def has_experts(stages: Sequence[StageTime]) -> bool:
    """Whether a bound depends on how many experts get tokens."""
    return any(stage.work.necessary is not None and stage.work.necessary.distinct_experts for stage in stages)


def _bound_notes(stages: Sequence[StageTime], device: Device) -> Iterator[Note]:
    """What the bound is, where the code does more than it must, and by which routing policy experts are counted."""
    of_code = "FLOPs, bytes moved, kernel launches and the band describe the code as written."
    if any(stage.is_engine for stage in stages):
        of_code = "FLOPs and bytes moved describe the code as written, the band describes an engine's kernels."
    yield Note(
        f"{of_code} The lower bound counts necessary work: "
        "what any implementation must compute and read once, at the dense peak and at full bandwidth. "
        f"{bound_claim(device, stages, with_experts=has_experts(stages))}. "
        f"docs/start/how-fast-could-it-be.md explains both."
    )
    works = [stage.work for stage in stages]
    yield from difference_notes(
        [
            StageNeeds(name=work.name, flops=work.flops, bytes_moved=work.bytes_moved, necessary=work.necessary)
            for work in works
        ]
    )
    for work in works:
        if work.necessary is not None:
            yield from expert_notes(work.name, work.necessary)


def _decode_notes(graphs: Sequence[CallGraph], stages: Sequence[StageTime]) -> Iterator[Note]:
    for graph in graphs:
        steps = graph.runtime.get("decode_steps")
        stage = next((stage for stage in stages if stage.name == graph.phase == "decode"), None)
        if stage is not None and isinstance(steps, int) and steps > 1:
            band = stage.wall.times(1 / steps)
            yield Note(
                f"The {steps} steps of the decode take {format_seconds(band.low)} to {format_seconds(band.high)} each."
            )


def _raised_notes(stages: Sequence[StageTime]) -> Iterator[Note]:
    for stage in stages:
        if stage.raised_from_s is not None and stage.busy_time.expected is not None:
            yield Note(
                f"{stage.name}: its measured kernels add up to {format_seconds(stage.raised_from_s)}. Its bytes cannot "
                "be read that fast at the best bandwidth in the tables (a kernel measured alone finds its weights in a "
                f"cache), so {format_seconds(stage.busy_time.expected)} is expected.",
                Level.WARNING,
            )


def _launch_notes(stages: Sequence[StageTime]) -> Iterator[Note]:
    for stage in stages:
        if stage.bound_by is BoundBy.LAUNCHES and stage.host_time != NOTHING:
            yield Note(
                f"{stage.name} is bound by its {stage.launches:,} kernel launches: the device alone would need "
                f"{format_seconds(stage.device_time.low)} to {format_seconds(stage.device_time.high)}."
            )


def _reservations(stages: Sequence[StageTime], device: Device) -> Iterator[Note]:
    dtypes = sorted({dtype for stage in stages for dtype in stage.work.flops_by_dtype})
    if doubtful := sorted(_figures_used(dtypes, device) & set(device.unverified)):
        yield Note(
            f"These figures of {device.name} are used here and were not read in a source: {', '.join(doubtful)}.",
            Level.WARNING,
        )
    for other in dtypes:
        if not is_known(other, device):
            yield Note(
                f"{device.name} has no known rate for {other}: that work is counted at the fastest rate it could have.",
                Level.WARNING,
            )
    unpriced = sum(stage.work.unpriced_ops for stage in stages)
    if unpriced:
        yield Note(f"{unpriced:,} ops have no price: the band holds their bytes and not their FLOPs.", Level.WARNING)
    if any(stage.work.necessary is None for stage in stages):
        yield Note("The trace does not record which tensors an op took: no lower bound is known.", Level.WARNING)
    elif any(stage.work.must_read_bytes is None for stage in stages):
        yield Note("The trace does not follow memory: the lower bound rests on FLOPs alone.", Level.WARNING)
    if device.cache_bytes is None:
        yield Note(f"No cache size is known for {device.name}: every byte is counted as coming from memory.")
    else:
        size = format_bytes(device.cache_bytes)
        yield Note(f"The lower bound assumes that the cache of {device.name}, {size}, holds what it can.")


def _figures_used(dtypes: Sequence[str], device: Device) -> set[str]:
    """What bound, band and memory rest on, as a file of devices spells it."""
    peaks = {name for dtype in dtypes for name in PEAKS_OF_DTYPE.get(dtype, (dtype,))}
    if "float32" in dtypes:
        peaks.add("tf32")  # the bound lets a program choose it
    caches = {"l2_mib": device.l2_bytes, "last_cache_mib": device.last_cache_bytes}
    return {
        *(f"peak_tflops_dense.{name}" for name in peaks),
        *(name for name, size in caches.items() if size is not None and size == device.cache_bytes),
        "bandwidth_gb_per_s",
        "memory_gb",
        "launch_overhead_us",
    }


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
    phase_times = [predict(graph, rates) for graph in graphs] if times is None else times
    phases = list(zip(graphs, phase_times, strict=True))
    stages = [stage for _, of_phase in phases for stage in of_phase]
    model = graphs[0].model if graphs else "Nothing"
    notes = tuple(prediction_notes(phases, rates))
    if rates.device is None:
        tables = (table for graph, of_phase in phases for table in _measured_tables(graph.phase, of_phase))
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
    """A column with the sum of its known cells as total."""
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
_LAUNCHES = _summed(Column("kernel launches", Kind.COUNT), lambda stage: stage.launches)
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
        origin=_PREDICTED,
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
    return Table(title="Where the lower bound, low and high come from", columns=columns, rows=rows, origin=_PREDICTED)


def _communication_tables(stages: Sequence[StageTime]) -> Iterator[Table]:
    """The collectives of each stage; no table where no stage has any."""
    rows: list[tuple[Cell, ...]] = []
    for stage in stages:
        if (communication := stage.communication) is not None:
            bound = None if stage.lower_bound is None else stage.lower_bound.communication_s
            rows.append(
                (
                    stage.name,
                    communication.collectives,
                    communication.payload_bytes,
                    communication.sent_bytes,
                    None if communication.unknown else bound,
                    *(_ends(communication.band)),
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
        interval=("low", *(series.name for series in _expected_series(stages)), "high"),
        caption=f"{bound_claim(device, stages)}; a run is expected to take between low and high.",
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
