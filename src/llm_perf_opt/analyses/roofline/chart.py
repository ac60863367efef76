"""The roofline as a chart, and the efficiencies as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_perf_opt.analyses.roofline.efficiency import StageEfficiency
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.report import Axis, Column, Kind, Line, LineChart, Mark, Table

_MARGIN = 4.0  # how far the roof is drawn beyond the points and the ridge


def roofline_chart(stages: Sequence[StageEfficiency], device: Device, dtype: str, title: str = "Roofline") -> LineChart:
    """Roofs of `device` as lines, one point per stage that has FLOPs and bytes."""
    points = {
        stage.name: (stage.intensity, stage.achieved_flops_per_s)
        for stage in stages
        if stage.intensity and stage.achieved_flops_per_s
    }
    scatter = (Line("stages", tuple(sorted(points.values())), style="scatter"),) if points else ()
    return _under_the_roofs(device, dtype, title, scatter, tuple(Mark(*point, name) for name, point in points.items()))


def roofline_of_bands(rates: Mapping[str, tuple[float, float, float]], device: Device, dtype: str) -> LineChart:
    """Roofs of `device`, and per stage a line from its lowest to its highest rate: name -> (intensity, low, high)."""
    lines = tuple(Line(name, ((intensity, low), (intensity, high))) for name, (intensity, low, high) in rates.items())
    marks = tuple(Mark(intensity, high, name) for name, (intensity, _, high) in rates.items())
    return _under_the_roofs(device, dtype, "Predicted rates under the roofs", lines, marks)


def _under_the_roofs(
    device: Device, dtype: str, title: str, drawn: tuple[Line, ...], marks: tuple[Mark, ...]
) -> LineChart:
    peak, bandwidth = device.peak(dtype), device.bandwidth_bytes_per_s
    ridge = peak / bandwidth
    reach = [ridge, *(x for line in drawn for x, _ in line.points)]
    left, right = min(reach) / _MARGIN, max(reach) * _MARGIN
    roofs = (
        Line("memory bandwidth", ((left, left * bandwidth), (ridge, float(peak)))),
        Line(f"dense {dtype} peak", ((ridge, float(peak)), (right, float(peak)))),
    )
    return LineChart(
        title=title,
        x=Axis("arithmetic intensity", Kind.FLOPS_PER_BYTE, is_log=True),
        y=Axis("rate", Kind.FLOPS_PER_S, is_log=True),
        lines=(*roofs, *drawn),
        marks=marks,
        caption=f"{device.name}. Intensity counts the bytes of every op, so a stage whose data stay in a cache may lie "
        "above the slope.",
    )


def efficiency_table(stages: Sequence[StageEfficiency]) -> Table:
    """One row per measured stage."""
    columns = (
        Column("stage"),
        Column("time", Kind.SECONDS),
        Column("lower bound", Kind.SECONDS),
        Column("FLOPs", Kind.FLOPS),
        Column("bytes moved", Kind.BYTES),
        Column("FLOPs per byte", Kind.FLOPS_PER_BYTE),
        Column("rate", Kind.FLOPS_PER_S),
        Column("MFU", Kind.RATIO),
        Column("MBU", Kind.RATIO),
        Column("of attainable", Kind.RATIO),
        Column("launches", Kind.COUNT),
        Column("bound by"),
    )
    rows = tuple(
        (
            stage.name,
            stage.seconds,
            stage.lower_bound_s,
            stage.flops,
            stage.bytes_moved,
            stage.intensity,
            stage.achieved_flops_per_s,
            stage.mfu,
            stage.mbu,
            stage.of_attainable,
            stage.launches,
            None if stage.bound_by is None else str(stage.bound_by),
        )
        for stage in stages
    )
    return Table(title="Efficiency by stage", columns=columns, rows=rows)
