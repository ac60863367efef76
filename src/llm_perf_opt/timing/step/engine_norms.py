"""Norms of queries and keys: what an attention does between its projections and its scores.

A norm of single heads is a kernel of its own. One over all heads together needs the sum of their squares: ranks that
share the heads exchange it for every token, in a collective that no other part of a layer has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, module_of
from llm_perf_opt.core.parallel_plan import layer_pattern, replicated_in
from llm_perf_opt.costs.necessary.anatomy import Anatomy
from llm_perf_opt.costs.necessary.decoder_needs import FIRST_FORWARD


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNorms:
    """The norms inside the attention of each of `layers` layers, over `numbers` of a token in all.

    `across_heads` of them need the squares of every head; `is_whole`: each rank has all the numbers.
    """

    norms: int
    numbers: int
    across_heads: int = 0
    is_whole: bool = False
    layers: int = 1


def engine_norms(graph: CallGraph, anatomy: Anatomy, ranks: int = 1) -> tuple[EngineNorms, ...]:
    """Those of the first forward, of which one of `ranks` was traced; layers that are alike are counted together."""
    return tuple(replace(norms, layers=count) for norms, count in Counter(_norms(graph, anatomy, ranks)).items())


def _norms(graph: CallGraph, anatomy: Anatomy, ranks: int) -> Iterator[EngineNorms]:
    widths: dict[str, list[int]] = {}  # path of an attention -> of the norms inside it
    whole = replicated_in(graph.deployment) or frozenset()
    for parameter in graph.parameters:
        if len(parameter.meta.shape) == 1 and parameter.name.endswith(".weight"):
            width = parameter.meta.shape[0] * (1 if layer_pattern(parameter.name) in whole else ranks)
            widths.setdefault(module_of(module_of(parameter.name)), []).append(width)
    paths = calls_of(graph).path
    for site in anatomy.attentions:
        norm_widths = widths.get(graph.paths[paths[site.call]], []) if site.call >= 0 else []
        if not norm_widths or anatomy.forward_of_ops[site.row] != FIRST_FORWARD:
            continue
        if site.latent is not None:
            yield EngineNorms(norms=len(norm_widths), numbers=sum(norm_widths), is_whole=True)
            continue
        across = sum(width > max(site.qk_width, site.v_width) for width in norm_widths)
        heads = max(1, site.lanes // max(1, anatomy.positions.batch)) * ranks
        numbers = sum(norm_widths) if across else len(norm_widths) * heads * site.qk_width
        yield EngineNorms(norms=len(norm_widths), numbers=numbers, across_heads=across)
