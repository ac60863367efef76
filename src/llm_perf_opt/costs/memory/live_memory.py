"""Live memory over the ops of a run, by phase and stage, and what is alive at one moment of it."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from operator import sub
from typing import TYPE_CHECKING

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, label_of, ops_of, stage_names, stage_of_ops, tensor_offsets
from llm_perf_opt.core.callgraph.records import StorageColumns, TensorMeta

if TYPE_CHECKING:
    Integers = array[int]
else:  # who reads a record from the store looks at the types of its fields, and Python 3.11 has no `array[int]`
    Integers = array

GIVEN = "input"
MADE_ORIGINS = frozenset({"activation", "scratch"})
LIVE_ORIGINS = MADE_ORIGINS | {GIVEN}


def live_bytes(storages: StorageColumns, op_count: int) -> array[int]:
    """Bytes alive while each op ran: activations, what a composite op holds next to its result, and the inputs.

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
    ops: Integers  # rows of the graph's ops; a stage may run in several stretches
    live_bytes: Integers

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


SCRATCH = "(scratch)"
UNUSED = "(not used)"
GIVEN_BY = "(given)"
OUTSIDE = "(outside any module)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AliveTensors:
    """Blocks of memory alike in tensor, op and kind of module: the 24 tensors of a cache are one of these.

    `tensor` is what the op wrote, as `bfloat16[1, 10, 294, 128]`, or `(scratch)` for what it holds next to its result.
    What the phase began with was made by none of its ops: `(given)`.
    """

    tensor: str
    made_by: str
    path: str  # of the module that ran the op directly; several are written as `layers.[0-11].self_attn`
    bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The op at which most bytes were alive, the module it ran in, and everything alive, largest first."""

    stage: str
    op_row: int
    op: str
    path: str
    bytes: int
    alive: tuple[AliveTensors, ...]


def peak_of(graph: CallGraph, curve: StageCurve) -> Peak:
    """The peak of a stage, or of the whole run."""
    row = curve.peak_op
    return Peak(
        stage=curve.stage,
        op_row=row,
        op=_op_name(graph, row),
        path=_path_of_op(graph, row),
        bytes=curve.peak_bytes,
        alive=alive_at(graph, row),
    )


def alive_at(graph: CallGraph, op_row: int) -> tuple[AliveTensors, ...]:
    """Everything that was alive while an op ran, in groups, largest first; the bytes add up to the live bytes."""
    assert graph.storages is not None, "a graph that has a timeline has storages"
    starts = tensor_offsets(graph)[1]
    given = _given_tensors(graph)
    groups: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
    for storage in living_storages(graph.storages, op_row):
        if graph.storages.origin[storage] == GIVEN:
            tensor, maker, path = _tensor_text(given.get(storage), UNUSED), GIVEN_BY, OUTSIDE
        else:
            born = graph.storages.born_op[storage]
            tensor = _tensor_text(_written_by(graph, born, starts[born], storage), SCRATCH)
            maker, path = _op_name(graph, born), _path_of_op(graph, born)
        key = (tensor, maker, re.sub(r"(?<![^.])\d+(?![^.])", "*", path))
        groups.setdefault(key, []).append((path, graph.storages.bytes[storage]))
    alive = [
        AliveTensors(
            tensor=tensor,
            made_by=op,
            path=label_of(list(dict.fromkeys(path for path, _ in blocks))),
            bytes=sum(size_bytes for _, size_bytes in blocks),
            count=len(blocks),
        )
        for (tensor, op, _), blocks in groups.items()
    ]
    return tuple(sorted(alive, key=lambda group: -group.bytes))


def living_storages(storages: StorageColumns, op_row: int) -> Iterator[int]:
    """Rows of the memory, weights and constants apart, that is alive while `op_row` runs."""
    lives = zip(storages.origin, storages.born_op, storages.freed_op, strict=True)
    return (row for row, (origin, born, freed) in enumerate(lives) if born <= op_row < freed and origin in LIVE_ORIGINS)


def _written_by(graph: CallGraph, op_row: int, start: int, storage: int) -> TensorMeta | None:
    """Which of the op's outputs lies in the storage; None for memory it never handed out."""
    ops = ops_of(graph)
    metas = graph.op_kinds[ops.kind[op_row]].outputs
    written = zip(ops.output_storages[start : start + len(metas)], metas, strict=True)
    return next((meta for row, meta in written if row == storage), None)


def _given_tensors(graph: CallGraph) -> dict[int, TensorMeta]:
    """Storage of an input -> the first tensor in it that a module was called with."""
    calls = calls_of(graph)
    used = zip(calls.input_storages, calls.input_metas, strict=True)
    return {storage: graph.tensor_metas[meta] for storage, meta in reversed(list(used))}


def _tensor_text(meta: TensorMeta | None, otherwise: str) -> str:
    return otherwise if meta is None else f"{meta.dtype}{list(meta.shape)}"


def _op_name(graph: CallGraph, op_row: int) -> str:
    return graph.op_kinds[ops_of(graph).kind[op_row]].name


def _path_of_op(graph: CallGraph, op_row: int) -> str:
    """The module that ran the op directly."""
    call = ops_of(graph).call[op_row]
    if call < 0:
        return OUTSIDE
    return graph.paths[calls_of(graph).path[call]] or "(root)"
