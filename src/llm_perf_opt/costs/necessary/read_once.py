"""Bytes that must come from memory: what existed before a forward and is read in it, each once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, stage_of_ops, tensor_offsets
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.costs.memory.kv_cache import cached_storages, kv_cache
from llm_perf_opt.costs.necessary.anatomy import Anatomy
from llm_perf_opt.costs.necessary.attention_sites import AttentionSite
from llm_perf_opt.costs.parameters import gathered_weights, serves_gather
from llm_perf_opt.ops.table import bytes_read, only_fills, touches_memory

_OLD = frozenset({"parameter", "buffer", "input", "external"})
_WEIGHTS, _CACHE, _OTHER = "weights", "cache", "other"

Key = tuple[int, int, int]  # stage, forward, storage


@dataclass(slots=True)
class StageReads:
    """Bytes of one stage over all its forwards; the weights of routed experts are not among them."""

    weights: int = 0
    cache: int = 0
    other: int = 0


def reads_by_stage(graph: CallGraph, anatomy: Anatomy, contexts: Mapping[int, int]) -> dict[int, StageReads] | None:
    """Stage -> what it must read: of each storage the most that one op of a forward takes, added up over storages.

    The largest single read and not the sum of reads, because two ops may read the same part. None: the trace follows
    no memory.
    """
    if graph.storages is None:
        return None
    experts = {storage for block in anatomy.experts for storage in block.storages}
    kinds = _kinds_of_storages(graph)
    most, calls_of_cache = _largest_reads(graph, anatomy, experts, kinds)
    _limit_to_visible(graph, anatomy, contexts, most, calls_of_cache, kinds)
    of_stages: dict[int, StageReads] = defaultdict(StageReads)
    for (stage, _, storage), size in most.items():
        reads, kind = of_stages[stage], kinds.get(storage, _OTHER)
        setattr(reads, kind, getattr(reads, kind) + size)
    return dict(of_stages)


def _largest_reads(
    graph: CallGraph, anatomy: Anatomy, experts: set[int], kinds: Mapping[int, str]
) -> tuple[dict[Key, int], dict[tuple[int, int], set[Key]]]:
    """What is read of each storage, and by which module call it was read first.

    A code that appends to its cache by making a new one leaves each step the one that the step before made.
    """
    assert graph.storages is not None
    ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
    forwards, born = anatomy.forward_of_ops, graph.storages.born_op
    stored, gathered = held_before(graph), gathered_weights(graph)
    reads = [() if serves_gather(kind) else bytes_read(kind) for kind in graph.op_kinds]
    most: dict[Key, int] = {}
    readers: dict[tuple[int, int], set[Key]] = defaultdict(set)
    for row, (stage, kind) in enumerate(zip(stage_of_ops(graph), ops.kind, strict=True)):
        if row in anatomy.positions.unused:
            continue
        for place, read in enumerate(reads[kind]):
            storage = ops.input_storages[starts[row] + place]
            weight = gathered.get(storage)
            source = storage if weight is None else weight.storage
            if not read or source in experts:
                continue
            # Memory made in this phase is no necessary read, except a cache that an earlier step of it left.
            is_left = kinds.get(storage) == _CACHE and storage not in stored and forwards[born[storage]] < forwards[row]
            if storage in stored or weight is not None or is_left:
                key = (stage, forwards[row], source)
                most[key] = max(most.get(key, 0), min(read, graph.storages.bytes[storage]))
                readers[forwards[row], ops.call[row]].add(key)
    return most, readers


def cache_bytes_by_call(graph: CallGraph, anatomy: Anatomy) -> dict[tuple[int, int], int]:
    """(forward, module call) -> bytes of the cache that its own ops read, as the code keeps it."""
    kinds = _kinds_of_storages(graph)
    most, readers = _largest_reads(graph, anatomy, set(), kinds)
    return {place: sum(most[key] for key in keys if kinds.get(key[2]) == _CACHE) for place, keys in readers.items()}


def _kinds_of_storages(graph: CallGraph) -> dict[int, str]:
    kinds = {parameter.storage: _WEIGHTS for parameter in graph.parameters if not parameter.is_buffer}
    cache = kv_cache([graph])
    if cache is not None:
        kinds.update(dict.fromkeys(cached_storages(graph, cache), _CACHE))
    return kinds


def _limit_to_visible(
    graph: CallGraph,
    anatomy: Anatomy,
    contexts: Mapping[int, int],
    most: dict[Key, int],
    readers: Mapping[tuple[int, int], set[Key]],
    kinds: Mapping[int, str],
) -> None:
    """Of a cache that holds more than a query sees, or more than one latent vector per token, only that much."""
    for site in anatomy.attentions:
        forward = anatomy.forward_of_ops[site.row]
        keys = [key for key in readers.get((forward, site.call), ()) if kinds.get(key[2]) == _CACHE]
        read = sum(most[key] for key in keys)
        limit = _visible_share(site, contexts.get(forward)) * read
        if site.latent is not None and keys:
            limit = min(limit, _latent_bytes(graph, site))
        if limit < read:
            for key in keys:
                most[key] = int(most[key] * limit / read)


def _visible_share(site: AttentionSite, context: int | None) -> float:
    """Of the keys that were there before: how many some query sees; the first query sees no fewer than later ones."""
    before = site.keys - site.queries
    if before <= 0 or not site.span.is_limited:
        return 1.0
    later = site.queries - 1
    seen = site.span.pairs(1, site.keys - later, None if context is None else context - later)
    return min(1.0, (seen - 1) / before)


def _latent_bytes(graph: CallGraph, site: AttentionSite) -> int:
    """One latent vector for each token that was there before."""
    assert site.latent is not None
    path = graph.paths[calls_of(graph).path[site.call]]
    heads = graph.constructor_params.get(path, {}).get("num_heads", site.lanes)
    cached = site.lanes // max(int(heads), 1) * (site.keys - site.queries)
    return cached * site.latent.cached_width * cache_number_bytes(graph)


def cache_number_bytes(graph: CallGraph) -> int:
    """What one number of the cache takes; all its tensors have one type."""
    cache = kv_cache([graph])
    return 0 if cache is None else tensor_bytes(replace(cache.tensors[0], shape=(1,)))


def held_before(graph: CallGraph) -> frozenset[int]:
    """Storages that hold something when the phase begins."""
    assert graph.storages is not None
    prepared = preparation(graph).stop
    origins, born = graph.storages.origin, graph.storages.born_op
    return frozenset(storage for storage in range(len(born)) if origins[storage] in _OLD or born[storage] < prepared)


def preparation(graph: CallGraph) -> range:
    """Rows of the ops before the first module call that only fill memory: a cache of zeros, a token to begin with.

    They stand for what an earlier phase left behind, so they are no work of this one, and what they fill was there.
    """
    end = min(calls_of(graph).first_op, default=0)
    kinds = ops_of(graph).kind
    for row in range(end):
        if touches_memory(graph.op_kinds[kinds[row]]) and not only_fills(graph.op_kinds[kinds[row]]):
            return range(row)
    return range(end)
