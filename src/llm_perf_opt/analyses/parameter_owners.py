"""Which stage owns a weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llm_perf_opt.analyses.pricing.op_cost import elements
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.queries import stage_names
from llm_perf_opt.callgraph.records import Parameter


def parameters_by_stage(graph: CallGraph) -> dict[str, int]:
    """Stage -> parameter elements it owns, by name: the stage whose path is the longest prefix, else the phase.

    Ownership does not ask what ran, so an expert without tokens counts. Tied weights count once, where they are named
    first; buffers are not parameters.
    """
    claims = {path: name for name, paths in graph.stages for path in paths}
    owned = dict.fromkeys(stage_names(graph), 0)
    for parameter in untied(graph.parameters):
        owned[_owner(parameter.name, claims, graph.phase)] += elements(parameter.meta)
    return owned


def count_distinct_parameters(graphs: Iterable[CallGraph]) -> int:
    """Parameter elements of all graphs together; phases of one model share their weights by name."""
    by_name = {parameter.name: elements(parameter.meta) for graph in graphs for parameter in untied(graph.parameters)}
    return sum(by_name.values())


def untied(parameters: Iterable[Parameter]) -> Iterator[Parameter]:
    """Every weight once; without storages, names are all there is to tell weights apart."""
    seen: set[int] = set()
    for parameter in parameters:
        if parameter.is_buffer or parameter.storage in seen:
            continue
        if parameter.storage >= 0:
            seen.add(parameter.storage)
        yield parameter


def _owner(name: str, claims: dict[str, str], phase: str) -> str:
    path = name.rpartition(".")[0]
    while path not in claims:
        if not path:
            return phase
        path = path.rpartition(".")[0]
    return claims[path]
