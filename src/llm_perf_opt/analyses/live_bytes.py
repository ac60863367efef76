"""The one reckoning of live memory: what each op adds and what has gone by the time it runs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate, compress
from operator import sub

from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.queries import stage_names, stage_of_ops
from llm_perf_opt.callgraph.records import StorageColumns

GIVEN = "input"
MADE_ORIGINS = frozenset({"activation", "scratch"})
LIVE_ORIGINS = MADE_ORIGINS | {GIVEN}


def live_bytes(storages: StorageColumns, op_count: int) -> array[int]:
    """Bytes alive while each op ran: activations, what a composite op holds beside its result, and the inputs.

    An input, such as the cache that an earlier phase left, may die in the phase, so it is followed like any other.
    """
    steps = _born(storages, op_count, LIVE_ORIGINS)
    for end, size_bytes in _of_origins(storages, storages.freed_op, LIVE_ORIGINS):
        steps[end] -= size_bytes
    return array("q", accumulate(steps))[:op_count]


def held_bytes(storages: StorageColumns, op_count: int) -> array[int]:
    """Bytes that were alive before each op ran and still are while it does: its own results and scratch left out."""
    live, born = live_bytes(storages, op_count), _born(storages, op_count, MADE_ORIGINS)
    return array("q", map(sub, live, born))


def _born(storages: StorageColumns, op_count: int, origins: frozenset[str]) -> array[int]:
    """Bytes of these origins that are there from each op on; the last entry is what no op ever wrote."""
    born = array("q", bytes(8 * (op_count + 1)))
    for start, size_bytes in _of_origins(storages, storages.born_op, origins):
        born[start] += size_bytes
    return born


def _of_origins(storages: StorageColumns, column: array[int], origins: frozenset[str]) -> Iterable[tuple[int, int]]:
    is_meant = list(map(origins.__contains__, storages.origin))
    return zip(compress(column, is_meant), compress(storages.bytes, is_meant), strict=True)


def memory_by_stage(graph: CallGraph) -> list[tuple[int, int]] | None:
    """Per stage: activation bytes born in it, and the most bytes alive during one of its ops; None where unknown."""
    if graph.ops is None or graph.storages is None:
        return None
    stage_by_op = stage_of_ops(graph)
    born, peaks = [0] * len(stage_names(graph)), [0] * len(stage_names(graph))
    storages = graph.storages
    for origin, start, size_bytes in zip(storages.origin, storages.born_op, storages.bytes, strict=True):
        if origin == "activation" and start < len(stage_by_op):  # what no op ever wrote belongs to no stage
            born[stage_by_op[start]] += size_bytes
    for stage, live in zip(stage_by_op, live_bytes(storages, len(stage_by_op)), strict=True):
        if live > peaks[stage]:
            peaks[stage] = live
    return list(zip(born, peaks, strict=True))
