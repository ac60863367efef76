"""The predictions of a run as tables and charts, with every reservation about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.cost.coverage import counted_or_unknown, known_sum, priced_sum
from llm_perf_opt.analyses.necessary.necessary_table import BothWorks, difference_notes, expert_notes
from llm_perf_opt.analyses.prediction.band import NOTHING
from llm_perf_opt.analyses.prediction.predict import Execution, StagePrediction, predict_stages, total_wall
from llm_perf_opt.analyses.roofline import op_rooflines, op_table, roofline_of_bands
from llm_perf_opt.analyses.roofline.bound import Bound, is_known
from llm_perf_opt.analyses.run_description import run_notes, workload_note
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.device import PEAKS_OF_DTYPE
from llm_perf_opt.core.report import BarChart, Cell, Chart, Column, Kind, Level, Note, Report, Series, Table
from llm_perf_opt.core.units import format_bytes, format_seconds

_EXECUTIONS = {
    Execution.EAGER: "Eager PyTorch: the host launches every op of the trace, one after the other.",
    Execution.FUSED: "An optimised engine: grouped experts, fused vector ops, captured graphs, no scheduler.",
}

_SHOWN_OPS = 12


def prediction_report(graphs: Sequence[CallGraph], device: Device, execution: Execution = Execution.EAGER) -> Report:
    """Bound and band of every stage of every phase on `device`, and the ops that take longest there."""
    predictions = [stage for graph in graphs for stage in predict_stages(graph, device, execution)]
    dtype = main_dtype(predictions)
    return Report(
        title=f"{graphs[0].model} on {device.name}: how fast could it be",
        tables=(
            _stage_table(predictions),
            _detail_table(predictions),
            op_table(op_rooflines(graphs, device)[:_SHOWN_OPS]),
        ),
        notes=tuple(_notes(graphs, predictions, device, execution)),
        charts=_charts(predictions, device, dtype),
    )


def main_dtype(predictions: Sequence[StagePrediction]) -> str | None:
    """The dtype in which most FLOPs run; None where none run."""
    flops: dict[str, int] = {}
    for prediction in predictions:
        for dtype, count in prediction.work.flops_by_dtype.items():
            flops[dtype] = flops.get(dtype, 0) + count
    return max(flops, key=lambda dtype: flops[dtype], default=None)


def _stage_table(predictions: Sequence[StagePrediction]) -> Table:
    columns = (
        Column("stage"),
        Column("FLOPs", Kind.FLOPS),
        Column("bytes moved", Kind.BYTES),
        Column("launches", Kind.COUNT),
        Column("lower bound", Kind.SECONDS),
        Column("low", Kind.SECONDS),
        Column("high", Kind.SECONDS),
        Column("bound by"),
    )
    total = total_wall(predictions)
    footer: tuple[Cell, ...] = (
        "total",
        priced_sum(counted_or_unknown(stage.work.flops, stage.work.unpriced_ops) for stage in predictions),
        priced_sum(counted_or_unknown(stage.work.bytes_moved, stage.work.unpriced_ops) for stage in predictions),
        sum(stage.launches for stage in predictions),
        known_sum(stage.bound_s for stage in predictions),
        total.low,
        total.high,
        "",
    )
    rows = tuple(
        (
            stage.name,
            counted_or_unknown(stage.work.flops, stage.work.unpriced_ops),
            counted_or_unknown(stage.work.bytes_moved, stage.work.unpriced_ops),
            stage.launches,
            stage.bound_s,
            stage.wall.low,
            stage.wall.high,
            str(stage.bound_by),
        )
        for stage in predictions
    )
    return Table(title="Predicted time by stage", columns=columns, rows=rows, footer=footer)


def _detail_table(predictions: Sequence[StagePrediction]) -> Table:
    names = (
        ("necessary FLOPs", Kind.FLOPS),
        ("at the peak", Kind.SECONDS),
        ("bytes read once", Kind.BYTES),
        ("at full bandwidth", Kind.SECONDS),
        *((("bound with the fewest experts", Kind.SECONDS),) if _has_experts(predictions) else ()),
        ("device low", Kind.SECONDS),
        ("device high", Kind.SECONDS),
        ("host low", Kind.SECONDS),
        ("host high", Kind.SECONDS),
    )
    rows = tuple(
        (
            stage.name,
            None if stage.work.necessary is None else stage.work.necessary.flops,
            None if stage.light is None else stage.light.compute_s,
            stage.work.must_read_bytes,
            None if stage.light is None else stage.light.bandwidth_s,
            *([None if stage.fewest is None else stage.fewest.seconds] if _has_experts(predictions) else []),
            stage.device_time.low,
            stage.device_time.high,
            stage.host_time.low,
            stage.host_time.high,
        )
        for stage in predictions
    )
    columns = (Column("stage"), *(Column(*name) for name in names))
    return Table(title="Where the bound and the band come from", columns=columns, rows=rows)


def _has_experts(predictions: Sequence[StagePrediction]) -> bool:
    return any(stage.work.necessary is not None and stage.work.necessary.distinct_experts for stage in predictions)


def _charts(predictions: Sequence[StagePrediction], device: Device, dtype: str | None) -> tuple[Chart, ...]:
    bars = BarChart(
        title="Predicted time by stage",
        categories=tuple(stage.name for stage in predictions),
        series=(
            Series("lower bound", tuple(stage.bound_s for stage in predictions)),
            Series("low", tuple(stage.wall.low for stage in predictions)),
            Series("high", tuple(stage.wall.high for stage in predictions)),
        ),
        kind=Kind.SECONDS,
        caption=f"{_claim(device)}; a run is expected between low and high.",
    )
    if dtype is None or not is_known(dtype, device):
        return (bars,)
    rates = {
        stage.name: (
            stage.work.flops / stage.work.bytes_moved,
            stage.work.flops / stage.wall.high,
            stage.work.flops / stage.wall.low,
        )
        for stage in predictions
        if stage.work.flops and stage.work.bytes_moved
    }
    return bars, roofline_of_bands(rates, device, dtype)


def _notes(
    graphs: Sequence[CallGraph], predictions: Sequence[StagePrediction], device: Device, execution: Execution
) -> Iterator[Note]:
    yield workload_note(graphs)
    yield from run_notes(graphs)
    yield Note(_EXECUTIONS[execution])
    yield Note(
        "FLOPs, bytes moved, launches and the band are of the code as written. The lower bound is of necessary work: "
        "what any implementation must compute and read once, at the dense peak and at full bandwidth. "
        f"{_claim(device, has_experts=_has_experts(predictions))}. docs/how-fast-could-it-be.md explains both."
    )
    yield from _necessary_notes(predictions)
    yield from _decode_notes(graphs, predictions)
    yield from _launch_notes(predictions)
    yield from _reservations(predictions, device)


def _claim(device: Device, *, has_experts: bool = False) -> str:
    if device.is_measured:
        return "The lower bound rests on measured rates, which a quiet moment may beat"
    if has_experts:
        return (
            "Nothing beats the lower bound unless its routers touch fewer experts, and nothing the one with the fewest"
        )
    return "Nothing beats the lower bound"


def _necessary_notes(predictions: Sequence[StagePrediction]) -> Iterator[Note]:
    """Where the code does more than it must, with the reason; and which routing policy the experts are counted by."""
    works = [stage.work for stage in predictions]
    yield from difference_notes(
        [
            BothWorks(name=work.name, flops=work.flops, bytes_moved=work.bytes_moved, necessary=work.necessary)
            for work in works
        ]
    )
    for work in works:
        if work.necessary is not None:
            yield from expert_notes(work.name, work.necessary)


def _decode_notes(graphs: Sequence[CallGraph], predictions: Sequence[StagePrediction]) -> Iterator[Note]:
    for graph in graphs:
        steps = graph.runtime.get("decode_steps")
        stage = next((stage for stage in predictions if stage.name == graph.phase == "decode"), None)
        if stage is not None and isinstance(steps, int) and steps > 1:
            band = stage.wall.times(1 / steps)
            yield Note(
                f"The {steps} steps of the decode take {format_seconds(band.low)} to {format_seconds(band.high)} each."
            )


def _launch_notes(predictions: Sequence[StagePrediction]) -> Iterator[Note]:
    for stage in predictions:
        if stage.bound_by is Bound.LAUNCHES and stage.host_time != NOTHING:
            yield Note(
                f"{stage.name} is bound by its {stage.launches:,} launches: the device would be done in "
                f"{format_seconds(stage.device_time.low)} to {format_seconds(stage.device_time.high)}."
            )


def _reservations(predictions: Sequence[StagePrediction], device: Device) -> Iterator[Note]:
    dtypes = sorted({dtype for stage in predictions for dtype in stage.work.flops_by_dtype})
    if doubtful := sorted(_figures_used(dtypes, device) & set(device.unverified)):
        yield Note(
            f"Figures of {device.name} that are used here and were not read in a source: {', '.join(doubtful)}.",
            Level.WARNING,
        )
    for other in dtypes:
        if not is_known(other, device):
            yield Note(
                f"{device.name} has no known rate for {other}: that work is counted at the fastest rate it could have.",
                Level.WARNING,
            )
    unpriced = sum(stage.work.unpriced_ops for stage in predictions)
    if unpriced:
        yield Note(f"{unpriced:,} ops have no price: of their work only the bytes are in the band.", Level.WARNING)
    if any(stage.work.necessary is None for stage in predictions):
        yield Note("The trace does not say which tensors an op took: no lower bound is known.", Level.WARNING)
    elif any(stage.work.must_read_bytes is None for stage in predictions):
        yield Note("The trace follows no memory: the lower bound rests on FLOPs alone.", Level.WARNING)
    if device.cache_bytes is None:
        yield Note(f"No cache size is known for {device.name}: every byte is counted as coming from memory.")
    else:
        yield Note(
            f"The bound grants {device.name} that its {format_bytes(device.cache_bytes)} of cache hold what they can."
        )


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
