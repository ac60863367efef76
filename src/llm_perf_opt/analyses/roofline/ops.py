"""Every distinct op under the roofs of a device: how intense it is, and what it would take at the roof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.pricing import price
from llm_perf_opt.analyses.roofline.bound import Bound, fastest_peak
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.callgraph.tensor_formats import product_dtype
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.report import Column, Kind, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRoofline:
    """One distinct op; FLOPs and bytes are of one run of it.

    `at_roof_s` is the larger of FLOPs at the peak and bytes at the bandwidth, over all runs. It tells where time goes;
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
    bound_by: Bound

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
        bound_by=Bound.COMPUTE if compute_s > traffic_s else Bound.BANDWIDTH,
    )


def _shape(meta: TensorMeta) -> str:
    return "x".join(map(str, meta.shape)) or "scalar"


def op_table(ops: Sequence[OpRoofline]) -> Table:
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
