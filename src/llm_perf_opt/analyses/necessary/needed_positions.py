"""Which positions of a forward are needed: all that feed the cache, and the last one of what only makes the logits.

`generate` reads the logits of the last position. Whatever reaches no other output of the model than the logits (the
head, and in the last layer everything but its keys and values) is needed for that position alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.memory.kv_cache import paged_storages
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import call_tensors, calls_of, ops_of, tensor_offsets
from llm_perf_opt.core.collectives import CollectiveKind, collective_kind
from llm_perf_opt.ops.cost import elements, operand
from llm_perf_opt.ops.op import OpRole
from llm_perf_opt.ops.table import op_role


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededPositions:
    """Rows of ops that make nothing but logits, sequences and tokens of a forward, and what the cache is made of."""

    tail: frozenset[int] = frozenset()
    batch: int = 1
    tokens: int = 1
    cache_storages: frozenset[int] = frozenset()

    def kept_of(self, row: int, product_rows: int) -> tuple[int, int]:
        """Which share of the rows of a product is needed, as (needed, made): (1, tokens) in the tail of a prefill."""
        if row in self.tail and self.tokens > 1 and product_rows % (self.batch * self.tokens) == 0:
            return 1, self.tokens
        return 1, 1


def needed_positions(graph: CallGraph) -> NeededPositions:
    """The tail of every forward that hands on a cache; a model that does not generate needs all it computes."""
    if paged := paged_storages(graph):
        return _of_pages(graph, [row for _, _, row in paged.values()])
    roots = [call for call, parent in enumerate(calls_of(graph).parent) if parent < 0]
    carried = {storage for call in roots for storage in _carried_outputs(graph, call)}
    if not carried or not roots:
        return NeededPositions()
    batch, tokens = _token_shape(graph)
    return NeededPositions(
        tail=_rows_outside_slice(graph, carried), batch=batch, tokens=tokens, cache_storages=frozenset(carried)
    )


def _of_pages(graph: CallGraph, rows: Sequence[int]) -> NeededPositions:
    """Of an engine, whose ops write keys and values into pages: what feeds none of them is the tail.

    `rows` are the first of these ops for each layer; the others are of the same kinds.
    """
    ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
    kinds = {ops.kind[row] for row in rows}
    fed = [row for row, kind in enumerate(ops.kind) if kind in kinds]
    written = {ops.input_storages[place] for row in fed for place in range(starts[row], starts[row + 1])}
    facts = graph.op_kinds[ops.kind[rows[0]]].arguments
    return NeededPositions(
        tail=_rows_outside_slice(graph, written), batch=facts["sequences"], tokens=facts["new_tokens"]
    )


def _carried_outputs(graph: CallGraph, call: int) -> Iterator[int]:
    """Storages of what a forward returns beside its first tensor, where there are at least two of three dimensions.

    Keys and values come in pairs; a forward that returns its features and one vector beside them keeps no cache.
    """
    outputs = list(call_tensors(graph, call, "output"))[1:]
    if sum(len(meta.shape) > 2 for meta, _ in outputs) > 1:
        yield from (storage for _, storage in outputs)


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
    input_starts, output_starts = tensor_offsets(graph)
    reached = set(wanted)
    outside = []
    for row in range(len(ops.kind) - 1, -1, -1):
        made = ops.output_storages[output_starts[row] : output_starts[row + 1]]
        if reached.isdisjoint(made) and ops.kind[row] not in sends:
            outside.append(row)
        else:
            reached.update(ops.input_storages[input_starts[row] : input_starts[row + 1]])
    return frozenset(outside)
