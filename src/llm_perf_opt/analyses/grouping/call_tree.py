"""Who called whom, as rows of integers, from whatever a trace has to say about it.

The columns of a full trace give one row per call, and so do recorded events. A file with edges alone gives one row per
edge, which stands for as many calls as the edge counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.callgraph.aggregates import split_edge
from llm_perf_opt.callgraph.graph import CallGraph

OUTSIDE = -1  # the caller of what no module called


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTree:
    """Row i is a call of module `paths[path[i]]`, or `weight[i]` calls of it told together."""

    paths: tuple[str, ...]
    path: Sequence[int]
    parent: Sequence[int]  # row of the caller, always before the row itself, or OUTSIDE
    weight: Sequence[int]
    children: dict[int, list[int]]  # row, or OUTSIDE -> rows called from it, in order; absent where there are none

    def caller_path(self, row: int) -> int:
        """The path row of the caller, or OUTSIDE."""
        caller = self.parent[row]
        return self.path[caller] if caller >= 0 else OUTSIDE

    def callee_paths(self) -> dict[int, dict[int, None]]:
        """Path, or OUTSIDE -> the paths called from any of its calls, in the order of the first call."""
        callees: dict[int, dict[int, None]] = {}
        for row, rows in self.children.items():
            caller = callees.setdefault(self.path[row] if row >= 0 else OUTSIDE, {})
            for child in rows:
                caller.setdefault(self.path[child])
        return callees


def call_tree(graph: CallGraph) -> CallTree:
    """The finest tree the trace allows."""
    if graph.calls is not None:
        return _tree(graph.paths, graph.calls.path, graph.calls.parent)
    if graph.events:
        return _tree_of_events(graph)
    return _tree_of_edges(graph)


def _tree(
    paths: tuple[str, ...], path: Sequence[int], parent: Sequence[int], weight: Sequence[int] | None = None
) -> CallTree:
    children: dict[int, list[int]] = {}
    for row, caller in enumerate(parent):
        if caller in children:
            children[caller].append(row)
        else:
            children[caller] = [row]
    return CallTree(
        paths=paths,
        path=path,
        parent=parent,
        weight=weight or [1] * len(path),
        children=children,
    )


def _tree_of_events(graph: CallGraph) -> CallTree:
    rows_by_path = {path: row for row, path in enumerate(graph.call_counts)}
    path: list[int] = []
    parent: list[int] = []
    open_rows = [OUTSIDE]
    for event, name in graph.events:
        if event == "enter":
            parent.append(open_rows[-1])
            open_rows.append(len(path))
            path.append(rows_by_path[name])
        else:
            open_rows.pop()
    return _tree(tuple(rows_by_path), path, parent)


def _tree_of_edges(graph: CallGraph) -> CallTree:
    """One row per edge. What a module called by several does inside is told once, at the caller that comes first."""
    rows_by_path = {path: row for row, path in enumerate(graph.call_counts)}
    callees: dict[str, list[tuple[str, int]]] = {}
    reached: set[str] = set()
    for edge, count in graph.edges.items():
        sides = split_edge(edge, graph.call_counts)
        if sides is not None:
            callees.setdefault(sides[0], []).append((sides[1], count))
            reached.add(sides[1])
    roots = graph.root_calls or {path: calls for path, calls in graph.call_counts.items() if path not in reached}
    waiting = deque((path, OUTSIDE, calls) for path, calls in roots.items())
    path: list[int] = []
    parent: list[int] = []
    weight: list[int] = []
    while waiting:
        name, caller, calls = waiting.popleft()
        waiting.extend((callee, len(path), count) for callee, count in callees.pop(name, ()))
        path.append(rows_by_path[name])
        parent.append(caller)
        weight.append(calls)
    return _tree(tuple(rows_by_path), path, parent, weight)
