"""From unfolded rows to a call graph: its columns, its counts, and tables of what its rows are."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llm_perf_opt.core.callgraph.aggregates import count_calls, count_edges, count_own_ops, count_root_calls
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.core.callgraph.records import Coverage, OpKind, StorageColumns
from llm_perf_opt.sweeps.function.program.alignment import storages_of
from llm_perf_opt.sweeps.function.program.loop_lists import RowTensor
from llm_perf_opt.sweeps.function.program.loop_memory import GIVEN_ORIGINS, as_column, homes_of
from llm_perf_opt.sweeps.function.program.loops import Loop
from llm_perf_opt.sweeps.function.program.unfolding import TensorsOfRows, Unfolded, offsets_of, unfold

Tensors = tuple[Sequence[RowTensor], Sequence[RowTensor]]  # the inputs and the outputs of an op
KindAt = Callable[[int, int, Tensors | None], int]  # kind of the old row, block, lists -> kind of the new row
MetaAt = Callable[[int, int], int]  # tensor of the old row, block -> tensor of the new row


def assembled(graph: CallGraph, rows: Unfolded, kind_at: KindAt, meta_at: MetaAt) -> CallGraph:
    """The graph with these rows; its kinds, tensors and the bytes of its memory are left for the caller to fill."""
    old_ops, old_calls, old_storages = ops_of(graph), calls_of(graph), storages_of(graph)
    inputs_at, outputs_at = offsets_of(old_calls.input_count), offsets_of(old_calls.output_count)
    old_kinds, old_paths = np.asarray(old_ops.kind)[rows.ops.what], np.asarray(old_calls.path)[rows.calls.what].tolist()
    listed = _lists(rows)
    pairs = enumerate(zip(old_kinds.tolist(), rows.ops.block.tolist(), strict=True))
    kinds = (kind_at(kind, block, listed.get(new)) for new, (kind, block) in pairs)
    used = {old: new for new, old in enumerate(dict.fromkeys(old_paths))}
    paths = tuple(graph.paths[old] for old in used)
    ops = replace(
        old_ops,
        kind=array("q", kinds),
        call=rows.op_calls,
        input_storages=rows.op_inputs.storages,
        output_storages=rows.op_outputs.storages,
    )
    calls = replace(
        old_calls,
        path=array("q", map(used.__getitem__, old_paths)),
        parent=rows.parents,
        first_op=rows.first_op,
        end_op=rows.end_op,
        input_count=rows.call_inputs.counts,
        output_count=rows.call_outputs.counts,
        input_metas=_metas(rows, rows.call_inputs, old_calls.input_metas, inputs_at, meta_at),
        input_storages=rows.call_inputs.storages,
        output_metas=_metas(rows, rows.call_outputs, old_calls.output_metas, outputs_at, meta_at),
        output_storages=rows.call_outputs.storages,
    )
    return replace(
        graph,
        ops=ops,
        calls=calls,
        paths=paths,
        storages=StorageColumns(
            bytes=array("q", bytes(8 * len(rows.storages))),
            born_op=rows.born_op,
            freed_op=rows.freed_op,
            origin=tuple(map(old_storages.origin.__getitem__, rows.storages.where.tolist())),
        ),
        parameters=tuple(
            replace(parameter, storage=int(rows.new_storage[parameter.storage]))
            if parameter.storage >= 0
            else parameter
            for parameter in graph.parameters
        ),
        coverage=Coverage(ops=len(ops.kind), op_kinds=len(set(ops.kind))),
        call_counts=count_calls(paths, calls),
        root_calls=count_root_calls(paths, calls),
        edges=count_edges(paths, calls),
        op_call_counts=count_own_ops(paths, calls, ops),
        input_metadata={},
        output_metadata={},
    )


def _lists(rows: Unfolded) -> dict[int, Tensors]:
    """The tensors of new ops among which is a list over a loop."""
    inputs, outputs = rows.op_inputs, rows.op_outputs
    if not inputs.listed and not outputs.listed:
        return {}
    ops = list(rows.ops)
    rows_listed = {**inputs.listed, **outputs.listed}
    found = {new: (inputs.of_row(new, ops[new]), outputs.of_row(new, ops[new])) for new in rows_listed}
    return {new: tensors for new, tensors in found.items() if _is_list(tensors, ops[new].block)}


def _is_list(tensors: Tensors, block: int) -> bool:
    """Whether there are other tensors in some places, or those of other blocks."""
    return any(one.place != at or one.block != block for entries in tensors for at, one in enumerate(entries))


def _metas(
    rows: Unfolded, got: TensorsOfRows, old: Sequence[int], starts: Sequence[int], meta_at: MetaAt
) -> array[int]:
    found = array("q")
    for new, (row, count) in enumerate(zip(rows.calls, got.counts, strict=True)):
        start, listed = starts[row.what], got.listed.get(new)
        if listed is None:
            found.extend([meta_at(number, row.block) for number in old[start : start + count]])
        else:
            found.extend([meta_at(old[start + one.place], one.block) for one in listed])
    return found


def with_places(kind: OpKind, tensors: Tensors) -> OpKind:
    """An op with other inputs and outputs."""

    def chosen(items: Sequence[Any], entries: Sequence[RowTensor]) -> tuple[Any, ...]:
        return tuple(items[entry.place] for entry in entries) if items else ()

    inputs, outputs = tensors
    return replace(
        kind,
        inputs=chosen(kind.inputs, inputs),
        input_names=chosen(kind.input_names, inputs),
        outputs=chosen(kind.outputs, outputs),
        output_aliases=chosen(kind.output_aliases, outputs),
    )


def refolded(graph: CallGraph, rows: Unfolded) -> CallGraph:
    """A traced graph with its loops run another number of times; sizes of blocks that were not traced are another's."""
    kinds = list(graph.op_kinds)

    def kind_at(number: int, block: int, tensors: Tensors | None) -> int:
        if tensors is None:
            return number
        kinds.append(with_places(kinds[number], tensors))
        return len(kinds) - 1

    result = assembled(graph, rows, kind_at, lambda number, block: number)
    sizes = as_column(np.asarray(storages_of(graph).bytes)[rows.storages.what])
    return replace(result, op_kinds=tuple(kinds), storages=replace(storages_of(result), bytes=sizes))


def folded(graph: CallGraph, loops: Sequence[Loop], most: int) -> tuple[CallGraph, tuple[Loop, ...]]:
    """The graph with so many blocks at most in loops whose blocks are all alike."""
    counts = [loop.blocks if loop.routed is not None else min(loop.blocks, most) for loop in loops]
    if all(count == loop.blocks for count, loop in zip(counts, loops, strict=True)):
        return graph, tuple(loops)
    rows = unfold(graph, loops, counts)
    result = refolded(graph, rows)
    homes = homes_of(graph, loops)
    given: list[list[list[tuple[int, int]]]] = [[[] for _ in range(count)] for count in counts]
    for new, row in enumerate(rows.storages):
        if row.loop >= 0 and storages_of(graph).origin[row.where] in GIVEN_ORIGINS:
            given[row.loop][row.block].append((homes[row.where].place, new))
    return result, tuple(
        replace(
            loop,
            blocks=counts[number],
            first_op=rows.loop_ops[number],
            first_call=rows.loop_calls[number],
            given=tuple(tuple(new for _, new in sorted(one)) for one in given[number]) if loop.given else (),
        )
        for number, loop in enumerate(loops)
    )
