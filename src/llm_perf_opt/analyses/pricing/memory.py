"""Ops that compute little or nothing: what they move, if they move anything."""

from __future__ import annotations

import math
from dataclasses import replace

from llm_perf_opt.analyses.pricing.op_cost import FREE, Formula, OpCost, bytes_of, elements, operand
from llm_perf_opt.analyses.pricing.packet import packet_of
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta

_VALUE_NAMES = frozenset({"values", "src", "source"})
_ACCUMULATING = frozenset({"aten.index_add", "aten.scatter_add", "aten.scatter_reduce", "aten.index_reduce"})


def free(_: OpKind) -> OpCost:
    """A view, an allocation or a question about a shape touches no data."""
    return FREE


def fill(kind: OpKind) -> OpCost:
    """Writes its outputs and reads nothing, not even the tensor it overwrites or whose shape it borrows."""
    return OpCost(bytes_moved=bytes_of(kind.outputs or kind.inputs[:1]))


def copy(kind: OpKind) -> OpCost:
    """Reads its inputs and writes its outputs; an input that is overwritten is not read."""
    overwritten = {place for place in kind.output_aliases if place >= 0} if kind.mutates else set()
    read = [meta for place, meta in enumerate(kind.inputs) if place not in overwritten]
    return OpCost(bytes_moved=bytes_of(read) + bytes_of(kind.outputs))


def gather(kind: OpKind) -> OpCost:
    """Reads the indices and only the rows they name, which are as large as the output."""
    return OpCost(bytes_moved=bytes_of(kind.inputs[1:]) + 2 * bytes_of(kind.outputs[:1]))


def embedding_bag(kind: OpKind) -> OpCost:
    """Reads one row of the table for each index and adds the rows of a bag."""
    table, indices = operand(kind, 0, "weight"), operand(kind, 1, "indices")
    rows = replace(table, shape=(elements(indices), table.shape[-1]))
    return OpCost(vector_flops=elements(rows), bytes_moved=bytes_of([rows, *kind.inputs[1:], *kind.outputs]))


def scatter(kind: OpKind) -> OpCost:
    """Reads indices and values and writes the values; a version that is not in place copies its target first.

    Without a tensor of values, one value per index is written. Accumulation reads the target too, one step per value.
    """
    target = kind.inputs[0]
    read = kind.inputs[1:]
    touched = elements(read[-1]) if _has_values(kind) else _values_named(kind, read[0])
    written = bytes_of([replace(target, shape=(touched,))])
    moved = bytes_of(read) + written
    if not kind.mutates:
        moved += 2 * bytes_of([target])
    if packet_of(kind.name) in _ACCUMULATING or kind.arguments.get("accumulate"):
        return OpCost(vector_flops=touched, bytes_moved=moved + written)
    return OpCost(bytes_moved=moved)


def _has_values(kind: OpKind) -> bool:
    """Whether the last input holds the values; by name, or by number where a tracer gives no names."""
    return not _VALUE_NAMES.isdisjoint(kind.input_names) if kind.input_names else len(kind.inputs) > 2


def _values_named(kind: OpKind, index: TensorMeta) -> int:
    """How many values an index selects: one each, or for `index_fill` a whole slice each."""
    if packet_of(kind.name) != "aten.index_fill":
        return elements(index)
    target = kind.inputs[0]
    dimension = kind.arguments["dim"] % len(target.shape)
    return elements(index) * math.prod(size for place, size in enumerate(target.shape) if place != dimension)


FORMULAS: dict[str, Formula] = {
    "aten.embedding_bag": embedding_bag,
    "aten._embedding_bag": embedding_bag,
    "aten._embedding_bag_forward_only": embedding_bag,
}
