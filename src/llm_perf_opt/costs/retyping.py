"""The same run with some of its memory stored in another type: every tensor that lives there says so.

Shapes, ops and calls stay what they were. What was copied out of such memory is another storage and keeps its type.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import compress
from typing import Protocol

from llm_perf_opt.core.callgraph import CallGraph, Coverage, Observation, aggregates
from llm_perf_opt.core.callgraph.builder import KindTable
from llm_perf_opt.core.callgraph.queries import tensor_offsets
from llm_perf_opt.core.callgraph.records import CallColumns, OpColumns, OpKind, TensorMeta


class StoredAs(Hashable, Protocol):
    """How the tensors of one storage look in the new type; compared by value, since many storages share one."""

    def retyped(self, meta: TensorMeta) -> TensorMeta:
        """The tensor in the new type, or unchanged where it was not of the type that is replaced."""
        ...


def retype(graph: CallGraph, stored: Mapping[int, StoredAs], bytes_of: Mapping[int, int]) -> CallGraph:
    """The graph with the storages (rows) in `stored` in their new type, those in `bytes_of` taking as many bytes.

    Parameters are the caller's: the graph that is returned has the old ones.
    """
    if graph.storages is None or not stored:
        return graph
    sizes = array("q", graph.storages.bytes)
    for row, size_bytes in bytes_of.items():
        sizes[row] = size_bytes
    graph = replace(graph, storages=replace(graph.storages, bytes=sizes))
    if graph.ops is not None:
        graph = _with_ops(graph, graph.ops, stored)
    return graph if graph.calls is None else _with_calls(graph, graph.calls, stored)


def _with_ops(graph: CallGraph, ops: OpColumns, stored: Mapping[int, StoredAs]) -> CallGraph:
    """Kinds are numbered anew in the order of first use: ops that shared one may differ, and an old one may be gone."""
    table, known = KindTable(), dict[object, int]()
    rows = array("q")
    for key in _kind_keys(graph, ops, stored):
        row = known.get(key)
        if row is None:
            kind = graph.op_kinds[key] if isinstance(key, int) else _retyped_kind(graph.op_kinds[key[0]], key[1])
            row = known[key] = table.row_of(kind)
        rows.append(row)
    kinds = table.kinds()
    metas = dict.fromkeys((*graph.tensor_metas, *(meta for kind in kinds for meta in _metas(kind))))
    return replace(
        graph,
        ops=replace(ops, kind=rows),
        op_kinds=kinds,
        tensor_metas=tuple(metas),
        coverage=None if graph.coverage is None else Coverage(ops=len(rows), op_kinds=len(set(rows))),
    )


_Places = tuple[StoredAs | None, ...]  # inputs, then outputs


def _kind_keys(graph: CallGraph, ops: OpColumns, stored: Mapping[int, StoredAs]) -> Iterator[int | tuple[int, _Places]]:
    """Per op what decides its kind: its old row, and if it touches such memory, what lies where."""
    touches = _touching(graph, ops, stored)
    starts, ends = tensor_offsets(graph)
    for op, kind in enumerate(ops.kind):
        if not touches[op]:
            yield kind
            continue
        inputs = ops.input_storages[starts[op] : starts[op + 1]]
        outputs = ops.output_storages[ends[op] : ends[op + 1]]
        yield kind, tuple(map(stored.get, (*inputs, *outputs)))


def _touching(graph: CallGraph, ops: OpColumns, stored: Mapping[int, StoredAs]) -> bytearray:
    """Per op, whether one of its tensors lies in such memory."""
    touches = bytearray(len(ops.kind))
    for used, sizes in (
        (ops.input_storages, [len(kind.inputs) for kind in graph.op_kinds]),
        (ops.output_storages, [len(kind.outputs) for kind in graph.op_kinds]),
    ):
        op_of_use = (op for op, kind in enumerate(ops.kind) for _ in range(sizes[kind]))
        for op in compress(op_of_use, map(stored.__contains__, used)):
            touches[op] = 1
    return touches


def _retyped_kind(kind: OpKind, places: _Places) -> OpKind:
    count = len(kind.inputs)
    return replace(
        kind,
        inputs=_retyped_metas(kind.inputs, places[:count]),
        outputs=_retyped_metas(kind.outputs, places[count:]),
        parts=tuple(_retyped_part(part, kind, places) for part in kind.parts),
    )


def _retyped_metas(metas: Sequence[TensorMeta], places: _Places) -> tuple[TensorMeta, ...]:
    pairs = zip(metas, places, strict=True)
    return tuple(meta if place is None else _retyped(place, meta) for meta, place in pairs)


@lru_cache(maxsize=65536)
def _retyped(place: StoredAs, meta: TensorMeta) -> TensorMeta:
    return place.retyped(meta)


def _retyped_part(part: OpKind, whole: OpKind, places: _Places) -> OpKind:
    """A part does not say which memory it reads: it is taken to be the operand with as many values and that type."""
    by_size = {
        (math.prod(meta.shape), meta.dtype): place
        for meta, place in reversed(list(zip(whole.inputs, places, strict=False)))
    }
    inner: _Places = tuple(by_size.get((math.prod(meta.shape), meta.dtype)) for meta in part.inputs)
    return replace(
        part,
        inputs=_retyped_metas(part.inputs, inner),
        parts=tuple(_retyped_part(deeper, whole, places) for deeper in part.parts),
    )


def _metas(kind: OpKind) -> Iterator[TensorMeta]:
    yield from (*kind.inputs, *kind.outputs)
    for part in kind.parts:
        yield from _metas(part)


def _with_calls(graph: CallGraph, calls: CallColumns, stored: Mapping[int, StoredAs]) -> CallGraph:
    """Tensors that modules are handed and give back, and the observations that are counted from them."""
    rows = {meta: row for row, meta in enumerate(graph.tensor_metas)}

    def retyped_rows(metas: array[int], storages: array[int]) -> array[int]:
        renewed = array("q", metas)
        for at, storage in enumerate(storages):
            if (place := stored.get(storage)) is not None:
                renewed[at] = rows.setdefault(_retyped(place, graph.tensor_metas[metas[at]]), len(rows))
        return renewed

    calls = replace(
        calls,
        input_metas=retyped_rows(calls.input_metas, calls.input_storages),
        output_metas=retyped_rows(calls.output_metas, calls.output_storages),
    )
    metas = tuple(rows)
    renewed = replace(graph, calls=calls, tensor_metas=metas)
    if graph.input_metadata:
        renewed = replace(renewed, input_metadata=_observed(aggregates.count_inputs(graph.paths, metas, calls)))
    if graph.output_metadata:
        renewed = replace(renewed, output_metadata=_observed(aggregates.count_outputs(graph.paths, metas, calls)))
    return renewed


def _observed(seen: aggregates.ObservedTensors) -> dict[str, tuple[Observation, ...]]:
    return {
        path: tuple(Observation(tensors=tensors, calls=calls) for tensors, calls in by_tensors.items())
        for path, by_tensors in seen.items()
    }
