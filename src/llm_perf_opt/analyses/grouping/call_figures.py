"""What each call costs by itself, as columns of integers; the last entry of each is what ran outside any call.

FLOPs and bytes of a call are those of its ops that have a price; how many have none is a column of its own, and
`counted_or_unknown` tells a true zero from the nothing that is known of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.pricing import price
from llm_perf_opt.analyses.pricing.op_cost import FREE
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.records import OpColumns, StorageColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFigures:
    """Columns by call row, or None where the trace does not say."""

    flops: Sequence[int] | None
    bytes_moved: Sequence[int] | None
    activation_bytes: Sequence[int] | None
    unpriced_ops: Sequence[int] | None


def call_figures(graph: CallGraph) -> CallFigures:
    """Own figures of every call: the ops run directly in it, without those of the calls it made."""
    if graph.calls is None or graph.ops is None:
        return CallFigures(flops=None, bytes_moved=None, activation_bytes=None, unpriced_ops=None)
    prices = [price(kind) for kind in graph.op_kinds]
    size = len(graph.calls.path) + 1
    return CallFigures(
        flops=_column(graph.ops, [(cost or FREE).flops for cost in prices], size),
        bytes_moved=_column(graph.ops, [(cost or FREE).bytes_moved for cost in prices], size),
        unpriced_ops=_column(graph.ops, [int(cost is None) for cost in prices], size),
        activation_bytes=None if (storages := memory_of(graph)) is None else _born_bytes(graph.ops, storages, size),
    )


def memory_of(graph: CallGraph) -> StorageColumns | None:
    """The memory that a run took; None where the tracer follows none, and knows weights and inputs alone."""
    storages = graph.storages
    return None if storages is None or "activation" not in storages.origin else storages


def _column(ops: OpColumns, per_kind: list[int], size: int) -> list[int]:
    column = [0] * size
    if any(per_kind):
        for call, kind in zip(ops.call, ops.kind, strict=True):
            column[call] += per_kind[kind]  # call -1 lands in the last place
    return column


def _born_bytes(ops: OpColumns, storages: StorageColumns, size: int) -> list[int]:
    column = [0] * size
    op_count = len(ops.call)
    for origin, start, size_bytes in zip(storages.origin, storages.born_op, storages.bytes, strict=True):
        if origin == "activation" and start < op_count:  # what no op ever wrote belongs to no call
            column[ops.call[start]] += size_bytes
    return column
