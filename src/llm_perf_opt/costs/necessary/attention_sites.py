"""Every attention of a run, fused or written out, with the pairs that its queries can see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind, Parameter
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.costs.necessary.needed_positions import NeededPositions
from llm_perf_opt.ops.cost import operand
from llm_perf_opt.ops.op import OpRole
from llm_perf_opt.ops.table import op_family, op_role, price


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleSpan:
    """The keys that the query at position p sees: up to p if `is_causal`, of them the last `window` or its own chunk.

    A window without causality reaches to both sides; at least `window` keys are then visible, so it never counts too
    many. Sparse attention looks at the `chosen` keys that an indexer ranks best, whichever they are, and must keep them
    all. None: no such limit.
    """

    is_causal: bool = False
    window: int | None = None
    chunk: int | None = None
    chosen: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether a query far from the start sees fewer keys than there are before it."""
        return self.chunk is not None or self._most is not None

    @property
    def _most(self) -> int | None:
        """The most keys that one query sees, wherever they are."""
        if self.window is None or self.chosen is None:
            return self.chosen if self.window is None else self.window
        return min(self.window, self.chosen)

    def pairs(self, queries: int, keys: int, context: int | None = None) -> int:
        """Visible pairs of the last `queries` positions; `keys` are held, `context` positions have been seen in all.

        A cache that keeps only a window holds fewer keys than there were positions, and chunks begin where positions
        say: `context` tells where the queries stand, and defaults to `keys`.
        """
        if not self.is_causal:
            return queries * min(keys, self._most or keys)
        end = max(keys, context or keys)
        return min(self._seen_before(end) - self._seen_before(end - queries), queries * keys)

    def _seen_before(self, positions: int) -> int:
        """Visible pairs of the first this many positions."""
        if self.chunk is not None:
            chunks, rest = divmod(positions, self.chunk)
            return chunks * _triangle(self.chunk) + _triangle(rest)
        most = self._most
        if most is not None and positions > most:
            return _triangle(most) + (positions - most) * most
        return _triangle(positions)


def _triangle(length: int) -> int:
    return length * (length + 1) // 2


