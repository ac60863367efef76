"""The report of a timed run: times with their spread, efficiency, cold start, operators, and every reservation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.profile.charts import memory_bars, operator_bars, step_latencies, waterfall
from llm_perf_opt.analyses.profile.join import GroupFigures, RunFigures, StageFigures
from llm_perf_opt.analyses.profile.spread import Spread
from llm_perf_opt.analyses.roofline import efficiency_table, roofline_chart
from llm_perf_opt.document import Cell, Chart, Column, Kind, Level, Note, Report, Table
from llm_perf_opt.hardware import Device
from llm_perf_opt.hardware.device import PEAKS_OF_DTYPE
from llm_perf_opt.measurement import Kernel, OperatorTime, PageMeasurement
from llm_perf_opt.units import format_seconds

_SECONDS = 1e-9
_OPERATORS_SHOWN = 25
_KERNELS_SHOWN = 40
_SPREAD_COLUMNS = (
    Column("median", Kind.SECONDS),
    Column("middle half", Kind.SECONDS),
    Column("least", Kind.SECONDS),
    Column("most", Kind.SECONDS),
)


def profile_report(
    *,
    model: str,
    figures: RunFigures,
    pages: Sequence[PageMeasurement],
    operators: Sequence[OperatorTime],
    kernels: Sequence[Kernel],
    device: Device | None,
    dtype: str,
    notes: Sequence[Note],
    chapters: Sequence[Report] = (),
) -> Report:
    """Everything a run has to say; `chapters` are reports that stand beside it, such as the static one."""
    efficiencies = [stage.efficiency for stage in figures.stages if stage.efficiency is not None]
    tables = [_time_table(figures), _whole_table(figures), _figure_table(figures)]
    if efficiencies:
        tables.insert(1, efficiency_table(efficiencies))
    if any(page.cold is not None for page in pages):
        tables.append(_cold_table(pages, figures))
    if operators:
        tables.append(_operator_table(operators))
    if kernels:
        tables.append(_kernel_table(kernels))
    return Report(
        title=f"{model}: how fast it ran",
        tables=tuple(tables),
        notes=(*_run_notes(figures, pages), *_device_notes(device, dtype), *notes),
        charts=tuple(_charts(figures, pages, operators, device, dtype)),
        chapters=tuple(chapters),
    )


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


def _time_table(figures: RunFigures) -> Table:
    whole_ns = sum(stage.total_ns for stage in figures.stages) + figures.unattributed_ns
    rows = tuple(_time_row(stage, whole_ns) for stage in figures.stages)
    return Table(
        title="Time by stage, per page",
        columns=(Column("stage"), *_SPREAD_COLUMNS, Column("samples", Kind.COUNT), Column("share", Kind.RATIO)),
        rows=(*rows, ("(between stages)", *(None,) * 5, figures.unattributed_ns / whole_ns)),
    )


def _time_row(stage: StageFigures, whole_ns: float) -> tuple[Cell, ...]:
    return (stage.name, *_spread_cells(stage.time), stage.time.samples, stage.total_ns / whole_ns)


def _whole_table(figures: RunFigures) -> Table:
    spreads = {"page": figures.wall, "first token": figures.first_token}
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
    rows = tuple(_figure_row(name, group) for name, group in groups.items())
    return Table(title="The run as a whole", columns=columns, rows=rows)


def _figure_row(name: str, group: GroupFigures) -> tuple[Cell, ...]:
    seconds = group.time_ns * _SECONDS
    rate = group.flops / seconds if group.flops is not None and seconds else None
    return (name, ", ".join(group.stages), seconds, group.flops, rate, group.mfu)


def _cold_table(pages: Sequence[PageMeasurement], figures: RunFigures) -> Table:
    (cold,) = [page.cold for page in pages if page.cold is not None][:1]
    rows = tuple(
        (stage.name, cold.stage_ns(stage.name) * _SECONDS, stage.time.median_ns * _SECONDS) for stage in figures.stages
    )
    return Table(
        title="Cold start",
        columns=(Column("stage"), Column("first pass", Kind.SECONDS), Column("median", Kind.SECONDS)),
        rows=rows,
        footer=("page", cold.wall_ns * _SECONDS, figures.wall.median_ns * _SECONDS),
    )


def _operator_table(operators: Sequence[OperatorTime]) -> Table:
    columns = [
        Column("stage"),
        Column("operator"),
        Column("calls", Kind.COUNT),
        Column("own time", Kind.SECONDS),
        Column("time", Kind.SECONDS),
    ]
    rows: list[tuple[Cell, ...]] = [
        (one.stage, one.operator, one.calls, one.self_ns * _SECONDS, one.total_ns * _SECONDS)
        for one in operators[:_OPERATORS_SHOWN]
    ]
    device_ns = [one.device_ns for one in operators[:_OPERATORS_SHOWN]]
    if any(spent is not None for spent in device_ns):
        columns.append(Column("device time", Kind.SECONDS))
        known = [None if spent is None else spent * _SECONDS for spent in device_ns]
        rows = [(*row, spent) for row, spent in zip(rows, known, strict=True)]
    return Table(title="Operators with the most time of their own", columns=tuple(columns), rows=tuple(rows))


def _kernel_table(kernels: Sequence[Kernel]) -> Table:
    columns = (Column("stage"), Column("kernel"), Column("calls", Kind.COUNT), Column("time", Kind.SECONDS))
    rows = tuple(
        (kernel.stage or "(outside)", kernel.name, kernel.calls, kernel.total_ns * _SECONDS)
        for kernel in kernels[:_KERNELS_SHOWN]
    )
    return Table(title="Kernels as Nsight saw them", columns=columns, rows=rows)


def _run_notes(figures: RunFigures, pages: Sequence[PageMeasurement]) -> Iterator[Note]:
    passes = sum(len(page.passes) for page in pages)
    yield Note(
        f"{len(pages)} pages, {passes} timed passes. The time of a stage leaves out the stages inside it: prefill is "
        "the forward over the prompt without vision. The row of decode in the table of efficiencies is one step."
    )
    yield Note(
        "Decode steps continue from the token that the prefill gives, so a page of n new tokens has n - 1 of them."
    )
    if figures.step is not None and figures.wall.quartile_range_ns > 0.1 * figures.wall.median_ns:
        yield Note(
            f"The middle half of the passes spans {format_seconds(figures.wall.quartile_range_ns * _SECONDS)}: pages "
            "differ, or the machine was not quiet.",
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
        yield Note(f"MFU and MBU are held against what {device.name} was measured to reach, not a data sheet.")
    used = {f"peak_tflops_dense.{name}" for name in PEAKS_OF_DTYPE.get(dtype, (dtype,))} | {"bandwidth_gb_per_s"}
    if doubtful := sorted(used & set(device.unverified)):
        yield Note(
            f"Figures of {device.name} that MFU and MBU rest on and that were not read in a source: "
            f"{', '.join(doubtful)}.",
            Level.WARNING,
        )
