"""Live memory over the ops of a run: what each op adds, what has been freed by then, by phase and by stage."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from operator import sub

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import stage_names, stage_of_ops
from llm_perf_opt.core.callgraph.records import StorageColumns

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


PLOT_POINTS = 600

Point = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCurve:
    """The ops of one stage, in order, and the bytes alive while each of them ran."""

    stage: str
    ops: array[int]  # rows of the graph's ops; a stage may run in several stretches
    live_bytes: array[int]

    @property
    def peak_op(self) -> int:
        """The op, as a row of the graph, that first reached the peak."""
        return self.ops[self.live_bytes.index(self.peak_bytes)]

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive during one of the stage's ops."""
        return max(self.live_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Live bytes of a whole phase, op by op, and the same cut by stage; stages without ops are left out."""

    phase: str
    whole: StageCurve
    stages: tuple[StageCurve, ...]


def timeline(graph: CallGraph) -> Timeline | None:
    """The curve of one phase; None where the trace holds no ops or follows no memory."""
    if graph.ops is None or graph.storages is None or "activation" not in graph.storages.origin:
        return None
    live = live_bytes(graph.storages, len(graph.ops.kind))
    stage_by_op = stage_of_ops(graph)
    curves = (
        _curve(name, live, (row == stage for row in stage_by_op)) for stage, name in enumerate(stage_names(graph))
    )
    return Timeline(
        phase=graph.phase,
        whole=StageCurve(stage=graph.phase, ops=array("q", range(len(live))), live_bytes=live),
        stages=tuple(curve for curve in curves if curve.ops),
    )


def _curve(stage: str, live: array[int], is_in_stage: Iterable[bool]) -> StageCurve:
    rows = array("q", compress(range(len(live)), is_in_stage))
    return StageCurve(stage=stage, ops=rows, live_bytes=array("q", map(live.__getitem__, rows)))


def step_points(live: Sequence[int], limit: int = PLOT_POINTS) -> tuple[Point, ...]:
    """The curve as at most about `limit` points for a step line: exact where that suffices.

    Otherwise every stretch of ops keeps its highest and its lowest value, so the peak is never lost. The last point
    repeats the last value, so that the last op has a width.
    """
    steps = [row for row, value in enumerate(live) if row == 0 or value != live[row - 1]]
    if len(steps) > limit:
        steps = sorted({row for stretch in _stretches(steps, limit // 2) for row in _extremes(live, stretch)})
    points = [(row, live[row]) for row in steps]
    return (*points, (len(live), live[-1])) if points else ()


def _stretches(steps: list[int], count: int) -> Iterable[list[int]]:
    size = -(-len(steps) // count)
    return (steps[start : start + size] for start in range(0, len(steps), size))


def _extremes(live: Sequence[int], rows: list[int]) -> tuple[int, int]:
    return max(rows, key=live.__getitem__), min(rows, key=live.__getitem__)
