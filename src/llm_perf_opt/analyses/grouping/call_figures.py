"""What each call costs by itself, as columns of integers, and the module at which a weight counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from llm_perf_opt.analyses.cost.parameters import untied
from llm_perf_opt.analyses.pricing import price
from llm_perf_opt.analyses.pricing.op_cost import FREE, elements
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import OpColumns, Parameter, StorageColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterHomes:
    """Module path -> parameter elements. `idle` are those of modules that are in no box and whose weights no op read.

    A tied weight counts at the first of its names that is in a box. A weight that another module reads without calling
    its owner counts at the nearest module around the owner.
    """

    by_path: dict[str, int] = field(default_factory=dict)
    idle: dict[str, int] = field(default_factory=dict)


def parameter_homes(graph: CallGraph, shown: Set[str]) -> ParameterHomes | None:
    """A home for every weight, given the modules that stand in a box; None where the trace knows no weights."""
    if not graph.parameters and graph.ops is None:
        return None
    homes = ParameterHomes()
    read: set[int] | None = None
    for names, parameter in _weights(graph):
        owners = [name.rpartition(".")[0] for name in names]
        owner, table = next((path for path in owners if path in shown), owners[0]), homes.by_path
        if owner not in shown:
            if read is None:
                read = set(graph.ops.input_storages) if graph.ops is not None else set()
            nearest = _nearest(owner, shown) if parameter.storage in read else None
            owner, table = (owner, homes.idle) if nearest is None else (nearest, homes.by_path)
        table[owner] = table.get(owner, 0) + elements(parameter.meta)
    return homes


def _weights(graph: CallGraph) -> Iterator[tuple[list[str], Parameter]]:
    """Every weight once, with all its names."""
    names: dict[int, list[str]] = {}
    for parameter in graph.parameters:
        if parameter.storage >= 0 and not parameter.is_buffer:
            names.setdefault(parameter.storage, []).append(parameter.name)
    for parameter in untied(graph.parameters):
        yield names.get(parameter.storage, [parameter.name]), parameter


def _nearest(path: str, shown: Set[str]) -> str | None:
    while path not in shown:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return path


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
