"""Stages and ops under the roofs of a device: what a measured stage achieved, as charts and tables.

A measurement that no device could produce is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.priors import efficiency_priors
from llm_perf_opt.core.report import Axis, Column, Kind, Line, LineChart, Mark, Table
from llm_perf_opt.core.tensor_formats import matmul_dtype
from llm_perf_opt.core.units import format_bytes, format_seconds
from llm_perf_opt.ops.table import price
from llm_perf_opt.timing.lower_bound import BoundBy, bytes_from_memory, fastest_peak, lower_bound

MEMORY_SHARE = 0.9  # of the bytes must come from memory, whatever a cache holds, for MBU to mean anything


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEfficiency:
    """One measured stage. None is unknown.

    `mfu` is FLOPs / time / dense peak. `mbu` is weights and caches read once / time / bandwidth, and None where the
    device's cache may hold more than a tenth of them: they may then not have come from memory.
    `attainable_flops_per_s` is the roof above the stage's arithmetic intensity, which counts the bytes of every op;
    caches save some of them, so `of_attainable` may exceed 1. Nothing is faster than `lower_bound_s`.
    """

    name: str
    flops: int | None
    bytes_moved: int | None
    weight_bytes: int | None
    seconds: float
    launches: int | None
    skippable_flops: int
    forwards: int
    mfu: float | None
    mbu: float | None
    intensity: float | None  # FLOPs per byte moved
    achieved_flops_per_s: float | None
    attainable_flops_per_s: float | None
    lower_bound_s: float | None
    bound_by: BoundBy | None

    @property
    def of_attainable(self) -> float | None:
        """The achieved rate as a share of the attainable one."""
        if self.achieved_flops_per_s is None or not self.attainable_flops_per_s:
            return None
        return self.achieved_flops_per_s / self.attainable_flops_per_s


def stage_efficiency(
    name: str,
    *,
    flops: int | None,
    bytes_moved: int | None,
    weight_bytes: int | None,
    seconds: float,
    device: Device,
    dtype: str,
    launches: int | None = None,
    required_by_dtype: Mapping[str, int] | None = None,
    forwards: int = 1,
) -> StageEfficiency:
    """Compare one measured stage with `device`; `flops` and `bytes_moved` are those that a trace counted.

    `weight_bytes` are the weights and caches that each of the stage's `forwards` must read, added up over them, and
    `required_by_dtype` the FLOPs without those that a causal mask hides; left out, all of `flops` in `dtype`.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"stage {name!r} took {seconds!r} s: a measured time is finite and above zero")
    intensity = None if flops is None or not bytes_moved else flops / bytes_moved
    attainable = None if intensity is None else min(device.peak(dtype), intensity * device.bandwidth_bytes_per_s)
    required = {dtype: flops or 0} if required_by_dtype is None else required_by_dtype
    bound = None
    if flops is not None and weight_bytes is not None:
        bound = lower_bound(required, weight_bytes, device, forwards=forwards)
    return StageEfficiency(
        name=name,
        flops=flops,
        bytes_moved=bytes_moved,
        weight_bytes=weight_bytes,
        seconds=seconds,
        launches=launches,
        mfu=None if flops is None else flops / seconds / device.peak(dtype),
        skippable_flops=(flops or 0) - sum(required.values()),
        forwards=forwards,
        mbu=_mbu(weight_bytes, seconds, device, forwards),
        intensity=intensity,
        achieved_flops_per_s=None if flops is None else flops / seconds,
        attainable_flops_per_s=attainable,
        lower_bound_s=None if bound is None else bound.seconds,
        bound_by=_bound_by(flops, bytes_moved, launches, device, dtype),
    )


def _mbu(weight_bytes: int | None, seconds: float, device: Device, forwards: int) -> float | None:
    if not weight_bytes or bytes_from_memory(weight_bytes, device, forwards=forwards) < MEMORY_SHARE * weight_bytes:
        return None
    return weight_bytes / seconds / device.bandwidth_bytes_per_s


