"""The key-value cache, found in the run itself: what a step takes in, reads, and hands on grown by its new tokens.

No name and no class of a cache is looked at. Recurrent states qualify too; they do not grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import call_tensors, calls_of, ops_of, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.ops.op import OpRole
from llm_perf_opt.ops.paged_attention import CACHE as PAGES
from llm_perf_opt.ops.table import op_role

DECODE = "decode"
CHUNK = "chunk"  # a step of several new tokens
STEPS = (DECODE, CHUNK)
_INDICES = ("int64", "bool")  # tokens, positions and masks go from step to step as well; no cache holds its values so


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedKvCache:
    """What is carried from one step to the next. `bytes` is its size when the first step begins."""

    tensors: tuple[TensorMeta, ...]
    bytes: int
    bytes_per_token: int  # added by one new token of each sequence of the batch; 0 where it does not grow


def kv_cache(graphs: Sequence[CallGraph]) -> TracedKvCache | None:
    """The cache that the phases of one run share; None where none of them decodes, as in a prefill alone."""
    decoding = (graph for graph in graphs if graph.phase in STEPS)
    return next((cache for graph in decoding if (cache := _paged_cache(graph) or _cache_of(graph)) is not None), None)


def new_tokens(graph: CallGraph) -> int:
    """Tokens that one step of a phase adds to each sequence."""
    new_tokens = graph.runtime.get("new_tokens", 1)
    return new_tokens if isinstance(new_tokens, int) and new_tokens > 0 else 1


def _paged_cache(graph: CallGraph) -> TracedKvCache | None:
    """The cache of an engine, which its ops name and take whole: `[sequences, tokens, heads, width]` for each layer."""
    paged = paged_storages(graph)
    if not paged:
        return None
    first = min(kind.arguments["cached_tokens"] for kind, _, _ in paged.values())
    before, grown = [], 0
    for _, meta, _ in paged.values():
        sequences, tokens, *rest = meta.shape
        held = min(first, tokens)
        before.append(TensorMeta((sequences, held, *rest), meta.dtype, meta.device))
        if held < tokens:  # a window that is full keeps no more
            grown += tensor_bytes(TensorMeta((1, *rest), meta.dtype, meta.device))
    return TracedKvCache(tensors=tuple(before), bytes=sum(map(tensor_bytes, before)), bytes_per_token=grown)


def paged_storages(graph: CallGraph) -> dict[int, tuple[OpKind, TensorMeta, int]]:
    """Storage of each layer's cache -> the op that first adds to it, the cache, and the row of that op."""
    named = {
        index: (kind, kind.input_names.index(PAGES))
        for index, kind in enumerate(graph.op_kinds)
        if op_role(kind) is OpRole.APPEND and PAGES in kind.input_names and "cached_tokens" in kind.arguments
    }
    if not named or graph.ops is None:
        return {}
    starts, caches = tensor_offsets(graph)[0], dict[int, tuple[OpKind, TensorMeta, int]]()
    for row, index in enumerate(ops_of(graph).kind):
        if index in named:
            kind, place = named[index]
            caches.setdefault(graph.ops.input_storages[starts[row] + place], (kind, kind.inputs[place], row))
    return caches


def _cache_of(graph: CallGraph) -> TracedKvCache | None:
    if graph.calls is None or graph.ops is None or -1 not in graph.calls.parent:
        return None
    first = graph.calls.parent.index(-1)
    pairs = list(_carried(graph, first))
    if not pairs:
        return None
    new = new_tokens(graph)
    # A window that fills during the step grows by less than its tokens, and no further.
    growing = [pair for pair in pairs if _grown(*pair) == [new]]
    grown = sum(tensor_bytes(after) - tensor_bytes(before) for before, after in growing)
    before = tuple(before for before, _ in pairs)
    batch = graph.workload.get("batch", 1)
    return TracedKvCache(tensors=before, bytes=sum(map(tensor_bytes, before)), bytes_per_token=grown // (batch * new))


def _carried(graph: CallGraph, call: int) -> Iterator[tuple[TensorMeta, TensorMeta]]:
    """Tensors that went into a call, were read in it, and came out again, at most one dimension larger.

    A tensor that is given twice, as by a cache that is also an attribute of another argument, counts once.
    """
    calls, starts = calls_of(graph), tensor_offsets(graph)[0]
    read = set(ops_of(graph).input_storages[starts[calls.first_op[call]] : starts[calls.end_op[call]]])
    leaving = list(dict.fromkeys(call_tensors(graph, call, "output")))
    for meta, storage in dict.fromkeys(call_tensors(graph, call, "input")):
        if storage not in read or len(meta.shape) < 2 or meta.dtype in _INDICES:
            continue
        match = next((grown for grown in leaving if _continues(meta, grown[0], tokens=new_tokens(graph))), None)
        if match is not None:
            leaving.remove(match)
            yield meta, match[0]


def _continues(before: TensorMeta, after: TensorMeta, *, tokens: int) -> bool:
    """Whether one may be the other up to this many tokens later: `[1, 8, 100, 64]` and `[1, 8, 101, 64]`."""
    if before.dtype != after.dtype or len(before.shape) != len(after.shape):
        return False
    grown = _grown(before, after)
    return not grown or (len(grown) == 1 and 0 < grown[0] <= tokens)


def _grown(before: TensorMeta, after: TensorMeta) -> list[int]:
    """By how much each dimension grew that did."""
    return [new - old for old, new in zip(before.shape, after.shape, strict=True) if new != old]


def cached_storages(graph: CallGraph, cache: TracedKvCache) -> frozenset[int]:
    """Rows of the memory of the cache: what forwards take in as such, and what leaves them in its shape."""
    if paged := paged_storages(graph):
        return frozenset(paged)
    calls = calls_of(graph)
    forwards = [call for call, parent in enumerate(calls.parent) if parent == -1]
    seen = {tensor for call in forwards for side in ("input", "output") for tensor in call_tensors(graph, call, side)}
    before, added = set(cache.tensors), len(forwards) * new_tokens(graph)
    return frozenset(storage for meta, storage in seen if any(_continues(old, meta, tokens=added) for old in before))
