"""What an engine runs in a mixer between its matmuls: norms of queries and keys, and the states of recurrent layers.

A norm of single heads is a kernel of its own. One over all heads together needs the heads of all ranks: engines gather
queries and keys, and every rank does the whole norm. For MiniMax-M2 they have written a kernel that adds up the sums of
squares instead. Either is a collective for every token that no other part of a layer has.

Layers without attention carry a state from step to step: how many there are, and the heads of gated delta rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, module_of, ops_in_call, ops_of
from llm_perf_opt.core.parallel_plan import layer_pattern, replicated_in
from llm_perf_opt.core.target import Json
from llm_perf_opt.costs.necessary.anatomy import Anatomy
from llm_perf_opt.costs.necessary.decoder_needs import FIRST_FORWARD
from llm_perf_opt.ops.kernel_shape import HEAD_WIDTH
from llm_perf_opt.timing.engine_kernels import vector_rule
from llm_perf_opt.timing.fusions import Fusion

_ADD_SQUARES = "MiniMaxM2"  # attentions with a kernel for norms over all heads in vLLM and SGLang
_HEADS = ("num_k_heads", "num_v_heads")
_WIDTHS = ("head_k_dim", "head_v_dim")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNorms:
    """The norms inside the attention of each of `layers` layers, over `numbers` of a token in all.

    Ranks add up the squares of `across_heads` of them, and gather the heads of those that are `gathered`, by their
    widths; `is_replicated`: each rank has all the numbers.
    """

    norms: int
    numbers: int
    across_heads: int = 0
    gathered: tuple[int, ...] = ()
    is_replicated: bool = False
    layers: int = 1


def engine_norms(graph: CallGraph, anatomy: Anatomy, ranks: int = 1) -> tuple[EngineNorms, ...]:
    """The norms of the first forward, of which one of `ranks` was traced; equal layers are counted together."""
    return tuple(replace(norms, layers=count) for norms, count in Counter(_norms(graph, anatomy, ranks)).items())


def _norms(graph: CallGraph, anatomy: Anatomy, ranks: int) -> Iterator[EngineNorms]:
    widths: dict[str, list[int]] = {}  # path of an attention -> of the norms inside it that have a weight
    replicated = replicated_in(graph.deployment) or frozenset()
    for parameter in graph.parameters:
        if len(parameter.meta.shape) == 1 and parameter.name.endswith(".weight"):
            width = parameter.meta.shape[0] * (1 if layer_pattern(parameter.name) in replicated else ranks)
            widths.setdefault(module_of(module_of(parameter.name)), []).append(width)
    paths, bare = calls_of(graph).path, _norms_without_weight(graph)
    for site in anatomy.attentions:
        norm_widths = widths.get(graph.paths[paths[site.call]], []) if site.call >= 0 else []
        norm_widths = norm_widths + [site.qk_width] * bare[site.call]
        if not norm_widths or anatomy.forward_of_ops[site.row] != FIRST_FORWARD:
            continue
        if site.latent is not None:
            yield EngineNorms(norms=len(norm_widths), numbers=sum(norm_widths), is_replicated=True)
            continue
        across = tuple(width for width in norm_widths if width > max(site.qk_width, site.v_width))
        heads = max(1, site.lanes // max(1, anatomy.positions.batch)) * ranks
        numbers = sum(norm_widths) if across else len(norm_widths) * heads * site.qk_width
        adds_squares = graph.module_types.get(graph.paths[paths[site.call]], "").startswith(_ADD_SQUARES)
        yield EngineNorms(
            norms=len(norm_widths),
            numbers=numbers,
            across_heads=len(across) if adds_squares else 0,
            gathered=() if adds_squares else across,
            is_replicated=bool(across) and not adds_squares,
        )


def _norms_without_weight(graph: CallGraph) -> Counter[int]:
    """Call -> how many of the calls right below it are norms that scale heads to one length and learn nothing."""
    calls, ops = calls_of(graph), ops_of(graph)
    learning = {module_of(parameter.name) for parameter in graph.parameters if not parameter.is_buffer}
    norms_below = Counter[int]()
    for call, parent in enumerate(calls.parent):
        path = graph.paths[calls.path[call]]
        if path in learning or graph.module_children.get(path):
            continue
        kinds = [graph.op_kinds[ops.kind[row]] for row in ops_in_call(graph, call)]
        norms_below[parent] += vector_rule(kinds, None) is Fusion.NORM
    return norms_below


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStates:
    """The states of `layers` layers. Heads belong to a gated delta rule; 0: another rule, known by its bytes."""

    layers: int
    layer_bytes: int  # of one sequence
    key_heads: int = 0
    value_heads: int = 0


def engine_states(graph: CallGraph, layers: int, state_bytes: int) -> EngineStates | None:
    """Of this many layers with this many bytes in all; None: a model without them."""
    if layers <= 0:
        return None
    head_counts = {heads for params in graph.constructor_params.values() if (heads := _delta_heads(params)) is not None}
    key_heads, value_heads = head_counts.pop() if len(head_counts) == 1 else (0, 0)
    return EngineStates(layers=layers, layer_bytes=state_bytes // layers, key_heads=key_heads, value_heads=value_heads)


def scalar_columns(graph: CallGraph) -> frozenset[int]:
    """Columns of the matmuls that make a decay and a step for each head of a gated delta rule, or both at once.

    Engines keep them out of the matmul of queries, keys and values, which a checkpoint may store in fewer bits.
    """
    heads = [heads for params in graph.constructor_params.values() if (heads := _delta_heads(params)) is not None]
    return frozenset(number * values for _, values in heads for number in (1, 2))


def _delta_heads(params: Mapping[str, Json]) -> tuple[int, int] | None:
    """Heads of keys and of values of a module that says both, in the one width that was measured."""
    keys, values = (params.get(name) for name in _HEADS)
    is_measured = all(params.get(name) == HEAD_WIDTH for name in _WIDTHS)
    return (keys, values) if is_measured and isinstance(keys, int) and isinstance(values, int) else None