def _bound_by(
    flops: int | None, bytes_moved: int | None, launches: int | None, device: Device, dtype: str
) -> BoundBy | None:
    """The slowest of three clocks at full speed: FLOPs at the peak, bytes at the bandwidth, launches one by one."""
    if flops is None or bytes_moved is None:
        return None
    times = {
        BoundBy.COMPUTE: flops / device.peak(dtype),
        BoundBy.BANDWIDTH: bytes_moved / device.bandwidth_bytes_per_s,
        BoundBy.LAUNCHES: (launches or 0) * launch_overhead_s(device),
    }
    return max(times, key=lambda bound: times[bound])


def launch_overhead_s(device: Device) -> float:
    """What one launch costs at least: the device's own figure, or the low estimate of the prior for eager PyTorch."""
    if device.launch_overhead_ns is not None:
        return device.launch_overhead_ns * 1e-9
    return efficiency_priors().eager_launch_us.low * 1e-6


MEASURED_SLACK = 0.05  # by which a run may exceed a peak that was itself measured


def check_physics(stages: Sequence[StageEfficiency], device: Device) -> None:
    """Raise on MFU or MBU above 1, and on bytes read faster than memory gives them."""
    for stage in stages:
        _check_stage(stage, device)


def _check_stage(stage: StageEfficiency, device: Device) -> None:
    ceiling = 1 + MEASURED_SLACK if device.is_measured else 1.0
    if stage.mfu is not None and stage.mfu * _required_share(stage) > ceiling:
        raise _impossible(
            f"Stage {stage.name!r} has an MFU of {stage.mfu:.2f} on {device.name}.",
            f"its FLOPs in {format_seconds(stage.seconds)} are faster than the dense peak",
        )
    from_memory = bytes_from_memory(stage.weight_bytes or 0, device, forwards=stage.forwards)
    least_s = from_memory / device.bandwidth_bytes_per_s
    if stage.seconds * ceiling < least_s:
        raise _impossible(
            f"Stage {stage.name!r} took {format_seconds(stage.seconds)} on {device.name}.",
            f"reading {format_bytes(stage.weight_bytes or 0)} of weights and caches takes at least "
            f"{format_seconds(least_s)}",
        )
    if stage.mbu is not None and stage.mbu > ceiling:
        raise _impossible(
            f"Stage {stage.name!r} has an MBU of {stage.mbu:.2f} on {device.name}.",
            "its weights and caches would exceed the memory bandwidth",
        )


def _required_share(stage: StageEfficiency) -> float:
    """MFU counts pairs that a causal mask hides, by convention; a kernel that skips them may exceed 1."""
    return 1 - stage.skippable_flops / stage.flops if stage.flops else 1.0


def _impossible(what: str, why: str) -> PerfOptError:
    return PerfOptError(
        what,
        why=why,
        fix="check that the clock was read after the device had finished, that the trace is of this workload, "
        "that the figures belong to this device, and that float32 work that may run as tf32 is compared with tf32",
    )


_MARGIN = 4.0  # how far the roof is drawn beyond the points and the ridge


def roofline_chart(stages: Sequence[StageEfficiency], device: Device, dtype: str) -> LineChart:
    """Roofs of `device` as lines, one point per stage that has FLOPs and bytes."""
    points = {
        stage.name: (stage.intensity, stage.achieved_flops_per_s)
        for stage in stages
        if stage.intensity and stage.achieved_flops_per_s
    }
    scatter = (Line("stages", tuple(sorted(points.values())), style="scatter"),) if points else ()
    return _under_the_roofs(
        device, dtype, "Roofline", scatter, tuple(Mark(*point, name) for name, point in points.items())
    )


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
        caption=f"{device.name}. Intensity counts the bytes of every op, so a stage may be above the slope.",
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
        Column("kernel launches", Kind.COUNT),
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
    roofs = [_under(graph.phase, kind, runs, device) for graph in graphs for kind, runs in count_kinds(graph).items()]
    return tuple(sorted((op for op in roofs if op is not None), key=lambda op: -op.at_roof_s))


def _under(phase: str, kind: OpKind, runs: int, device: Device) -> OpRoofline | None:
    cost = price(kind)
    if cost is None or not (cost.flops or cost.bytes_moved):
        return None
    dtype = matmul_dtype(meta.dtype for meta in kind.inputs)
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
    return Table(
        title="Ops that take longest at the roof",
        columns=columns,
        rows=rows,
        formulas={"FLOPs per byte": ("quotient", "FLOPs each", "bytes each")},
        origin="the price of the op by its shapes, over the data sheet's peak and bandwidth",
    )