def declared_span(params: Mapping[str, Any], *, is_causal_op: bool, writes_cache: bool) -> VisibleSpan:
    """The span of an attention module, by what the op says, what the module's constructor kept, and what it caches.

    A module that declares nothing and adds to the cache that the model hands on is autoregressive: its queries cannot
    see keys that did not exist when their tokens were made.
    """
    declared = params.get("is_causal")
    is_causal = is_causal_op or declared is True or (declared is None and writes_cache)
    layer_type = str(params.get("layer_type", ""))
    window = _positive(params.get("sliding_window")) if layer_type in ("", "sliding_attention") else None
    chunk = _positive(params.get("attention_chunk_size")) if layer_type == "chunked_attention" else None
    return VisibleSpan(is_causal=is_causal, window=window, chunk=chunk, chosen=_positive(params.get("index_topk")))


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Keys and values as one latent vector per token: `rank` numbers, and `rope` more that carry the position."""

    rank: int
    rope: int
    nope: int
    value: int

    @property
    def cached_width(self) -> int:
        """Numbers that a cache must hold for one token."""
        return self.rank + self.rope

    def macs(self, pairs: int, lanes: int, cached_keys: int) -> int:
        """Multiply-adds of the cheaper way: on latent vectors, or on keys and values made of them again.

        Expanding takes `rank * (nope + value)` for each cached key and head; a key made in this forward is expanded by
        the projection that is counted as a matmul with its weight.
        """
        absorbed = pairs * lanes * (self.rank + self.rope + self.rank)
        expanded = pairs * lanes * (self.nope + self.rope + self.value)
        return min(absorbed, expanded + cached_keys * lanes * self.rank * (self.nope + self.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSite:
    """One attention. `lanes` are heads times sequences: each meets `queries` with `keys` of its own."""

    call: int
    row: int  # of its last op
    rows: tuple[int, ...]  # of all its matmuls
    lanes: int
    queries: int
    keys: int
    qk_width: int
    v_width: int
    dtype: str
    flops: int  # as written
    span: VisibleSpan
    is_tail: bool  # only the last query is needed
    latent: Latent | None = None
    is_unused: bool = False  # its result feeds nothing

    def pairs(self, context: int | None = None) -> int:
        """Pairs of one lane that are needed; `context` is how many positions the sequence has."""
        needed = 1 if self.is_tail else self.queries
        return self.span.pairs(needed, self.keys, context if self.span.is_limited else None)

    def necessary_flops(self, context: int | None = None) -> int:
        """Scores and weighted sums of the visible pairs, two FLOPs per multiply-add."""
        if self.is_unused:
            return 0
        pairs = self.pairs(context)
        if self.latent is not None:
            made_here = 1 if self.is_tail else self.queries
            return 2 * self.latent.macs(pairs, self.lanes, self.keys - made_here)
        return 2 * pairs * self.lanes * (self.qk_width + self.v_width)


def attention_sites(
    graph: CallGraph, weights: Mapping[int, Parameter], positions: NeededPositions
) -> tuple[AttentionSite, ...]:
    """In the order in which they run."""
    writers = _calls_that_cache(graph, positions)
    fused = [*_fused_sites(graph, writers, positions), *_paged_sites(graph, positions)]
    sites = [*fused, *_written_sites(graph, weights, writers, positions)]
    return tuple(sorted(sites, key=lambda site: site.row))


def _calls_that_cache(graph: CallGraph, positions: NeededPositions) -> frozenset[int]:
    """Module calls in which a tensor of the cache was made."""
    ops, (_, starts) = ops_of(graph), tensor_offsets(graph)
    return frozenset(
        ops.call[row]
        for row in range(len(ops.kind))
        if not positions.cache_storages.isdisjoint(ops.output_storages[starts[row] : starts[row + 1]])
    )


def _fused_sites(graph: CallGraph, writers: frozenset[int], positions: NeededPositions) -> Iterator[AttentionSite]:
    ops = ops_of(graph)
    fused = {index: kind for index, kind in enumerate(graph.op_kinds) if _is_fused(kind)}
    for row, index in enumerate(ops.kind):
        kind = fused.get(index)
        cost = None if kind is None else price(kind)
        if kind is None or cost is None:
            continue
        query, key, value = (
            operand(kind, place, name, name[0]) for place, name in enumerate(("query", "key", "value"))
        )
        if min(len(operand.shape) for operand in (query, key, value)) < 2:
            continue  # no attention that anybody runs; a file may hold it
        queries, keys = query.shape[-2], key.shape[-2]
        lanes = math.prod(kind.outputs[0].shape[:-1]) // max(queries, 1)
        if cost.flops != 2 * lanes * queries * keys * (query.shape[-1] + value.shape[-1]):
            continue  # another layout (tokens first, projections inside): counted as written
        if positions.tokens == 1 and ops.call[row] in writers:
            # transformers packs the heads that share keys into the queries of a step with a mask
            lanes, queries = lanes * queries, 1
        is_causal_op = bool(kind.arguments.get("is_causal"))
        yield AttentionSite(
            call=ops.call[row],
            row=row,
            rows=(row,),
            lanes=lanes,
            queries=queries,
            keys=keys,
            qk_width=query.shape[-1],
            v_width=value.shape[-1],
            dtype=query.dtype,
            flops=cost.flops,
            **_module_facts(graph, ops.call[row], row, writers, positions, is_causal_op, queries),
        )


def _is_fused(kind: OpKind) -> bool:
    is_attention = op_family(kind.name) is WorkFamily.ATTENTION and len(kind.inputs) > 2
    return is_attention and "backward" not in kind.name and not _is_paged(kind)


def _is_paged(kind: OpKind) -> bool:
    """Whether it is the attention of an engine, which says its heads, widths and lengths itself."""
    return op_family(kind.name) is WorkFamily.ATTENTION and "cached_tokens" in kind.arguments


def _paged_sites(graph: CallGraph, positions: NeededPositions) -> Iterator[AttentionSite]:
    ops = ops_of(graph)
    paged = {index: kind for index, kind in enumerate(graph.op_kinds) if _is_paged(kind)}
    for row, index in enumerate(ops.kind):
        kind = paged.get(index)
        cost = None if kind is None else price(kind)
        if kind is None or cost is None:
            continue
        facts = kind.arguments
        latent = None
        if "latent_rank" in facts:
            names = ("latent_rank", "rotary_width", "plain_width", "value_width")
            latent = Latent(**dict(zip(("rank", "rope", "nope", "value"), map(facts.__getitem__, names), strict=True)))
        yield AttentionSite(
            call=ops.call[row],
            row=row,
            rows=(row,),
            lanes=facts["heads"] * facts["sequences"],
            queries=facts["new_tokens"],
            keys=facts["cached_tokens"] + facts["new_tokens"],
            qk_width=facts["width"] if latent is None else latent.nope + latent.rope,
            v_width=facts["value_width"],
            dtype=kind.inputs[0].dtype,
            flops=cost.flops,
            span=VisibleSpan(is_causal=bool(facts.get("is_causal", True)), window=_positive(facts.get("window"))),
            is_tail=row in positions.tail,
            latent=latent,
            is_unused=row in positions.unused,
        )


def _written_sites(
    graph: CallGraph, weights: Mapping[int, Parameter], writers: frozenset[int], positions: NeededPositions
) -> Iterator[AttentionSite]:
    """Scores, softmax and weighted sum as separate ops of one module: found by following the scores through memory."""
    ops = ops_of(graph)
    for score_row, sum_row in _score_and_sum_rows(graph, weights):
        scores, weighted = graph.op_kinds[ops.kind[score_row]], graph.op_kinds[ops.kind[sum_row]]
        shape, cost, second = scores.outputs[0].shape, price(scores), price(weighted)
        if cost is None or second is None or len(shape) < 2 or not weighted.outputs[0].shape:
            continue
        queries, keys = shape[-2:]
        lanes = math.prod(shape[:-2])
        elements = max(lanes * queries * keys, 1)
        yield AttentionSite(
            call=ops.call[sum_row],
            row=sum_row,
            rows=(score_row, sum_row),
            lanes=lanes,
            queries=queries,
            keys=keys,
            qk_width=cost.flops // (2 * elements),
            v_width=second.flops // (2 * elements),
            dtype=scores.inputs[0].dtype,
            flops=cost.flops + second.flops,
            **_module_facts(graph, ops.call[sum_row], sum_row, writers, positions, False, queries),
        )


def _score_and_sum_rows(graph: CallGraph, weights: Mapping[int, Parameter]) -> Iterator[tuple[int, int]]:
    """Rows of the two matmuls around each softmax, where both have no weight among their operands."""
    ops = ops_of(graph)
    input_starts, output_starts = tensor_offsets(graph)
    prices = [price(kind) for kind in graph.op_kinds]
    is_matmul = [cost is not None and cost.flops > 0 for cost in prices]
    is_softmax = [op_role(kind) is OpRole.SOFTMAX for kind in graph.op_kinds]
    scores: dict[int, tuple[int, int, bool]] = {}  # storage -> call, row of the score matmul, whether softmax has run
    for row, kind in enumerate(ops.kind):
        inputs = ops.input_storages[input_starts[row] : input_starts[row + 1]]
        outputs = ops.output_storages[output_starts[row] : output_starts[row + 1]]
        call = ops.call[row]
        tags = [scores[storage] for storage in inputs if storage in scores and scores[storage][0] == call]
        if is_matmul[kind]:
            done = next((tag for tag in tags if tag[2]), None)
            if done is not None:
                yield done[1], row
            elif not any(storage in weights for storage in inputs):
                scores.update((storage, (call, row, False)) for storage in outputs)
        elif tags:
            _, score_row, has_softmax = tags[0]
            has_softmax = has_softmax or is_softmax[kind]
            scores.update((storage, (call, score_row, has_softmax)) for storage in outputs)


class _ModuleFacts(TypedDict):
    span: VisibleSpan
    is_tail: bool
    latent: Latent | None
    is_unused: bool


def _module_facts(
    graph: CallGraph,
    call: int,
    row: int,
    writers: frozenset[int],
    positions: NeededPositions,
    is_causal_op: bool,
    queries: int,
) -> _ModuleFacts:
    path = graph.paths[calls_of(graph).path[call]] if call >= 0 else ""
    params = _params_with_indexer(graph, path)
    is_tail = row in positions.tail and queries == positions.tokens
    span = declared_span(params, is_causal_op=is_causal_op, writes_cache=call in writers)
    return {"span": span, "is_tail": is_tail, "latent": _latent(params), "is_unused": row in positions.unused}


def _params_with_indexer(graph: CallGraph, path: str) -> Mapping[str, Any]:
    """What the module's constructor kept, and how many keys a module inside it chooses for sparse attention."""
    own = graph.constructor_params.get(path, {})
    for child in graph.module_children.get(path, ()):
        chosen = graph.constructor_params.get(child, {}).get("index_topk")
        if chosen is not None:
            return {"index_topk": chosen, **own}
    return own


def _latent(params: Mapping[str, Any]) -> Latent | None:
    names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    widths = [params.get(name) for name in names]
    if not all(isinstance(width, int) and width > 0 for width in widths):
        return None
    rank, rope, nope, value = (int(width) for width in widths if width is not None)
    return Latent(rank=rank, rope=rope, nope=nope, value=value)
