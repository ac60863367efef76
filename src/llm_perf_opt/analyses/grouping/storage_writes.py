"""Writes into memory that already exists, and whether they replace the whole of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from llm_perf_opt.callgraph.dtypes import tensor_bytes
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.queries import tensor_offsets
from llm_perf_opt.callgraph.records import OpKind

# These name the tensor they write into as a whole and change some of its elements.
_PART_WRITERS = ("index_", "scatter", "masked_", "put_", "select_scatter", "slice_scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageWrites:
    """By op: `(storage, whether all of it)`; by storage: the ops that wrote into it, ascending."""

    by_op: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)
    by_storage: dict[int, list[int]] = field(default_factory=dict)


def storage_writes(graph: CallGraph) -> StorageWrites:
    """Every in-place write of the run."""
    found = StorageWrites()
    ops = graph.ops
    if ops is None or graph.storages is None:
        return found
    targets = {row: list(_written(kind)) for row, kind in enumerate(graph.op_kinds) if kind.mutates}
    if not targets:
        return found
    input_at, _ = tensor_offsets(graph)
    for op, kind in enumerate(ops.kind):
        for position, least_bytes in targets.get(kind, ()):
            storage = ops.input_storages[input_at[op] + position]
            is_whole = least_bytes is not None and least_bytes >= graph.storages.bytes[storage]
            found.by_op.setdefault(op, []).append((storage, is_whole))
            found.by_storage.setdefault(storage, []).append(op)
    return found


def _written(kind: OpKind) -> Iterator[tuple[int, int | None]]:
    """Inputs written into, each with the bytes written, or None where it is some part."""
    positions = sorted({alias for alias in kind.output_aliases if alias >= 0}) or ([0] if kind.inputs else [])
    packet = kind.name.split(".")[1] if "." in kind.name else kind.name
    is_part = packet.startswith(_PART_WRITERS)
    for position in positions:
        yield position, None if is_part else tensor_bytes(kind.inputs[position])
