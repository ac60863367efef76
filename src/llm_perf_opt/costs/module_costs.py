"""What each module costs: by itself, with everything it calls, split by caller, and in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, count_kinds, ops_in_call, ops_of
from llm_perf_opt.core.callgraph.records import CallColumns, OpKind
from llm_perf_opt.ops.cost import FREE, OpCost
from llm_perf_opt.ops.table import price


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


Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCost:
    """A called module over all its calls. `own` are the ops run directly in it, `inclusive` adds those of its children.

    A call inside another call of the same module is part of the outer one and counts once in `inclusive`.
    """

    calls: int
    own: OpCost
    inclusive: OpCost
    unpriced_ops: int  # run directly in it, and in neither cost


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCosts:
    """Costs by module path; `by_edge` splits a shared module's inclusive cost by `(parent, child)`.

    The edges into a module add up to its inclusive cost, apart from calls that no module made and calls inside a call
    of the same module. `outside` are ops that ran in no module at all.
    """

    by_path: Mapping[str, ModuleCost]
    by_edge: Mapping[tuple[str, str], OpCost]
    outside: OpCost


def module_costs(graph: CallGraph) -> ModuleCosts:
    """Own and inclusive cost of every called module, and of every edge between two."""
    calls = calls_of(graph)
    own, outside = _own_costs(graph)
    inclusive = _inclusive_costs(own, calls)
    paths = [graph.paths[row] for row in calls.path]
    own_by_path = _add_up(zip(paths, own, strict=True))
    inclusive_by_path = _add_up((paths[call], inclusive[call]) for call in outer_calls(calls))
    unpriced = _count_unpriced(graph, paths)
    called = [(parent, call) for call, parent in enumerate(calls.parent) if parent >= 0]
    return ModuleCosts(
        by_path={
            path: ModuleCost(
                calls=calls_of_path,
                own=own_by_path[path],
                inclusive=inclusive_by_path[path],
                unpriced_ops=unpriced[path],
            )
            for path, calls_of_path in Counter(paths).items()
        },
        by_edge=_add_up(((paths[parent], paths[call]), inclusive[call]) for parent, call in called),
        outside=outside,
    )


def _own_costs(graph: CallGraph) -> tuple[list[OpCost], OpCost]:
    """Per call, the cost of the ops run directly in it; and that of the ops outside any."""
    ops = ops_of(graph)
    prices = [price(kind) or FREE for kind in graph.op_kinds]
    # Plain integers for the million ops, one object for each of the far fewer calls; call -1 lands in the last place.
    columns = []
    for per_kind in zip(*((cost.flops, cost.vector_flops, cost.bytes_moved) for cost in prices), strict=True):
        column = [0] * (len(calls_of(graph).path) + 1)
        for call, kind in zip(ops.call, ops.kind, strict=True):
            column[call] += per_kind[kind]
        columns.append(column)
    *own, outside = (
        OpCost(flops=flops, vector_flops=vector_flops, bytes_moved=bytes_moved)
        for flops, vector_flops, bytes_moved in zip(*columns, strict=True)
    )
    return own, outside


def _inclusive_costs(own: list[OpCost], calls: CallColumns) -> list[OpCost]:
    inclusive = list(own)
    for call in range(len(own) - 1, -1, -1):  # a child is entered after its parent
        if calls.parent[call] >= 0:
            inclusive[calls.parent[call]] += inclusive[call]
    return inclusive


def outer_calls(calls: CallColumns) -> Iterator[int]:
    """Calls that are not inside another call of the same module."""
    open_calls: list[int] = []
    open_paths: Counter[int] = Counter()
    for call, (path, parent) in enumerate(zip(calls.path, calls.parent, strict=True)):
        while open_calls and open_calls[-1] != parent:
            open_paths[calls.path[open_calls.pop()]] -= 1
        if not open_paths[path]:
            yield call
        open_calls.append(call)
        open_paths[path] += 1


def _count_unpriced(graph: CallGraph, paths: list[str]) -> Counter[str]:
    """Module path -> ops run directly in it that have no price."""
    ops = ops_of(graph)
    is_unpriced = [price(kind) is None for kind in graph.op_kinds]
    if not any(is_unpriced):
        return Counter()
    return Counter(
        paths[call] for call, kind in zip(ops.call, ops.kind, strict=True) if is_unpriced[kind] and call >= 0
    )


def _add_up(costs: Iterable[tuple[Key, OpCost]]) -> dict[Key, OpCost]:
    by_key: dict[Key, OpCost] = {}
    for key, cost in costs:
        by_key[key] = by_key.get(key, FREE) + cost
    return by_key
