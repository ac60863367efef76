"""Who called whom, as rows of integers, and which modules may form one family."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.aggregates import split_edge
from llm_perf_opt.core.callgraph.graph import CallGraph

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


UNKNOWN_CLASS = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinship:
    """Per path row: its class, its container, and the kin it belongs to."""

    class_name: Sequence[str]
    stage: Sequence[str | None]  # that claims this very path
    container: Sequence[str]
    kin: Sequence[int]  # equal for members of one kin
    is_member: Sequence[bool]  # of a container; otherwise it has a role, and is its own kin
    is_mixed: Sequence[bool]  # whether called members of several classes share its container


def kinship(graph: CallGraph, paths: Sequence[str]) -> Kinship:
    """The kin of every called module. Modules that different stages claim are not kin."""
    classes = [graph.module_types.get(path, UNKNOWN_CLASS) for path in paths]
    containers = [path.rpartition(".")[0] for path in paths]
    claims = {path: name for name, claimed in graph.stages for path in claimed}
    stages = [claims.get(path) for path in paths]
    holds_members: dict[str, bool] = {}
    kins: dict[object, int] = {}
    kin, is_member = [], []
    for path, class_name, container, stage in zip(paths, classes, containers, stages, strict=True):
        if container not in holds_members:
            holds_members[container] = _holds_members(graph, container)
        member = bool(path) and (holds_members[container] or path.rpartition(".")[2].isdecimal())
        key = (container, class_name, stage) if member else path
        kin.append(kins.setdefault(key, len(kins)))
        is_member.append(member)
    classes_in: dict[str, set[str]] = {container: set() for container in containers}
    for class_name, container, member in zip(classes, containers, is_member, strict=True):
        if member:
            classes_in[container].add(class_name)
    return Kinship(
        class_name=classes,
        stage=stages,
        container=containers,
        kin=kin,
        is_member=is_member,
        is_mixed=[len(classes_in[container]) > 1 for container in containers],
    )


def _holds_members(graph: CallGraph, container: str) -> bool:
    if graph.module_types.get(container) == "ModuleDict":
        return True
    children = graph.module_children.get(container, ())
    classes = {graph.module_types.get(child) for child in children}
    return len(children) > 1 and len(classes) == 1 and all(graph.module_children.get(child) for child in children)
