"""Ops that compute little or nothing: what they move, if they move anything."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.ops.cost import FREE, OpCost, bytes_of, elements, operand, packet_of
from llm_perf_opt.ops.op import (
    CALIBRATED_DTYPES,
    AccessPattern,
    CalibratedFormula,
    CalibratedWork,
    Layout,
    Op,
    OpRole,
    launches,
    reads_all,
    registered,
    sized_work,
)
from llm_perf_opt.ops.vector import pointwise

_VALUE_NAMES = frozenset({"values", "src", "source"})
_ACCUMULATING = frozenset({"aten.index_add", "aten.scatter_add", "aten.scatter_reduce", "aten.index_reduce"})


def free(_: OpKind) -> OpCost:
    """A view, an allocation or a question about a shape touches no data."""
    return FREE


def fill(kind: OpKind) -> OpCost:
    """Writes its outputs and reads nothing, not even the tensor that it overwrites or borrows the shape of."""
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


def reads_named_rows(kind: OpKind) -> list[int]:
    """Of the first input only the rows that the indices name."""
    first, *others = [bytes_of([meta]) for meta in kind.inputs]
    return [min(first, bytes_of(kind.outputs)), *others]


def reads_but_target(kind: OpKind) -> list[int]:
    """Nothing of the first input, which is overwritten or only lends its shape."""
    return [0, *reads_all(kind)[1:]][: len(kind.inputs)]


def written_work(family: str) -> CalibratedFormula:
    """Timed by a table over the values that are written."""

    def read(kind: OpKind) -> Iterator[CalibratedWork]:
        yield sized_work(family, kind.outputs[0])

    return read


def cast_work(kind: OpKind) -> Iterator[CalibratedWork]:
    """By the two dtypes; a copy where they are the same or not both measured."""
    source, result = kind.inputs[0], kind.outputs[0]
    if {source.dtype, result.dtype} <= CALIBRATED_DTYPES and source.dtype != result.dtype:
        yield sized_work(f"cast_to_{result.dtype}", source)
    else:
        yield sized_work("copy", result)


def pad_work(kind: OpKind) -> Iterator[CalibratedWork]:
    """A fill of the result, and a copy into it."""
    yield sized_work("fill", kind.outputs[0])
    yield sized_work("copy", kind.inputs[0])


def indexed_work(family: str, place: int | None) -> CalibratedFormula:
    """Rows moved by index; `place` of the input that the values come from, or None for the output."""

    def read(kind: OpKind) -> Iterator[CalibratedWork]:
        meta = kind.outputs[0] if place is None or place >= len(kind.inputs) else kind.inputs[place]
        yield sized_work(family, meta, width=meta.shape[-1] if meta.shape else 1)

    return read


def host_read_work(kind: OpKind) -> Iterator[CalibratedWork]:
    """One value that the host waits for."""
    yield CalibratedWork(family="host_read", dtype="any", sizes={"calls": 1})


_fill = partial(Op, price=fill, reads=reads_but_target)
_copy = partial(Op, price=copy)
_gather = partial(Op, price=gather, reads=reads_named_rows, kernels=launches(AccessPattern.GATHERED))
_scatter = partial(Op, price=scatter, reads=reads_but_target, kernels=launches(AccessPattern.GATHERED))
_indexed = launches(AccessPattern.INDEXED)
_joined = launches(AccessPattern.CONCATENATED)
_one_piece = partial(_copy, is_recorded_whole=True, has_scratch=False)  # it copies once, or gives its argument back

CLASSES = {
    "view": Op(price=free),  # another look at the same memory
    "metadata": Op(price=free),  # a question about shape, dtype or device, or about one value
    "allocation": Op(price=free),  # memory without content
    "fill": _fill(),  # constants, ranges, random numbers
    "copy": _copy(),  # values moved or cast; free where the result turns out to share its input's memory
    "gather": _gather(),  # rows picked by index
    "scatter": _scatter(),  # rows written by index
}

OPS = registered(
    {
        "permute transpose t movedim swapaxes": Op(price=free, layout=Layout.REORDERED),
        "unflatten": Op(price=free, has_scratch=False),
        "item _local_scalar_dense": Op(price=free, calibrated=host_read_work),
        "zeros zeros_like new_zeros ones full arange fill zero": _fill(calibrated=written_work("fill")),
        "to": _one_piece(calibrated=cast_work, layout=Layout.KEPT),
        "_to_copy": _one_piece(calibrated=cast_work, layout=Layout.KEPT),
        "type_as": _one_piece(calibrated=cast_work),
        "reshape contiguous flatten": _one_piece(calibrated=written_work("regrouping"), kernels=_indexed),
        "reshape_as": _one_piece(kernels=_indexed),
        "clone": _copy(calibrated=written_work("regrouping"), layout=Layout.KEPT, kernels=_indexed),
        "cat": _copy(calibrated=written_work("copy"), role=OpRole.APPEND, kernels=_joined),
        "slice_scatter": _copy(role=OpRole.APPEND),
        "index_copy": _scatter(role=OpRole.APPEND),
        "stack": _copy(calibrated=written_work("copy"), kernels=_joined),
        "copy triu tril": _copy(calibrated=written_work("copy"), kernels=_indexed),
        "masked_fill where": Op(price=pointwise(1), calibrated=written_work("copy")),
        "masked_scatter_backward reflection_pad1d_backward reflection_pad2d_backward": _copy(),
        "llm_perf_opt.unpack_scales llm_perf_opt.dequantize_4bit": _copy(),
        "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward": _copy(),
        "pad constant_pad_nd": _copy(calibrated=pad_work),
        "embedding": _gather(
            calibrated=indexed_work("gather", None), role=OpRole.LOOKUP, is_recorded_whole=True, has_scratch=False
        ),
        "index index_select": _gather(calibrated=indexed_work("gather", None), role=OpRole.GATHER),
        "gather": _gather(calibrated=indexed_work("gather", None)),
        "index_put scatter masked_scatter": _scatter(calibrated=indexed_work("scatter", 2)),
        "embedding_bag _embedding_bag _embedding_bag_forward_only": Op(price=embedding_bag, reads=reads_named_rows),
    }
)
