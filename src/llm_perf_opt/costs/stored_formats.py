"""Weights and cache of a trace in the format in which they are stored: a checkpoint's own, or one that is tried out.

Of the weights only what is stored changes: the run keeps its ops and shapes, reads fewer bytes, and holds less. Of the
cache only keys and values change; recurrent states keep their type.

Every tensor that lives in such memory says so. Shapes, ops and calls stay what they were. What was copied out of such
memory is another storage and keeps its type.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, compress
from typing import Protocol

from llm_perf_opt.core.callgraph import Coverage
from llm_perf_opt.core.callgraph.aggregates import count_inputs, count_outputs, observations
from llm_perf_opt.core.callgraph.builder import KindTable
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import Role, calls_of, ops_of, tensor_offsets, weight_matrices
from llm_perf_opt.core.callgraph.records import CallColumns, OpColumns, OpKind, Parameter, TensorMeta
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.tensor_formats import TRANSPOSED, is_weight_format, tensor_bytes, untransposed
from llm_perf_opt.costs.memory.kv_cache import STEPS, TracedKvCache, cached_storages, kv_cache, new_tokens
from llm_perf_opt.ops.op import OpRole
from llm_perf_opt.ops.table import op_of, op_role


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


def _retyped_part(part: OpKind, composite: OpKind, places: _Places) -> OpKind:
    """A part does not say which memory it reads: it is taken to be the operand with as many values and that type."""
    by_size = {
        (math.prod(meta.shape), meta.dtype): place
        for meta, place in reversed(list(zip(composite.inputs, places, strict=False)))
    }
    inner: _Places = tuple(by_size.get((math.prod(meta.shape), meta.dtype)) for meta in part.inputs)
    return replace(
        part,
        inputs=_retyped_metas(part.inputs, inner),
        parts=tuple(_retyped_part(deeper, composite, places) for deeper in part.parts),
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
        renewed = replace(renewed, input_metadata=observations(count_inputs(graph.paths, metas, calls)))
    if graph.output_metadata:
        renewed = replace(renewed, output_metadata=observations(count_outputs(graph.paths, metas, calls)))
    return renewed


_CONVERTED = frozenset({Role.LINEAR, Role.EXPERTS})
_ATTENTION_DIMENSIONS = 4  # batch, heads, tokens, head size


@dataclass(frozen=True, slots=True)
class _WeightAs:
    """A weight of `outputs` x `inputs` and every view of it, in another format."""

    before: str
    after: str
    inputs: int
    outputs: int

    def retyped(self, meta: TensorMeta) -> TensorMeta:
        if untransposed(meta.dtype) != self.before:
            return meta
        dtype = self.after + TRANSPOSED if is_weight_format(self.after) and self._is_turned(meta.shape) else self.after
        return replace(meta, dtype=dtype)

    def _is_turned(self, shape: tuple[int, ...]) -> bool:
        if len(shape) < 2 or shape[-1] == self.inputs:
            return False
        return shape[-2] == self.inputs or shape[-1] == self.outputs


@dataclass(frozen=True, slots=True)
class _CacheAs:
    before: str
    after: str

    def retyped(self, meta: TensorMeta) -> TensorMeta:
        return replace(meta, dtype=self.after) if meta.dtype == self.before else meta


def store_weights(graph: CallGraph, formats: Mapping[str, str]) -> CallGraph:
    """The graph with the parameters named in `formats` stored so, and with every op that reads them reading that.

    A format is a name of `weight_formats` or a torch dtype. Names that share a memory share its format.
    """
    turned = _stored_turned(graph)
    chosen: dict[int, Parameter] = {}  # storage -> the largest of the parameters in it
    rules: dict[str, _WeightAs] = {}
    for parameter in graph.parameters:
        if (after := formats.get(parameter.name)) is None or len(parameter.meta.shape) < 2:
            continue
        rules[parameter.name] = _rule(parameter, after, parameter.storage in turned)
        known = chosen.get(parameter.storage)
        if parameter.storage >= 0 and (known is None or tensor_bytes(known.meta) < tensor_bytes(parameter.meta)):
            chosen[parameter.storage] = parameter
    stored: dict[int, StoredAs] = {row: rules[parameter.name] for row, parameter in chosen.items()}
    renewed = retype(graph, stored, _weight_bytes(graph, chosen, rules))
    parameters = tuple(_renamed(parameter, rules.get(parameter.name), stored) for parameter in graph.parameters)
    metas = dict.fromkeys((*renewed.tensor_metas, *(parameter.meta for parameter in parameters)))
    return replace(renewed, parameters=parameters, tensor_metas=tuple(metas))


def _rule(parameter: Parameter, after: str, is_turned: bool) -> _WeightAs:
    inputs, outputs = parameter.meta.shape[-1], parameter.meta.shape[-2]
    if is_turned:
        inputs, outputs = outputs, inputs
    return _WeightAs(before=untransposed(parameter.meta.dtype), after=after, inputs=inputs, outputs=outputs)


def _renamed(parameter: Parameter, rule: _WeightAs | None, stored: Mapping[int, StoredAs]) -> Parameter:
    place = rule or stored.get(parameter.storage)
    return parameter if place is None else replace(parameter, meta=place.retyped(parameter.meta))


def _weight_bytes(graph: CallGraph, chosen: Mapping[int, Parameter], rules: Mapping[str, _WeightAs]) -> dict[int, int]:
    """What is left of a storage apart from the parameter keeps its size."""
    if graph.storages is None:
        return {}
    return {
        row: graph.storages.bytes[row]
        - tensor_bytes(parameter.meta)
        + tensor_bytes(rules[parameter.name].retyped(parameter.meta))
        for row, parameter in chosen.items()
    }


def _stored_turned(graph: CallGraph) -> frozenset[int]:
    """Storages of weights that are kept as [inputs, outputs]: a matmul takes them as they are for its right side."""
    if graph.ops is None:
        return frozenset()
    shapes = {parameter.storage: parameter.meta.shape for parameter in graph.parameters if parameter.storage >= 0}
    places = [_second_operand(kind) for kind in graph.op_kinds]
    starts, _ = tensor_offsets(graph)
    turned: set[int] = set()
    for op, kind in enumerate(graph.ops.kind):
        place = places[kind]
        if place is not None:
            storage = graph.ops.input_storages[starts[op] + place]
            shape = graph.op_kinds[kind].inputs[place].shape
            if storage in shapes and shape[-2:] == shapes[storage][-2:] and shape[-2] != shape[-1]:
                turned.add(storage)
    return frozenset(turned)


def _second_operand(kind: OpKind) -> int | None:
    op = op_of(kind)
    place = None if op is None else op.turned_weight
    return place if place is not None and place < len(kind.inputs) and len(kind.inputs[place].shape) > 1 else None


def what_if_formats(graph: CallGraph, format_name: str) -> dict[str, str]:
    """Parameter name -> `format_name`, of the matrices that a checkpoint in such a format converts.

    Linear layers and expert stacks, and whatever this trace stores in a format already; embeddings, output head, norms,
    routers and convolutions keep their type.
    """
    roles = weight_matrices(graph)
    if not roles:
        raise UsageError(
            "No matrix of this trace can be stored in another format.",
            why="it has no linear layer and no stack of experts, or does not record the classes of its modules",
            fix="leave --weights out, or trace the model again",
        )
    return {
        parameter.name: format_name
        for parameter in graph.parameters
        if roles.get(parameter.name) in _CONVERTED or is_weight_format(parameter.meta.dtype)
    }


def can_store_cache(graphs: Sequence[CallGraph]) -> bool:
    """Whether the run has a decode phase in which a cache of keys and values is found."""
    return _attention_cache(graphs) is not None


def store_cache(graphs: Sequence[CallGraph], dtype: str) -> tuple[CallGraph, ...]:
    """The phases of one run with keys and values of the cache in `dtype`."""
    cache = _attention_cache(graphs)
    if cache is None:
        raise UsageError(
            "This run has no KV cache that could be stored in another format.",
            why="none of its phases decodes with keys and values that grow with the context or slide over it",
            fix="trace at least one decode step, or leave --cache out",
        )
    return tuple(_with_cache(graph, cache, dtype) for graph in graphs)


def _attention_cache(graphs: Sequence[CallGraph]) -> TracedKvCache | None:
    """The part of the cache that holds keys and values; None where there is none."""
    cache = kv_cache(graphs)
    if cache is None:
        return None
    chosen = _keys_and_values(graphs, cache)
    tensors = tuple(meta for meta in cache.tensors if meta in chosen)
    return replace(cache, tensors=tensors) if tensors else None


def _with_cache(graph: CallGraph, cache: TracedKvCache, dtype: str) -> CallGraph:
    if graph.calls is None or graph.storages is None:
        return graph
    stored: dict[int, StoredAs] = {}
    sizes: dict[int, int] = {}
    for before in dict.fromkeys(meta.dtype for meta in cache.tensors):
        of_type = replace(cache, tensors=tuple(meta for meta in cache.tensors if meta.dtype == before))
        old, new = (tensor_bytes(TensorMeta((1,), name, "")) for name in (before, dtype))
        for row in cached_storages(graph, of_type):
            stored[row] = _CacheAs(before, dtype)
            sizes[row] = graph.storages.bytes[row] * new // old
    return retype(graph, stored, sizes)


def _keys_and_values(graphs: Sequence[CallGraph], cache: TracedKvCache) -> frozenset[TensorMeta]:
    """What grows with the context, or has heads and is written to in place or appended to, as in a sliding window.

    A recurrent state is overwritten, and the state of a convolution, though it slides, has no heads.
    """
    decoding = [graph for graph in graphs if graph.phase in STEPS]
    written = {meta for graph in decoding for meta in _appended_to(graph)}
    leaving = {(meta, new_tokens(graph)) for graph in decoding for meta in _handed_on(graph)}
    return frozenset(
        meta
        for meta in cache.tensors
        if (meta in written and len(meta.shape) == _ATTENTION_DIMENSIONS)
        or any(_is_longer(meta, other, new) for other, new in leaving)
    )


def _appended_to(graph: CallGraph) -> set[TensorMeta]:
    used = {graph.op_kinds[row] for row in ops_of(graph).kind}
    return {kind.inputs[0] for kind in used if op_role(kind) is OpRole.APPEND and kind.inputs}


def _handed_on(graph: CallGraph) -> set[TensorMeta]:
    """Tensors that come out of the model's own forward."""
    calls = calls_of(graph)
    ends = list(accumulate(calls.output_count))
    return {
        graph.tensor_metas[row]
        for end, count, parent in zip(ends, calls.output_count, calls.parent, strict=True)
        if parent < 0
        for row in calls.output_metas[end - count : end]
    }


def _is_longer(before: TensorMeta, after: TensorMeta, tokens: int) -> bool:
    """By the new tokens of a step, in one dimension."""
    if before.dtype != after.dtype or len(before.shape) != len(after.shape):
        return False
    return sorted(new - old for old, new in zip(before.shape, after.shape, strict=True)) == [
        *[0] * (len(before.shape) - 1),
        tokens,
    ]
