"""Weights and cache of a trace in the format in which they are stored: a checkpoint's own, or one that is tried out.

Of the weights only what is stored changes: the run keeps its ops and shapes, reads fewer bytes, and holds less. Of the
cache only keys and values change; recurrent states keep their type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import Role, calls_of, ops_of, tensor_offsets, weight_matrices
from llm_perf_opt.core.callgraph.records import OpKind, Parameter, TensorMeta
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.tensor_formats import TRANSPOSED, is_weight_format, tensor_bytes, untransposed
from llm_perf_opt.costs.memory.kv_cache import STEPS, TracedKvCache, cached_storages, kv_cache, new_tokens
from llm_perf_opt.costs.retyping import StoredAs, retype
from llm_perf_opt.ops.op import OpRole
from llm_perf_opt.ops.table import op_of, op_role

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
    """What is left of a storage beside the parameter keeps its size."""
    if graph.storages is None:
        return {}
    return {
        row: graph.storages.bytes[row]
        - tensor_bytes(parameter.meta)
        + tensor_bytes(rules[parameter.name].retyped(parameter.meta))
        for row, parameter in chosen.items()
    }


def _stored_turned(graph: CallGraph) -> frozenset[int]:
    """Storages of weights that are kept as [inputs, outputs]: a product takes them as they are for its right side."""
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
            why="it has no linear layer and no expert stack, or does not tell the classes of its modules",
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
            "The cache of this run is not known.",
            why="no phase of it decodes on keys and values that grow or slide with the context",
            fix="trace at least one decode step, or leave --cache out",
        )
    return tuple(_with_cache(graph, cache, dtype) for graph in graphs)


def _attention_cache(graphs: Sequence[CallGraph]) -> TracedKvCache | None:
    """The part of the cache that holds keys and values; None where there is none."""
    cache = kv_cache(graphs)
    if cache is None:
        return None
    chosen = _keys_and_values(graphs, cache)
    kept = tuple(meta for meta in cache.tensors if meta in chosen)
    return replace(cache, tensors=kept) if kept else None


def _with_cache(graph: CallGraph, cache: TracedKvCache, dtype: str) -> CallGraph:
    if graph.calls is None or graph.storages is None:
        return graph
    stored: dict[int, StoredAs] = {}
    sizes: dict[int, int] = {}
    for before in dict.fromkeys(meta.dtype for meta in cache.tensors):
        held = replace(cache, tensors=tuple(meta for meta in cache.tensors if meta.dtype == before))
        old, new = (tensor_bytes(TensorMeta((1,), name, "")) for name in (before, dtype))
        for row in cached_storages(graph, held):
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
