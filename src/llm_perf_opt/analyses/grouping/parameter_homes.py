"""At which module of the picture a weight counts."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from llm_perf_opt.analyses.parameter_owners import untied
from llm_perf_opt.analyses.pricing.op_cost import elements
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.records import Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterHomes:
    """Module path -> parameter elements. `idle` are those of modules that are in no box and whose weights no op read.

    A tied weight counts at the first of its names that is in a box. A weight that another module reads without calling
    its owner counts at the nearest module around the owner.
    """

    by_path: dict[str, int] = field(default_factory=dict)
    idle: dict[str, int] = field(default_factory=dict)


def parameter_homes(graph: CallGraph, shown: Set[str]) -> ParameterHomes | None:
    """A home for every weight, given the modules that stand in a box; None where the trace knows no weights."""
    if not graph.parameters and graph.ops is None:
        return None
    homes = ParameterHomes()
    read: set[int] | None = None
    for names, parameter in _weights(graph):
        owners = [name.rpartition(".")[0] for name in names]
        owner, table = next((path for path in owners if path in shown), owners[0]), homes.by_path
        if owner not in shown:
            if read is None:
                read = set(graph.ops.input_storages) if graph.ops is not None else set()
            nearest = _nearest(owner, shown) if parameter.storage in read else None
            owner, table = (owner, homes.idle) if nearest is None else (nearest, homes.by_path)
        table[owner] = table.get(owner, 0) + elements(parameter.meta)
    return homes


def _weights(graph: CallGraph) -> Iterator[tuple[list[str], Parameter]]:
    """Every weight once, with all its names."""
    names: dict[int, list[str]] = {}
    for parameter in graph.parameters:
        if parameter.storage >= 0 and not parameter.is_buffer:
            names.setdefault(parameter.storage, []).append(parameter.name)
    for parameter in untied(graph.parameters):
        yield names.get(parameter.storage, [parameter.name]), parameter


def _nearest(path: str, shown: Set[str]) -> str | None:
    while path not in shown:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return path
