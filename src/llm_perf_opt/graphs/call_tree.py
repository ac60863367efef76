"""The calls of a run as rows of integers: callers, modules that may form one family, the cost of each call."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from llm_perf_opt.core.callgraph.aggregates import split_edge
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import OpColumns, Parameter, StorageColumns
from llm_perf_opt.costs.parameters import untied
from llm_perf_opt.ops.cost import FREE, elements
from llm_perf_opt.ops.table import price

OUTSIDE = -1  # the caller of what no module called


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTree:
    """Row i is a call of module `paths[path[i]]`, or `weight[i]` calls of it together."""

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


class CallsByCaller:
    """The calls of modules, by call of their caller."""

    def __init__(self, tree: CallTree) -> None:
        self._tree = tree
        self._rows_of: dict[int, list[int]] = {}
        for row in tree.children:
            self._rows_of.setdefault(tree.path[row] if row >= 0 else OUTSIDE, []).append(row)

    def rows(self, caller: int) -> Sequence[int]:
        """The calls of a caller in which it called anything."""
        return self._rows_of.get(caller, ())

    def of(self, caller: int, members: Set[int]) -> Iterator[tuple[int, list[int]]]:
        """Each call of the caller that called some of the members, with those calls."""
        for caller_row in self.rows(caller):
            rows = [row for row in self._tree.children[caller_row] if self._tree.path[row] in members]
            if rows:
                yield caller_row, rows


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
    return CallTree(paths=paths, path=path, parent=parent, weight=weight or [1] * len(path), children=children)


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
    """One row per edge. What a shared module does inside is recorded once, at its first caller."""
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
class Modules:
    """Per path row: its class, its container, and the siblings it may form a family with."""

    class_name: Sequence[str]
    stage: Sequence[str | None]  # that claims this very path
    container: Sequence[str]
    siblings: Sequence[int]  # equal for modules that may form one family
    is_member: Sequence[bool]  # of a container; otherwise it has a role, and no siblings
    is_mixed: Sequence[bool]  # whether called members of several classes share its container


def called_modules(graph: CallGraph, paths: Sequence[str]) -> Modules:
    """Every called module with its siblings. Modules that different stages claim are no siblings."""
    classes = [graph.module_types.get(path, UNKNOWN_CLASS) for path in paths]
    containers = [path.rpartition(".")[0] for path in paths]
    claims = {path: name for name, claimed in graph.stages for path in claimed}
    stages = [claims.get(path) for path in paths]
    holds_members: dict[str, bool] = {}
    numbers: dict[object, int] = {}
    siblings, is_member = [], []
    for path, class_name, container, stage in zip(paths, classes, containers, stages, strict=True):
        if container not in holds_members:
            holds_members[container] = _holds_members(graph, container)
        member = bool(path) and (holds_members[container] or path.rpartition(".")[2].isdecimal())
        key = (container, class_name, stage) if member else path
        siblings.append(numbers.setdefault(key, len(numbers)))
        is_member.append(member)
    classes_in: dict[str, set[str]] = {container: set() for container in containers}
    for class_name, container, member in zip(classes, containers, is_member, strict=True):
        if member:
            classes_in[container].add(class_name)
    return Modules(
        class_name=classes,
        stage=stages,
        container=containers,
        siblings=siblings,
        is_member=is_member,
        is_mixed=[len(classes_in[container]) > 1 for container in containers],
    )


def _holds_members(graph: CallGraph, container: str) -> bool:
    if graph.module_types.get(container) == "ModuleDict":
        return True
    children = graph.module_children.get(container, ())
    classes = {graph.module_types.get(child) for child in children}
    return len(children) > 1 and len(classes) == 1 and all(graph.module_children.get(child) for child in children)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterHomes:
    """Module path -> parameter elements. `idle` are for modules that are in no box and have weights that no op read.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFigures:
    """Columns by call row, or None where the trace does not say."""

    flops: Sequence[int] | None
    bytes_moved: Sequence[int] | None
    activation_bytes: Sequence[int] | None
    unpriced_ops: Sequence[int] | None


def call_figures(graph: CallGraph) -> CallFigures:
    """Own figures of every call: the ops run directly in it, without the calls it made."""
    if graph.calls is None or graph.ops is None:
        return CallFigures(flops=None, bytes_moved=None, activation_bytes=None, unpriced_ops=None)
    prices = [price(kind) for kind in graph.op_kinds]
    size = len(graph.calls.path) + 1
    return CallFigures(
        flops=_column(graph.ops, [(cost or FREE).flops for cost in prices], size),
        bytes_moved=_column(graph.ops, [(cost or FREE).bytes_moved for cost in prices], size),
        unpriced_ops=_column(graph.ops, [int(cost is None) for cost in prices], size),
        activation_bytes=None if (storages := memory_of(graph)) is None else _born_bytes(graph.ops, storages, size),
    )


def memory_of(graph: CallGraph) -> StorageColumns | None:
    """The memory that a run took; None where the tracer follows none, and knows weights and inputs alone."""
    storages = graph.storages
    return None if storages is None or "activation" not in storages.origin else storages


def _column(ops: OpColumns, per_kind: list[int], size: int) -> list[int]:
    column = [0] * size
    if any(per_kind):
        for call, kind in zip(ops.call, ops.kind, strict=True):
            column[call] += per_kind[kind]  # call -1 lands in the last place
    return column


def _born_bytes(ops: OpColumns, storages: StorageColumns, size: int) -> list[int]:
    column = [0] * size
    op_count = len(ops.call)
    for origin, start, size_bytes in zip(storages.origin, storages.born_op, storages.bytes, strict=True):
        if origin == "activation" and start < op_count:  # what no op ever wrote belongs to no call
            column[ops.call[start]] += size_bytes
    return column
