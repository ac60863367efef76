"""Which positions of a forward are needed: all that feed the cache, and the last one of what only makes the logits.

`generate` reads the logits of the last position. Whatever reaches no other output of the model than the logits (the
head, and in the last layer everything but its keys and values) is needed for that position alone. Whatever reaches no
output at all is not needed: the last layers of a vision tower, where the features are taken from an earlier layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import call_tensors, calls_of, forward_of_ops, ops_of, tensor_offsets
from llm_perf_opt.core.callgraph.records import TensorMeta
from llm_perf_opt.core.collectives import CollectiveKind, collective_kind
from llm_perf_opt.costs.memory.kv_cache import paged_storages
from llm_perf_opt.ops.cost import elements, operand
from llm_perf_opt.ops.op import OpRole
from llm_perf_opt.ops.table import op_role, price


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededPositions:
    """Rows of ops that make nothing but logits, sequences and tokens of a forward, and what the cache is made of.

    Rows that are `unused` feed nothing that the model returns or keeps. `last_columns` are of a matmul in the last
    layer that makes queries, keys and values at once: these columns are not cached, and so are needed for the last
    position alone.
    """

    tail: frozenset[int] = frozenset()
    unused: frozenset[int] = frozenset()
    last_columns: Mapping[int, int] = field(default_factory=dict)
    batch: int = 1
    tokens: int = 1
    cache_storages: frozenset[int] = frozenset()

    def kept_of(self, row: int, matmul_rows: int) -> tuple[int, int]:
        """Which share of the rows of a matmul is needed, as (needed, made): (1, tokens) in the tail of a prefill."""
        if row in self.unused:
            return 0, 1
        if row in self.tail and self.tokens > 1 and matmul_rows % (self.batch * self.tokens) == 0:
            return 1, self.tokens
        return 1, 1


def needed_positions(graph: CallGraph) -> NeededPositions:
    """The tail of every forward that hands on a cache; a model that does not generate needs all it computes."""
    if paged := paged_storages(graph):
        return _of_pages(graph, [row for _, _, row in paged.values()])
    roots = [call for call, parent in enumerate(calls_of(graph).parent) if parent < 0]
    carried = {call: dict(_carried_outputs(graph, call)) for call in roots}
    cached = {storage for outputs in carried.values() for storage in outputs}
    unused = _unused(graph, cached)
    if not cached:
        return NeededPositions(unused=unused)
    batch, tokens = _token_shape(graph)
    tail = _rows_outside_slice(graph, cached)
    return NeededPositions(
        tail=tail,
        unused=unused,
        last_columns=dict(_last_columns(graph, tail, carried)),
        batch=batch,
        tokens=tokens,
        cache_storages=frozenset(cached),
    )


def _unused(graph: CallGraph, cached: set[int]) -> frozenset[int]:
    """Ops that feed nothing which the model returns, keeps or writes into memory that was there before.

    None of a run that computes gradients: they are returned by no module.
    """
    parents = calls_of(graph).parent
    roots = [call for call, parent in enumerate(parents) if parent < 0]
    returned = {storage for call in roots for _, storage in call_tensors(graph, call, "output")}
    if graph.storages is None or not returned or any("backward" in kind.name for kind in graph.op_kinds):
        return frozenset()
    older = {storage for storage, origin in enumerate(graph.storages.origin) if origin not in _MADE_HERE}
    return _rows_outside_slice(graph, returned | cached | older)


_MADE_HERE = frozenset({"activation", "scratch"})


def _of_pages(graph: CallGraph, rows: Sequence[int]) -> NeededPositions:
    """Of an engine: its ops write keys and values into pages, and what feeds none of these ops is the tail.

    `rows` are the first of these ops for each layer; the others are of the same kinds. Kernels of engines write into
    their inputs, which a trace does not follow, so everything counts as used.
    """
    ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
    kinds = {ops.kind[row] for row in rows}
    fed = [row for row, kind in enumerate(ops.kind) if kind in kinds]
    written = {ops.input_storages[place] for row in fed for place in range(starts[row], starts[row + 1])}
    facts = graph.op_kinds[ops.kind[rows[0]]].arguments
    return NeededPositions(
        tail=_rows_outside_slice(graph, written), batch=facts["sequences"], tokens=facts["new_tokens"]
    )


def _carried_outputs(graph: CallGraph, call: int) -> Iterator[tuple[int, TensorMeta]]:
    """What a forward returns after its first tensor, by storage, where at least two have three dimensions.

    Keys and values come in pairs; a forward that returns its features and one vector keeps no cache.
    """
    outputs = list(call_tensors(graph, call, "output"))[1:]
    if sum(len(meta.shape) > 2 for meta, _ in outputs) > 1:
        yield from ((storage, meta) for meta, storage in outputs)


def _last_columns(
    graph: CallGraph, tail: frozenset[int], carried: Mapping[int, Mapping[int, TensorMeta]]
) -> Iterator[tuple[int, int]]:
    """Row of a matmul -> its columns that no cache holds, where the cache is all that it feeds outside the tail."""
    ops, (starts, made_at) = ops_of(graph), tensor_offsets(graph)
    is_matmul = [(cost := price(kind)) is not None and cost.flops > 0 for kind in graph.op_kinds]
    # Backwards, so that each op knows whether a later matmul of the forward uses what it makes. The last layer's
    # projections are the ones that feed none: attention of the tail does not count.
    feeds_matmul: set[int] = set()
    rows: list[int] = []
    for row in range(len(ops.kind) - 1, -1, -1):
        if row in tail:
            continue
        made = ops.output_storages[made_at[row] : made_at[row + 1]]
        feeds = not feeds_matmul.isdisjoint(made)
        if is_matmul[ops.kind[row]] and not feeds and len(made) == 1:
            rows.append(row)
        if feeds or is_matmul[ops.kind[row]]:
            feeds_matmul.update(ops.input_storages[starts[row] : starts[row + 1]])
    forwards, roots = forward_of_ops(graph), _root_of_forward(graph)
    for row in rows:
        shape = graph.op_kinds[ops.kind[row]].outputs[0].shape
        cache = carried.get(roots.get(forwards[row], -1), {})
        columns = sum(_columns_of(cache[storage]) for storage in _reached(graph, row, tail) if storage in cache)
        if shape and 0 < columns < shape[-1]:
            yield row, shape[-1] - columns


def _root_of_forward(graph: CallGraph) -> dict[int, int]:
    calls, forwards = calls_of(graph), forward_of_ops(graph)
    roots = (call for call, parent in enumerate(calls.parent) if parent < 0)
    return {forwards[calls.first_op[call]]: call for call in roots if calls.first_op[call] < len(forwards)}


def _reached(graph: CallGraph, start: int, tail: frozenset[int]) -> set[int]:
    """Storages that values of a matmul come to in its own forward, through ops outside the tail."""
    ops, (starts, made_at) = ops_of(graph), tensor_offsets(graph)
    forwards = forward_of_ops(graph)
    reached = {*ops.output_storages[made_at[start] : made_at[start + 1]]}
    for row in range(start + 1, len(ops.kind)):
        if forwards[row] != forwards[start]:
            break
        if row not in tail and not reached.isdisjoint(ops.input_storages[starts[row] : starts[row + 1]]):
            reached.update(ops.output_storages[made_at[row] : made_at[row + 1]])
    return reached


def _columns_of(cached: TensorMeta) -> int:
    """Of keys or values `[batch, heads, tokens, width]`: heads times width."""
    return cached.shape[1] * cached.shape[3] if len(cached.shape) == 4 else 0


def _token_shape(graph: CallGraph) -> tuple[int, int]:
    """(batch, tokens) of a forward: what is looked up in the largest table; the last lookup is the decoder's.

    A later stage of a pipeline looks nothing up: what it receives has a row for each token. (1, 1) where there is
    neither: then nothing is taken to be needed for one position alone.
    """
    lookups: dict[int, tuple[int, tuple[int, ...]]] = {}
    for index, kind in enumerate(graph.op_kinds):
        if op_role(kind) is OpRole.LOOKUP and len(kind.inputs) > 1:
            indices = operand(kind, 1, "indices")
            if len(indices.shape) == 2:
                lookups[index] = (elements(operand(kind, 0, "weight")), indices.shape)
    if not lookups:
        return _received_shape(graph)
    largest = max(size for size, _ in lookups.values())
    shapes = [lookups[index][1] for index in ops_of(graph).kind if lookups.get(index, (0, ()))[0] == largest]
    return (shapes[-1][0], shapes[-1][1]) if largest else (1, 1)


def _received_shape(graph: CallGraph) -> tuple[int, int]:
    """(batch, tokens) of the activations `[batch, tokens, width]` that another rank sends; (1, 1) where none does."""
    received = (kind for kind in graph.op_kinds if collective_kind(kind.name) is CollectiveKind.RECV)
    shapes = [meta.shape for kind in received for meta in (kind.outputs or kind.inputs) if len(meta.shape) == 3]
    return (shapes[0][0], shapes[0][1]) if shapes else (1, 1)


def _rows_outside_slice(graph: CallGraph, wanted: set[int]) -> frozenset[int]:
    """Ops from which no path leads to the storages `wanted` or to a send, followed backwards from them.

    What a stage of a pipeline sends feeds the keys and values of the stages behind it, at every position.
    """
    ops = ops_of(graph)
    sends = {row for row, kind in enumerate(graph.op_kinds) if collective_kind(kind.name) is CollectiveKind.SEND}
    mutates = [kind.mutates for kind in graph.op_kinds]
    input_starts, output_starts = tensor_offsets(graph)
    reached = set(wanted)
    outside = []
    for row in range(len(ops.kind) - 1, -1, -1):
        read = ops.input_storages[input_starts[row] : input_starts[row + 1]]
        made = ops.output_storages[output_starts[row] : output_starts[row + 1]]
        if not made and mutates[ops.kind[row]]:
            made = read  # it returns nothing, so it writes into one of these
        if reached.isdisjoint(made) and ops.kind[row] not in sends:
            outside.append(row)
        else:
            reached.update(read)
    return frozenset(outside)
