"""The report of a timed run: times with their spread, efficiency, cold start, operators, charts, reservations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.device import PEAKS_OF_DTYPE
from llm_perf_opt.core.measurement import MeasuredKernel, OperatorTime, PageMeasurement
from llm_perf_opt.core.output_files import plain_values
from llm_perf_opt.core.reading import filled
from llm_perf_opt.core.report import (
    Axis,
    BarChart,
    Cell,
    Chart,
    Column,
    Kind,
    Level,
    Line,
    LineChart,
    Mark,
    Note,
    Report,
    Series,
    Span,
    SpanChart,
    Table,
    largest_text,
    table_of,
    three_digits,
)
from llm_perf_opt.core.units import format_ratio, format_seconds
from llm_perf_opt.measurements.profile.join import RunFigures, Spread, TimedGroup, TimedStage, WorkloadCosts
from llm_perf_opt.measurements.profile.joined_run import JoinedRun, joined_chart, joined_notes, joined_tables
from llm_perf_opt.measurements.profile.metrics_file import (
    METRICS_VERSION,
    CostsRow,
    DeviceRow,
    GroupRow,
    MemoryRow,
    MetricsFile,
    PageRow,
    SpreadRow,
    TimedStageRow,
    WorkRow,
)
from llm_perf_opt.timing.efficiency import efficiency_table, roofline_chart
from llm_perf_opt.timing.lower_bound import BoundBy

_SECONDS = 1e-9
_OPERATORS_DRAWN = 15
_PAGES_SHOWN = 20


def waterfall(page: PageMeasurement) -> SpanChart:
    """One page: each stage as long as its median over the passes, in the order in which they first end."""
    spans: list[Span] = []
    now = 0.0
    for name in dict.fromkeys(name for pass_ in page.passes for name in pass_.stages_ns):
        length = median(timed_pass.stage_ns(name) for timed_pass in page.passes) * _SECONDS
        times = max(len(timed_pass.stages_ns.get(name, ())) for timed_pass in page.passes)
        spans.append(Span(name, name if times == 1 else f"{name}, {times} times", now, now + length))
        now += length
    return SpanChart(
        title=f"Stages of {page.title}",
        axis=Axis("time", Kind.SECONDS),
        spans=tuple(spans),
        caption=f"Median own time over {len(page.passes)} passes. A stage that ran several times is drawn as one, and "
        "stages inside another are before it, so the chart shows how long each stage takes, not when it ran.",
    )


def step_latencies(pages: Sequence[PageMeasurement]) -> LineChart | None:
    """The share of decode steps that took no longer than so much; None where nothing was decoded."""
    steps = sorted(ns for page in pages for pass_ in page.passes for ns in pass_.stages_ns.get("decode", ()))
    if not steps:
        return None
    points = tuple((ns * _SECONDS, (place + 1) / len(steps)) for place, ns in enumerate(steps))
    middle = median(steps) * _SECONDS
    return LineChart(
        title="Latency of a decode step",
        x=Axis("time", Kind.SECONDS),
        y=Axis("share of steps", Kind.RATIO),
        lines=(Line("steps", points, style="step"),),
        marks=(Mark(middle, 0.5, "median"),),
        caption=f"{len(steps)} steps, over all pages and passes.",
    )


def operator_bars(operators: Sequence[OperatorTime]) -> BarChart | None:
    """The operators with the most own time, by stage; on CUDA it is the time of their kernels."""
    totals: Counter[str] = Counter()
    by_stage: dict[str, Counter[str]] = {}
    for operator in operators:
        spent = operator.self_ns if operator.device_ns is None else operator.device_ns
        totals[operator.operator] += spent
        by_stage.setdefault(operator.stage, Counter())[operator.operator] += spent
    shown = [operator for operator, _ in totals.most_common(_OPERATORS_DRAWN)]
    if not shown:
        return None
    return BarChart(
        title="Operators by own time",
        categories=tuple(shown),
        series=tuple(
            Series(stage, tuple(spent[operator] * _SECONDS for operator in shown)) for stage, spent in by_stage.items()
        ),
        kind=Kind.SECONDS,
        is_stacked=True,
        caption="From a pass of its own under torch's profiler, which slows down what it watches.",
    )


def memory_bars(pages: Sequence[PageMeasurement]) -> BarChart:
    """What the process held before each page, and the most while it was measured."""
    shown = pages[:_PAGES_SHOWN]
    series = [
        Series("resident before", tuple(page.start_process_bytes for page in shown)),
        Series("peak of the process", tuple(page.peak_process_bytes for page in shown)),
    ]
    if any(page.peak_device_bytes is not None for page in shown):
        series.append(Series("peak of the device's allocator", tuple(page.peak_device_bytes for page in shown)))
    return BarChart(
        title="Memory",
        categories=tuple(f"{place + 1}: {page.title}" for place, page in enumerate(shown)),
        series=tuple(series),
        kind=Kind.BYTES,
        caption=f"The first {_PAGES_SHOWN} pages at most.",
    )


_DAY_S = 86_400
_OPERATORS_SHOWN = 25
_KERNELS_SHOWN = 40
_SPREAD_COLUMNS = (
    Column("median", Kind.SECONDS),
    Column("IQR", Kind.SECONDS),
    Column("least", Kind.SECONDS),
    Column("most", Kind.SECONDS),
)


def profile_report(
    *,
    model: str,
    figures: RunFigures,
    pages: Sequence[PageMeasurement],
    operators: Sequence[OperatorTime],
    kernels: Sequence[MeasuredKernel],
    device: Device | None,
    dtype: str,
    notes: Sequence[Note],
    chapters: Sequence[Report] = (),
    joined: JoinedRun | None = None,
    advice: Report | None = None,
) -> Report:
    """Everything a run has to say; `chapters` are reports next to it, such as the static one.

    `advice` begins at what was measured: its tables follow the tables of the join, and its last line is the last of the
    answer. Without it that is the largest gap.
    """
    efficiencies = [stage.efficiency for stage in figures.stages if stage.efficiency is not None]
    unit = "page" if any(page.image is not None for page in pages) else "pass"
    tables = [_time_table(figures, unit), _whole_table(figures, unit), _figure_table(figures)]
    if efficiencies:
        tables.insert(1, efficiency_table(efficiencies))
    if any(page.cold is not None for page in pages):
        tables.append(_cold_table(pages, figures, unit))
    if operators:
        tables.append(_operator_table(operators))
    if kernels:
        tables.append(_kernel_table(kernels))
    answer = tuple(_lines(model, figures, unit, dtype, device))
    charts = list(_charts(figures, pages, operators, device, dtype))
    if joined is not None:
        tables[:0] = (*joined_tables(joined), *(() if advice is None else advice.tables))
        last = joined.line if advice is None else advice.answer[-1]
        answer = (*answer[:-1], f"{answer[-1]} {last}".rstrip())
        notes = (*notes, *joined_notes(joined), *(() if advice is None else advice.notes))
        charts[:0] = [joined_chart(joined), *(() if advice is None else advice.charts)]
    return Report(
        title=f"{model}: how fast it ran",
        answer=answer,
        tables=tuple(tables),
        notes=(*_run_notes(figures, pages), *_device_notes(device, dtype), *notes),
        charts=tuple(charts),
        chapters=tuple(chapters),
    )


def _lines(model: str, figures: RunFigures, unit: str, dtype: str, device: Device | None) -> Iterator[str]:
    """How long a page took, where the time went, and how much of the device was used."""
    times = [f"a {unit} {_median(figures.wall)}"]
    times += [f"TTFT {_median(figures.first_token)}"] if figures.first_token is not None else []
    times += [f"TPOT {_median(figures.step)}"] if figures.step is not None else []
    yield f"{model}, {dtype}, on {'this machine' if device is None else device.name}: {', '.join(times)}."
    parts = {stage.name: stage.total_ns for stage in figures.stages} | {"between stages": figures.unattributed_ns}
    rate, most = 1e9 / figures.wall.median_ns, largest_text(parts)
    pages = f"{three_digits(rate)} pages/s, {rate * _DAY_S:,.0f} pages/day. " if unit == "page" else ""
    yield f"{pages}Bottleneck: {most or 'not known'} of the time."
    mfu = figures.model.mfu
    if mfu is not None:
        yield f"MFU {format_ratio(mfu)} of the peak."
    elif device is None:
        yield "MFU not known: llm-perf-opt devices calibrate describes this machine."
    else:
        yield "MFU not known."


def _median(spread: Spread) -> str:
    return format_seconds(spread.median_ns * _SECONDS)


def _charts(
    figures: RunFigures,
    pages: Sequence[PageMeasurement],
    operators: Sequence[OperatorTime],
    device: Device | None,
    dtype: str,
) -> Iterator[Chart]:
    yield waterfall(pages[0])
    efficiencies = [stage.efficiency for stage in figures.stages if stage.efficiency is not None]
    if device is not None and efficiencies:
        yield roofline_chart(efficiencies, device, dtype)
    if (latencies := step_latencies(pages)) is not None:
        yield latencies
    if (bars := operator_bars(operators)) is not None:
        yield bars
    yield memory_bars(pages)


def _spread_cells(spread: Spread) -> tuple[Cell, ...]:
    return (
        spread.median_ns * _SECONDS,
        spread.quartile_range_ns * _SECONDS,
        spread.least_ns * _SECONDS,
        spread.most_ns * _SECONDS,
    )


def _time_table(figures: RunFigures, unit: str) -> Table:
    whole_ns = sum(stage.total_ns for stage in figures.stages) + figures.unattributed_ns
    rows = tuple(_time_row(stage, whole_ns) for stage in figures.stages)
    return Table(
        title=f"Time by stage, per {unit}",
        columns=(Column("stage"), *_SPREAD_COLUMNS, Column("samples", Kind.COUNT), Column("share", Kind.RATIO)),
        rows=(*rows, ("(between stages)", *(None,) * 5, figures.unattributed_ns / whole_ns)),
    )


def _time_row(stage: TimedStage, whole_ns: float) -> tuple[Cell, ...]:
    return (stage.name, *_spread_cells(stage.time), stage.time.samples, stage.total_ns / whole_ns)


def _whole_table(figures: RunFigures, unit: str) -> Table:
    spreads = {unit: figures.wall}
    if figures.first_token is not None:
        spreads["first token"] = figures.first_token
    if figures.step is not None:
        spreads["decode step"] = figures.step
    return Table(
        title="Latency",
        columns=(Column("what"), *_SPREAD_COLUMNS, Column("samples", Kind.COUNT)),
        rows=tuple((name, *_spread_cells(spread), spread.samples) for name, spread in spreads.items()),
    )


def _figure_table(figures: RunFigures) -> Table:
    columns = (
        Column("what"),
        Column("stages"),
        Column("time", Kind.SECONDS),
        Column("FLOPs", Kind.FLOPS),
        Column("rate", Kind.FLOPS_PER_S),
        Column("MFU", Kind.RATIO),
    )
    groups = {"model": figures.model, "language model": figures.language_model}
    rows = tuple(_figure_row(name, group) for name, group in groups.items() if group.stages)
    return Table(title="The run as a whole", columns=columns, rows=rows)


def _figure_row(name: str, group: TimedGroup) -> tuple[Cell, ...]:
    seconds = group.time_ns * _SECONDS
    rate = group.flops / seconds if group.flops is not None and seconds else None
    return (name, ", ".join(group.stages), seconds, group.flops, rate, group.mfu)


def _cold_table(pages: Sequence[PageMeasurement], figures: RunFigures, unit: str) -> Table:
    (cold,) = [page.cold for page in pages if page.cold is not None][:1]
    rows = tuple(
        (stage.name, cold.stage_ns(stage.name) * _SECONDS, stage.time.median_ns * _SECONDS) for stage in figures.stages
    )
    return Table(
        title="Cold start",
        columns=(Column("stage"), Column("first pass", Kind.SECONDS), Column("median", Kind.SECONDS)),
        rows=rows,
        footer=(unit, cold.wall_ns * _SECONDS, figures.wall.median_ns * _SECONDS),
    )


def _operator_table(operators: Sequence[OperatorTime]) -> Table:
    """Times in any case; module, source line and memory where the profiler was asked to record them."""
    shown = operators[:_OPERATORS_SHOWN]
    columns: dict[Column, Callable[[OperatorTime], Cell]] = {
        Column("stage"): lambda operator: operator.stage,
        Column("operator"): lambda operator: operator.operator,
        Column("calls", Kind.COUNT): lambda operator: operator.calls,
        Column("own time", Kind.SECONDS): lambda operator: operator.self_ns * _SECONDS,
        Column("time", Kind.SECONDS): lambda operator: operator.total_ns * _SECONDS,
    }
    if any(operator.device_ns is not None for operator in shown):
        columns[Column("device time", Kind.SECONDS)] = lambda operator: _seconds(operator.device_ns)
    if any(operator.self_allocated_bytes is not None for operator in shown):
        columns[Column("allocated", Kind.BYTES)] = lambda operator: operator.self_allocated_bytes
    if any(operator.source is not None for operator in shown):
        columns[Column("source")] = lambda operator: operator.source
    if any(operator.module is not None for operator in shown):
        columns[Column("module")] = lambda operator: operator.module
    return table_of("Operators with the most time of their own", shown, columns)


def _seconds(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns * _SECONDS


def _kernel_table(kernels: Sequence[MeasuredKernel]) -> Table:
    columns = (Column("stage"), Column("kernel"), Column("calls", Kind.COUNT), Column("time", Kind.SECONDS))
    rows = tuple(
        (kernel.stage or "(outside)", kernel.name, kernel.calls, kernel.total_ns * _SECONDS)
        for kernel in kernels[:_KERNELS_SHOWN]
    )
    return Table(title="Kernels as Nsight saw them", columns=columns, rows=rows)


def _run_notes(figures: RunFigures, pages: Sequence[PageMeasurement]) -> Iterator[Note]:
    passes = sum(len(page.passes) for page in pages)
    counted = f"{len(pages)} pages, {passes} timed passes. The time of a stage leaves out the stages inside it"
    if figures.step is None:
        yield Note(f"{counted}.")
    else:
        yield Note(
            f"{counted}: prefill is the forward over the prompt without vision. In the table of efficiencies the row "
            "of decode is one step."
        )
        yield Note(
            "Decode steps continue from the token that the prefill gives, so a page of n new tokens has n - 1 of them."
        )
    if figures.wall.quartile_range_ns > 0.1 * figures.wall.median_ns:
        yield Note(
            f"The interquartile range of the passes is {format_seconds(figures.wall.quartile_range_ns * _SECONDS)}: "
            "pages differ, or the machine was not quiet.",
            Level.WARNING,
        )


def _device_notes(device: Device | None, dtype: str) -> Iterator[Note]:
    if device is None:
        yield Note(
            "The peaks of this device are not known, so MFU and MBU are not either. llm-perf-opt devices calibrate "
            "measures them and writes a TOML file; then add device.devices=FILE.",
            Level.WARNING,
        )
        return
    if device.is_measured:
        yield Note(f"MFU and MBU are relative to the measured peaks of {device.name}, not to a data sheet.")
    used = {f"peak_tflops_dense.{name}" for name in PEAKS_OF_DTYPE.get(dtype, (dtype,))} | {"bandwidth_gb_per_s"}
    if doubtful := sorted(used & set(device.unverified)):
        yield Note(
            f"MFU and MBU rest on figures of {device.name} that were not read in a source: {', '.join(doubtful)}.",
            Level.WARNING,
        )


_OF_ONE_DEVICE: Mapping[BoundBy, Literal["compute", "bandwidth", "launches"]] = {
    BoundBy.COMPUTE: "compute",
    BoundBy.BANDWIDTH: "bandwidth",
    BoundBy.LAUNCHES: "launches",
}


def metrics_document(
    *,
    tool_version: str,
    model: str,
    request: Mapping[str, Any],
    device: Device | None,
    dtype: str,
    figures: RunFigures,
    pages: Sequence[PageMeasurement],
    costs: Sequence[WorkloadCosts | None],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Plain values after `metrics.schema.json`: integers in base units, the unit in the key, null for unknown."""
    distinct = list({id(cost): cost for cost in costs if cost is not None}.values())
    place = {id(cost): index for index, cost in enumerate(distinct)}
    first_token, step = figures.first_token, figures.step
    rows = MetricsFile(
        schema_version=METRICS_VERSION,
        tool_version=tool_version,
        model=model,
        request=dict(request),
        device=None if device is None else filled(DeviceRow, device, dtype=dtype, peak_flops_per_s=device.peak(dtype)),
        stages=tuple(map(_stage, figures.stages)),
        model_figure=filled(GroupRow, figures.model),
        language_model_figure=filled(GroupRow, figures.language_model),
        wall=filled(SpreadRow, figures.wall),
        first_token=None if first_token is None else filled(SpreadRow, first_token),
        decode_step=None if step is None else filled(SpreadRow, step),
        decode_tokens_per_s=None if step is None else 1e9 / step.median_ns,
        unattributed_ns=figures.unattributed_ns,
        memory=_memory(pages),
        costs=tuple(map(_costs, distinct)),
        pages=tuple(
            PageRow(**page.to_json(), costs_index=None if cost is None else place[id(cost)])
            for page, cost in zip(pages, costs, strict=True)
        ),
        notes=tuple(notes),
    )
    return plain_values(rows)


def _stage(stage: TimedStage) -> TimedStageRow:
    efficiency = stage.efficiency
    bound_by = None if efficiency is None else efficiency.bound_by
    of_device = ("mfu", "mbu", "achieved_flops_per_s", "attainable_flops_per_s", "lower_bound_s")
    return filled(
        TimedStageRow,
        stage,
        per_page=filled(SpreadRow, stage.time),
        flops_per_byte=None if efficiency is None else efficiency.intensity,
        bound_by=None if bound_by is None else _OF_ONE_DEVICE[bound_by],
        **{name: None if efficiency is None else getattr(efficiency, name) for name in of_device},
    )


def _memory(pages: Sequence[PageMeasurement]) -> MemoryRow:
    names = MemoryRow.__struct_fields__
    return MemoryRow(**{name: _largest([getattr(page, name) for page in pages]) for name in names})


def _largest(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None


def _costs(cost: WorkloadCosts) -> CostsRow:
    return CostsRow(
        workload=dict(cost.workload),
        stages={
            name: filled(WorkRow, work, required_flops_by_dtype=work.required_by_dtype)
            for name, work in cost.works.items()
        },
    )
