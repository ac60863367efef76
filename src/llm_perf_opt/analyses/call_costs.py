"""What one call of a module cost in a trace: the figure that an exported graph of that call is held against."""

from __future__ import annotations

from itertools import accumulate

from llm_perf_opt.analyses.pricing import OpCost, price
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.queries import calls_of, count_kinds, ops_in_call
from llm_perf_opt.callgraph.records import OpKind


def last_distinct_call(graph: CallGraph, path: str) -> int | None:
    """The call of the module whose kind of input appeared last for the first time; None if it was never called."""
    if path not in graph.paths:
        return None
    calls, wanted = calls_of(graph), graph.paths.index(path)
    starts = list(accumulate(calls.input_count, initial=0))
    seen: dict[tuple[int, ...], int] = {}
    for call, row in enumerate(calls.path):
        if row == wanted:
            seen.setdefault(tuple(calls.input_metas[starts[call] : starts[call + 1]]), call)
    return list(seen.values())[-1] if seen else None


def kinds_in_call(graph: CallGraph, path: str) -> dict[OpKind, int] | None:
    """The ops of that call, those of the modules below it included."""
    call = last_distinct_call(graph, path)
    return None if call is None else count_kinds(graph, ops_in_call(graph, call))


def cost_of_kinds(kinds: dict[OpKind, int]) -> tuple[OpCost, dict[str, int]]:
    """The sum over all priced ops, and how many ops of which name have no price."""
    total = OpCost()
    unpriced: dict[str, int] = {}
    for kind, count in kinds.items():
        cost = price(kind)
        if cost is None:
            unpriced[kind.name] = unpriced.get(kind.name, 0) + count
        else:
            total += cost.times(count)
    return total, unpriced
