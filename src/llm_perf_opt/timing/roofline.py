"""Stages and ops under the roofs of a device, as charts and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.report import Axis, Column, Kind, Line, LineChart, Mark, Table
from llm_perf_opt.core.tensor_formats import product_dtype
from llm_perf_opt.ops.table import price
from llm_perf_opt.timing.efficiency import StageEfficiency
from llm_perf_opt.timing.lower_bound import BoundBy, fastest_peak

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRoofline:
    """One distinct op; FLOPs and bytes are of one run of it.

    `at_roof_s` is the larger of FLOPs at the peak and bytes at the bandwidth, over all runs. It shows where time goes;
    added up over ops it is no bound, because data may stay in a cache from one op to the next.
    """

    phase: str
    name: str
    shapes: str
    runs: int
    flops: int
    bytes_moved: int
    attainable_flops_per_s: float | None  # None: it does no matrix work
    at_roof_s: float
    bound_by: BoundBy

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None for an op that moves nothing."""
        return self.flops / self.bytes_moved if self.bytes_moved else None


def op_rooflines(graphs: Sequence[CallGraph], device: Device) -> tuple[OpRoofline, ...]:
    """The priced ops of all phases that cost anything, the longest at the roof first."""
    found = [_under(graph.phase, kind, runs, device) for graph in graphs for kind, runs in count_kinds(graph).items()]
    return tuple(sorted((op for op in found if op is not None), key=lambda op: -op.at_roof_s))


def _under(phase: str, kind: OpKind, runs: int, device: Device) -> OpRoofline | None:
    cost = price(kind)
    if cost is None or not (cost.flops or cost.bytes_moved):
        return None
    dtype = product_dtype(meta.dtype for meta in kind.inputs)
    peak = fastest_peak(dtype, device) if dtype is not None and cost.flops else None
    compute_s = cost.flops / peak if peak else 0.0
    traffic_s = cost.bytes_moved / device.bandwidth_bytes_per_s
    return OpRoofline(
        phase=phase,
        name=kind.name,
        shapes=", ".join(map(_shape, kind.inputs[:3])) + (", ..." if len(kind.inputs) > 3 else ""),
        runs=runs,
        flops=cost.flops,
        bytes_moved=cost.bytes_moved,
        attainable_flops_per_s=cost.flops / max(compute_s, traffic_s) if cost.flops else None,
        at_roof_s=runs * max(compute_s, traffic_s),
        bound_by=BoundBy.COMPUTE if compute_s > traffic_s else BoundBy.BANDWIDTH,
    )


def _shape(meta: TensorMeta) -> str:
    return "x".join(map(str, meta.shape)) or "scalar"


def roofline_table(ops: Sequence[OpRoofline]) -> Table:
    """One row per op, as ordered."""
    columns = (
        Column("phase"),
        Column("op"),
        Column("inputs"),
        Column("runs", Kind.COUNT),
        Column("at the roof, all runs", Kind.SECONDS),
        Column("bound by"),
        Column("FLOPs each", Kind.FLOPS),
        Column("bytes each", Kind.BYTES),
        Column("FLOPs per byte", Kind.FLOPS_PER_BYTE),
        Column("attainable", Kind.FLOPS_PER_S),
    )
    rows = tuple(
        (
            op.phase,
            op.name,
            op.shapes,
            op.runs,
            op.at_roof_s,
            str(op.bound_by),
            op.flops,
            op.bytes_moved,
            op.intensity,
            op.attainable_flops_per_s,
        )
        for op in ops
    )
    return Table(title="Ops that take longest at the roof", columns=columns, rows=rows)
