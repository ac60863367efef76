"""What is alive at one moment of a run: the tensors, who made them, and what was running."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from llm_perf_opt.analyses.memory.timeline import GIVEN, LIVE_ORIGINS, StageCurve
from llm_perf_opt.analyses.path_labels import label_of
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, tensor_offsets
from llm_perf_opt.core.callgraph.records import StorageColumns, TensorMeta

SCRATCH = "(scratch)"
UNUSED = "(not used)"
GIVEN_BY = "(given)"
OUTSIDE = "(outside any module)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AliveTensors:
    """Blocks of memory alike in tensor, op and kind of module: the 24 tensors of a cache are one of these.

    `tensor` is what the op wrote, as `bfloat16[1, 10, 294, 128]`, or `(scratch)` for what it holds beside its result.
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
    found = [
        AliveTensors(
            tensor=tensor,
            made_by=op,
            path=label_of(list(dict.fromkeys(path for path, _ in blocks))),
            bytes=sum(size_bytes for _, size_bytes in blocks),
            count=len(blocks),
        )
        for (tensor, op, _), blocks in groups.items()
    ]
    return tuple(sorted(found, key=lambda group: -group.bytes))


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
