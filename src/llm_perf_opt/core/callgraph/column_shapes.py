"""The columns fit together: equal lengths, every index inside its table. Whatever follows may rely on it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import count
from operator import ge

from llm_perf_opt.core.callgraph.event_logs import ORIGINS
from llm_perf_opt.core.callgraph.records import CallColumns, OpColumns, OpKind, RunDetail


def shape_problems(graph: RunDetail) -> Iterator[str]:
    """Every misfit. A graph that has none can be walked without an index error."""
    yield from _table_problems(graph)
    if graph.calls is not None:
        yield from _call_problems(graph, graph.calls)
    if graph.ops is not None:
        yield from _op_problems(graph, graph.ops)
    if graph.storages is not None:
        yield from _storage_problems(graph)


def _table_problems(graph: RunDetail) -> Iterator[str]:
    if len(set(graph.paths)) < len(graph.paths):
        yield "paths: a module path has two rows"
    names = [parameter.name for parameter in graph.parameters]
    if len(set(names)) < len(names):
        yield "parameters: a name occurs twice"
    for row, kind in enumerate(graph.op_kinds):
        yield from _kind_problems(f"op_kinds[{row}] ({kind.name})", kind)
    storage_count = _storage_count(graph)
    for parameter in graph.parameters:
        if not -1 <= parameter.storage < storage_count:
            yield f"parameter {parameter.name!r}: there is no storage {parameter.storage}"


def _kind_problems(where: str, kind: OpKind) -> Iterator[str]:
    if kind.input_names and len(kind.input_names) != len(kind.inputs):
        yield f"{where}: {len(kind.input_names)} input names for {len(kind.inputs)} inputs"
    if kind.output_aliases and len(kind.output_aliases) != len(kind.outputs):
        yield f"{where}: {len(kind.output_aliases)} aliases for {len(kind.outputs)} outputs"
    for alias in kind.output_aliases:
        if not -1 <= alias < len(kind.inputs):
            yield f"{where}: an output shares the storage of input {alias}, of {len(kind.inputs)} inputs"
    for part in kind.parts:
        yield from _kind_problems(f"{where}, part {part.name}", part)


def _call_problems(graph: RunDetail, calls: CallColumns) -> Iterator[str]:
    columns = (calls.path, calls.parent, calls.first_op, calls.end_op, calls.input_count, calls.output_count)
    if len({len(column) for column in columns}) > 1:
        yield "calls: the columns differ in length"
        return
    yield from index_problems("calls.path", calls.path, len(graph.paths))
    yield from index_problems("calls.parent", calls.parent, len(calls.path), low=-1)
    if any(map(ge, calls.parent, count())):
        call = next(call for call, parent in enumerate(calls.parent) if parent >= call)
        yield f"call {call} has parent {calls.parent[call]}: a parent precedes its children"
    yield from _time_problems("calls.started_ns", calls.started_ns, calls.path)
    yield from _time_problems("calls.ended_ns", calls.ended_ns, calls.path)
    if len(calls.started_ns) != len(calls.ended_ns):
        yield "calls: they have times of beginning or of end, and not both"
    op_count = _op_count(graph)
    yield from index_problems("calls.first_op", calls.first_op, op_count + 1)
    yield from index_problems("calls.end_op", calls.end_op, op_count + 1)
    yield from index_problems("calls.input_count", calls.input_count, None)
    yield from index_problems("calls.output_count", calls.output_count, None)
    storage_count, meta_count = _storage_count(graph), len(graph.tensor_metas)
    for side, counts, metas, storages in (
        ("input", calls.input_count, calls.input_metas, calls.input_storages),
        ("output", calls.output_count, calls.output_metas, calls.output_storages),
    ):
        if not len(metas) == len(storages) == sum(counts):
            yield f"calls: {side}_count adds up to {sum(counts)}, for {len(metas)} metas and {len(storages)} storages"
        yield from index_problems(f"calls.{side}_metas", metas, meta_count)
        yield from index_problems(f"calls.{side}_storages", storages, storage_count)


def _op_problems(graph: RunDetail, ops: OpColumns) -> Iterator[str]:
    if len(ops.kind) != len(ops.call):
        yield f"ops: {len(ops.kind)} kinds for {len(ops.call)} calls"
        return
    yield from _time_problems("ops.duration_ns", ops.duration_ns, ops.kind)
    yield from _time_problems("ops.device_ns", ops.device_ns, ops.kind)
    misplaced = list(index_problems("ops.kind", ops.kind, len(graph.op_kinds)))
    yield from misplaced
    yield from index_problems("ops.call", ops.call, len(graph.calls.path) if graph.calls else 0, low=-1)
    if misplaced:
        return
    for side, storages, arity in (
        ("input", ops.input_storages, [len(kind.inputs) for kind in graph.op_kinds]),
        ("output", ops.output_storages, [len(kind.outputs) for kind in graph.op_kinds]),
    ):
        expected = sum(map(arity.__getitem__, ops.kind))
        if len(storages) != expected:
            yield f"ops: {len(storages)} {side} storages, the kinds have {expected} {side}s"
        yield from index_problems(f"ops.{side}_storages", storages, _storage_count(graph))


def _time_problems(name: str, times: array[int], rows: array[int]) -> Iterator[str]:
    """A time for every row or for none, and none before the beginning."""
    if len(times) not in (0, len(rows)):
        yield f"{name}: {len(times)} times for {len(rows)} rows"
    yield from index_problems(name, times, None)


def _storage_problems(graph: RunDetail) -> Iterator[str]:
    storages = graph.storages
    assert storages is not None
    columns: tuple[Sequence[object], ...] = (storages.bytes, storages.born_op, storages.freed_op, storages.origin)
    if len({len(column) for column in columns}) > 1:
        yield "storages: the columns differ in length"
    yield from index_problems("storages.bytes", storages.bytes, None)
    yield from index_problems("storages.born_op", storages.born_op, _op_count(graph) + 1)
    yield from index_problems("storages.freed_op", storages.freed_op, _op_count(graph) + 1)
    for origin in sorted(set(storages.origin).difference(ORIGINS)):
        yield f"storages: {origin!r} is no origin; known are {', '.join(ORIGINS)}"


def index_problems(name: str, column: array[int], end: int | None, *, low: int = 0) -> Iterator[str]:
    """The first value outside [low, end), by C loops over the whole column."""
    if not column:
        return
    smallest, largest = min(column), max(column)
    if smallest < low:
        yield f"{name}[{column.index(smallest)}] is {smallest}, below {low}"
    if end is not None and largest >= end:
        yield f"{name}[{column.index(largest)}] is {largest}, not below {end}"


def _storage_count(graph: RunDetail) -> int:
    return len(graph.storages.bytes) if graph.storages is not None else 0


def _op_count(graph: RunDetail) -> int:
    return len(graph.ops.kind) if graph.ops is not None else 0
