"""One call graph for each phase of a step, cut out of the graph of the whole: what `cost` and `graph` read.

A call that is open in two phases, as the root module is in forward and loss, is in the graphs of both with the ops that
ran there. Memory that a phase found is an input of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from llm_perf_opt.core.callgraph import CallGraph, aggregates
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, tensor_offsets
from llm_perf_opt.core.callgraph.records import CallColumns, Coverage, OpColumns, StorageColumns
from llm_perf_opt.core.recorded_step import PHASES, RecordedTrainingStep

_BORN_IN_A_RUN = ("activation", "scratch")


def phase_graphs(step: RecordedTrainingStep) -> tuple[CallGraph, ...]:
    """The phases that ran any op, in the order of a step."""
    graphs = []
    for phase in PHASES:
        kept = bytearray(step.op_count)
        for name, rows in step.ranges():
            if name == phase:
                kept[rows.start : rows.stop] = b"\1" * len(rows)
        if any(kept):
            graphs.append(_cut(step.graph, phase, kept))
    return tuple(graphs)


def _cut(graph: CallGraph, phase: str, kept: bytearray) -> CallGraph:
    """The graph of the ops that are kept, with the calls around them."""
    before = array("q", accumulate(kept, initial=0))  # per op: how many of the kept ones come first
    calls, call_rows = _calls(graph, kept, before)
    ops = _ops(graph, kept, call_rows)
    kinds = set(ops.kind)
    return replace(
        graph,
        phase=phase,
        ops=ops,
        calls=calls,
        storages=_storages(graph, kept, before),
        coverage=Coverage(ops=len(ops.kind), op_kinds=len(kinds)),
        call_counts=aggregates.count_calls(graph.paths, calls),
        root_calls=aggregates.count_root_calls(graph.paths, calls),
        edges=aggregates.count_edges(graph.paths, calls),
        op_call_counts=aggregates.count_own_ops(graph.paths, calls, ops),
        input_metadata=aggregates.observations(aggregates.count_inputs(graph.paths, graph.tensor_metas, calls)),
        output_metadata=aggregates.observations(aggregates.count_outputs(graph.paths, graph.tensor_metas, calls)),
        events=(),
    )


def _ops(graph: CallGraph, kept: bytearray, call_rows: Sequence[int]) -> OpColumns:
    ops = ops_of(graph)
    starts = tensor_offsets(graph)
    rows = [row for row, is_kept in enumerate(kept) if is_kept]
    columns = []
    for storages, offsets in zip((ops.input_storages, ops.output_storages), starts, strict=True):
        column = array("q")
        for row in rows:
            column += storages[offsets[row] : offsets[row + 1]]
        columns.append(column)
    return OpColumns(
        kind=array("q", map(ops.kind.__getitem__, rows)),
        call=array("q", (call_rows[ops.call[row]] if ops.call[row] >= 0 else -1 for row in rows)),
        input_storages=columns[0],
        output_storages=columns[1],
    )


def _calls(graph: CallGraph, kept: bytearray, before: array[int]) -> tuple[CallColumns, list[int]]:
    """The calls around the kept ops, and those without ops among them; and the new row of each call, or -1."""
    calls = calls_of(graph)
    new_rows: list[int] = []
    made = CallColumns(**{name: array("q") for name in CallColumns.__dataclass_fields__})
    input_at, output_at = (accumulate(counts, initial=0) for counts in (calls.input_count, calls.output_count))
    for row, (first, end, inputs, outputs) in enumerate(
        zip(calls.first_op, calls.end_op, input_at, output_at, strict=False)
    ):
        has_ops = before[end] > before[first]
        is_between = first == end and first < len(kept) and bool(kept[first])
        parent = calls.parent[row]
        if not (has_ops or is_between) or (parent >= 0 and new_rows[parent] < 0):
            new_rows.append(-1)
            continue
        new_rows.append(len(made.path))
        made.path.append(calls.path[row])
        made.parent.append(new_rows[parent] if parent >= 0 else -1)
        made.first_op.append(before[first])
        made.end_op.append(before[end])
        # What a call took or gave in another phase is not known in this one.
        input_count = calls.input_count[row] if kept[min(first, len(kept) - 1)] else 0
        output_count = calls.output_count[row] if end > 0 and kept[end - 1] else 0
        made.input_count.append(input_count)
        made.output_count.append(output_count)
        made.input_metas.extend(calls.input_metas[inputs : inputs + input_count])
        made.input_storages.extend(calls.input_storages[inputs : inputs + input_count])
        made.output_metas.extend(calls.output_metas[outputs : outputs + output_count])
        made.output_storages.extend(calls.output_storages[outputs : outputs + output_count])
    return made, new_rows


def _storages(graph: CallGraph, kept: bytearray, before: array[int]) -> StorageColumns:
    """All of them, so that rows stay what they are; what was there before the phase is an input of it."""
    storages = graph.storages
    assert storages is not None, "a recorded step follows memory"
    origins = []
    born_at = array("q")
    for origin, born in zip(storages.origin, storages.born_op, strict=True):
        is_inside = born < len(kept) and bool(kept[born])
        if origin in _BORN_IN_A_RUN and not is_inside:
            origin = "input"
        origins.append(origin)
        born_at.append(before[born] if is_inside and origin in _BORN_IN_A_RUN else 0)
    return StorageColumns(
        bytes=_bytes_of_living(storages, before),
        born_op=born_at,
        freed_op=array("q", (max(before[freed], born) for freed, born in zip(storages.freed_op, born_at, strict=True))),
        origin=tuple(origins),
    )


def _bytes_of_living(storages: StorageColumns, before: array[int]) -> array[int]:
    """Memory that no op of the phase could see takes none of its bytes."""
    return array(
        "q",
        (
            size_bytes
            if before[freed] > before[born] or (before[freed] == before[-1] and before[born] < before[-1])
            else 0
            for size_bytes, born, freed in zip(storages.bytes, storages.born_op, storages.freed_op, strict=True)
        ),
    )
