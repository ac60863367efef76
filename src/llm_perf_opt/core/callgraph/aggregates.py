"""The contract keys, counted from the columns: once by the builder, and again by the invariants to hold them to it."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from llm_perf_opt.core.callgraph.records import CallColumns, Observation, OpColumns, TensorMeta

ARROW = "->"
_MAX_ARROWS = 16  # no module name is like that; trying every split of a made-up key must stay cheap


def count_calls(paths: Sequence[str], calls: CallColumns) -> dict[str, int]:
    """Module path -> calls, in the order of the first call."""
    return {paths[row]: count for row, count in Counter(calls.path).items()}


def count_root_calls(paths: Sequence[str], calls: CallColumns) -> dict[str, int]:
    """Module path -> calls that no module made."""
    roots = (row for row, parent in zip(calls.path, calls.parent, strict=True) if parent < 0)
    return {paths[row]: count for row, count in Counter(roots).items()}


def count_edges(paths: Sequence[str], calls: CallColumns) -> dict[str, int]:
    """`"parent->child"` -> calls; the parent is the nearest enclosing called module."""
    pairs = ((calls.path[p], row) for row, p in zip(calls.path, calls.parent, strict=True) if p >= 0)
    return {f"{paths[parent]}{ARROW}{paths[child]}": count for (parent, child), count in Counter(pairs).items()}


def count_own_ops(paths: Sequence[str], calls: CallColumns, ops: OpColumns) -> dict[str, int]:
    """Module path -> ops run directly in it, 0 for a called module that only calls others."""
    own = dict.fromkeys(map(paths.__getitem__, calls.path), 0)
    for call, count in Counter(ops.call).items():
        if call >= 0:
            own[paths[calls.path[call]]] += count
    return own


ObservedTensors = dict[str, dict[tuple[TensorMeta, ...], int]]  # path -> the tensors seen there -> in how many calls


def count_inputs(paths: Sequence[str], metas: Sequence[TensorMeta], calls: CallColumns) -> ObservedTensors:
    """What went into each module."""
    return _count_tensors(paths, metas, calls.path, calls.input_count, calls.input_metas)


def count_outputs(paths: Sequence[str], metas: Sequence[TensorMeta], calls: CallColumns) -> ObservedTensors:
    """What came out of each module; a call without tensors is an observation too, so that the calls add up."""
    return _count_tensors(paths, metas, calls.path, calls.output_count, calls.output_metas)


def _count_tensors(
    paths: Sequence[str],
    metas: Sequence[TensorMeta],
    path_of_call: Iterable[int],
    counts: Iterable[int],
    flat: array[int],
) -> ObservedTensors:
    # Rows are compared, not metas: hashing a few integers per call instead of shapes and names.
    calls_by_rows: Counter[tuple[int, tuple[int, ...]]] = Counter()
    start = 0
    for path, count in zip(path_of_call, counts, strict=True):
        calls_by_rows[path, tuple(flat[start : start + count])] += 1
        start += count
    tensors_by_rows: dict[tuple[int, ...], tuple[TensorMeta, ...]] = {}
    seen: ObservedTensors = {}
    for (path, rows), count in calls_by_rows.items():
        if rows not in tensors_by_rows:
            tensors_by_rows[rows] = tuple(metas[row] for row in rows)
        by_tensors = seen.setdefault(paths[path], {})
        tensors = tensors_by_rows[rows]
        by_tensors[tensors] = by_tensors.get(tensors, 0) + count
    return seen


def split_edge(edge: str, known: Mapping[str, int]) -> tuple[str, str] | None:
    """Parent and child of an edge key, or None where it cannot be told.

    A module name may contain an arrow too; then the key is split where both sides are modules that were called.
    """
    parent, arrow, child = edge.partition(ARROW)
    if not arrow:
        return None
    if ARROW not in child:
        return parent, child
    if edge.count(ARROW) > _MAX_ARROWS:
        return None
    splits = []
    at = edge.find(ARROW)
    while at >= 0:
        sides = edge[:at], edge[at + len(ARROW) :]
        if sides[0] in known and sides[1] in known:
            splits.append(sides)
        at = edge.find(ARROW, at + 1)
    return splits[0] if len(splits) == 1 else None


def observations(seen: ObservedTensors) -> dict[str, tuple[Observation, ...]]:
    """The same as records of a call graph."""
    return {
        path: tuple(Observation(tensors=tensors, calls=calls) for tensors, calls in by_tensors.items())
        for path, by_tensors in seen.items()
    }
