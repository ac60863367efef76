"""The operators of an exported graph with their shapes and prices."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analyses.pricing import OpCost, price
from llm_perf_opt.callgraph.records import TensorMeta
from llm_perf_opt.document import Cell, Column, Kind, Table
from llm_perf_opt.export_outcome import GraphOp, PartOutcome


def operator_table(part: PartOutcome) -> Table:
    """One row per distinct op; FLOPs and bytes are of all its occurrences, unknown where it has no price.

    One op without a price makes the sums unknown.
    """
    ops = part.ops or ()
    costs = [price(op.kind) for op in ops]
    known = sum((cost.times(op.count) for cost, op in zip(costs, ops, strict=True) if cost is not None), OpCost())
    total = None if None in costs else known
    return Table(
        title=f"Operators of {part.name}",
        columns=(
            Column("operator"),
            Column("count", Kind.COUNT),
            Column("inputs"),
            Column("outputs"),
            Column("dtype"),
            Column("FLOPs", Kind.FLOPS),
            Column("bytes moved", Kind.BYTES),
        ),
        rows=tuple(_row(op) for op in ops),
        footer=(
            "total",
            sum(op.count for op in ops),
            "",
            "",
            "",
            None if total is None else total.flops,
            None if total is None else total.bytes_moved,
        ),
    )


def _row(op: GraphOp) -> tuple[Cell, ...]:
    cost = price(op.kind)
    return (
        op.kind.name,
        op.count,
        _shapes(op.kind.inputs),
        _shapes(op.kind.outputs),
        (op.kind.outputs or op.kind.inputs)[0].dtype,
        None if cost is None else cost.flops * op.count,
        None if cost is None else cost.bytes_moved * op.count,
    )


def _shapes(metas: Sequence[TensorMeta]) -> str:
    return " ".join("x".join(map(str, meta.shape)) or "scalar" for meta in metas)
