"""Which calls feed which: tensors followed from call to call, and through the ops that the caller runs in between.

Memory is followed by storage, so views come for free. Each storage written during a call of the caller carries where it
comes from: the call that returned it as it is, the calls it was made from by the caller's own ops (`near`), and the
calls it depends on in any way (`far`). Near and far keep the latest call of each set of siblings: all a chain
needs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.graph_view import LoopKind
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.graphs.call_tree import OUTSIDE, CallsByCaller, CallTree, Modules

# These name the tensor they write into as a whole and change some of its elements.
_PART_WRITERS = ("index_", "scatter", "masked_", "put_", "select_scatter", "slice_scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageWrites:
    """By op: `(storage, whether all of it)`; by storage: the ops that wrote into it, ascending."""

    by_op: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)
    by_storage: dict[int, list[int]] = field(default_factory=dict)


def storage_writes(graph: CallGraph) -> StorageWrites:
    """Every in-place write of the run."""
    writes = StorageWrites()
    ops = graph.ops
    if ops is None or graph.storages is None:
        return writes
    targets = {row: list(_written(kind)) for row, kind in enumerate(graph.op_kinds) if kind.mutates}
    if not targets:
        return writes
    input_at, _ = tensor_offsets(graph)
    for op, kind in enumerate(ops.kind):
        for position, least_bytes in targets.get(kind, ()):
            storage = ops.input_storages[input_at[op] + position]
            is_whole = least_bytes is not None and least_bytes >= graph.storages.bytes[storage]
            writes.by_op.setdefault(op, []).append((storage, is_whole))
            writes.by_storage.setdefault(storage, []).append(op)
    return writes


def _written(kind: OpKind) -> Iterator[tuple[int, int | None]]:
    """Inputs written into, each with the bytes written, or None where it is some part."""
    positions = sorted({alias for alias in kind.output_aliases if alias >= 0}) or ([0] if kind.inputs else [])
    packet = kind.name.split(".")[1] if "." in kind.name else kind.name
    is_part = packet.startswith(_PART_WRITERS)
    for position in positions:
        yield position, None if is_part else tensor_bytes(kind.inputs[position])


Clock = dict[int, int]  # siblings -> the latest call among them
_MAX_SOURCES = 32


class Knowledge(IntEnum):
    """How much of the data flow a trace shows."""

    NONE = 0
    CALLS = 1  # the tensors of calls, without the ops between them
    OPS = 2


class Inflow:
    """Where the inputs of one module come from, over all calls of it by one caller. All are path rows; -1 is none."""

    __slots__ = ("direct", "feeders", "is_in_series", "near_feeders", "needs", "series_feeders")

    def __init__(self) -> None:
        self.feeders: set[int] = set()  # the latest of its siblings that it depends on
        self.near_feeders: set[int] = set()  # likewise, if nothing in its container was called in between
        self.series_feeders: set[int] = set()  # what its container ran before it, if it depends on that
        self.direct: set[int] = set()  # any module that gives it an output as it is
        self.needs: set[int] = set()  # every module that it depends on and that may have a family
        self.is_in_series: bool | None = None  # used again in one call of the caller: whether an earlier use fed it


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFlow:
    """What was seen, over all calls."""

    knowledge: Knowledge
    inflows: dict[tuple[int, int], Inflow] = field(
        default_factory=dict
    )  # by path rows of caller, or OUTSIDE, and module
    arrows: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # caller's row -> pairs of path rows
    unseen_forwards: int | None = None  # calls of a caller that a trace without data flow does not show

    def inflow(self, caller: int, path: int) -> Inflow:
        """What is known of the inputs of a module; nothing, where nothing was seen."""
        return self.inflows.get((caller, path)) or Inflow()


class _Source(NamedTuple):
    direct: int
    near: Clock
    far: Clock


_NOWHERE = _Source(-1, {}, {})


def data_flow(graph: CallGraph, tree: CallTree, modules: Modules) -> DataFlow:
    """Follow every call that made at least two others."""
    if graph.calls is None:
        return DataFlow(knowledge=Knowledge.NONE, unseen_forwards=unseen_forwards(tree, modules))
    follows_ops = graph.ops is not None and len(graph.ops.input_storages) > 0
    flow = DataFlow(knowledge=Knowledge.OPS if follows_ops else Knowledge.CALLS)
    tables = _tables(graph)
    own_ops = _ops_of_callers(graph, tree)
    follower = _Follower(flow, tree, modules, tables)
    for row, children in tree.children.items():
        if len(children) > 1:
            follower.follow(row, children, own_ops.get(row, ()))
    return flow


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    inputs_of_call: list[Sequence[int]]
    outputs_of_call: list[Sequence[int]]
    first_op: Sequence[int]
    end_op: Sequence[int]
    op_inputs: Sequence[int]
    op_outputs: Sequence[int]
    op_input_at: Sequence[int]
    op_output_at: Sequence[int]
    writes: StorageWrites


def _tables(graph: CallGraph) -> _Tables:
    calls, ops = graph.calls, graph.ops
    assert calls is not None
    input_at, output_at = tensor_offsets(graph) if ops is not None else ((), ())
    return _Tables(
        inputs_of_call=_slices(calls.input_storages, calls.input_count),
        outputs_of_call=_slices(calls.output_storages, calls.output_count),
        first_op=calls.first_op,
        end_op=calls.end_op,
        op_inputs=ops.input_storages if ops is not None else (),
        op_outputs=ops.output_storages if ops is not None else (),
        op_input_at=input_at,
        op_output_at=output_at,
        writes=storage_writes(graph),
    )


def _slices(flat: Sequence[int], counts: Sequence[int]) -> list[Sequence[int]]:
    return [flat[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]


def _ops_of_callers(graph: CallGraph, tree: CallTree) -> dict[int, list[int]]:
    """Row of a caller of several -> the ops it ran itself."""
    if graph.ops is None:
        return {}
    own: dict[int, list[int]] = {row: [] for row, children in tree.children.items() if len(children) > 1}
    for op, call in enumerate(graph.ops.call):
        if call in own:
            own[call].append(op)
    return own


class _Follower:
    """Holds the sources of all storages while one caller's calls and ops pass by in order."""

    def __init__(self, flow: DataFlow, tree: CallTree, modules: Modules, tables: _Tables) -> None:
        self._flow = flow
        self._path = tree.path
        self._modules = modules
        self._tables = tables
        self._is_tracked = _with_rivals(tree, modules)
        self._sources: dict[int, _Source] = {}
        self._last_in_container: dict[str, int] = {}
        self._seen: set[int] = set()

    def follow(self, caller_row: int, children: list[int], ops: Sequence[int]) -> None:
        """One call of a caller, from beginning to end."""
        self._sources = {}
        self._last_in_container = {}
        self._seen = set()
        caller = self._path[caller_row] if caller_row >= 0 else OUTSIDE
        arrows: list[tuple[int, int]] = []
        for row, is_op in _in_order(children, ops, self._tables.first_op):
            if is_op:
                self._pass_op(row)
            else:
                arrows += self._pass_call(caller, row)
        if arrows:
            self._flow.arrows[caller_row] = arrows

    def _pass_op(self, op: int) -> None:
        tables, sources = self._tables, self._sources
        inputs = tables.op_inputs[tables.op_input_at[op] : tables.op_input_at[op + 1]]
        known = [sources[storage] for storage in inputs if storage in sources]
        if not known:
            return
        near = _latest(_merged([source.near for source in known]))
        made = _Source(-1, near, _merged([source.far for source in known]))
        for storage in tables.op_outputs[tables.op_output_at[op] : tables.op_output_at[op + 1]]:
            if storage not in inputs:
                sources[storage] = made
        for storage, is_whole in tables.writes.by_op.get(op, ()):
            # Writing some rows of an accumulator does not make it depend on them as a chain would; it still uses them.
            before = sources.get(storage, _NOWHERE)
            sources[storage] = made if is_whole else _Source(before.direct, made.near, before.far)

    def _pass_call(self, caller: int, row: int) -> Iterator[tuple[int, int]]:
        tables, sources, modules = self._tables, self._sources, self._modules
        path = self._path[row]
        siblings = modules.siblings[path]
        inputs = tables.inputs_of_call[row]
        known = [sources[storage] for storage in inputs if storage in sources]
        near, far = _merged([source.near for source in known]), _merged([source.far for source in known])
        self._note(caller, row, near, far, known)
        after = {**far, siblings: row} if self._is_tracked[path] else far
        made = _Source(row, {siblings: row}, after)
        for storage in tables.outputs_of_call[row]:
            if storage in inputs and not self._is_written(storage, row):
                before = sources.get(storage, _NOWHERE)  # handed through untouched
                sources[storage] = _Source(-1, {**before.near, siblings: row}, before.far)
            else:
                sources[storage] = made
        self._last_in_container[modules.container[path]] = row
        self._seen.add(path)
        return ((self._path[source], path) for source in near.values() if self._path[source] != path)

    def _note(self, caller: int, row: int, near: Clock, far: Clock, known: list[_Source]) -> None:
        """Write down where this call's inputs come from."""
        modules, paths = self._modules, self._path
        path = paths[row]
        inflow = self._flow.inflows.get((caller, path))
        if inflow is None:
            inflow = self._flow.inflows[caller, path] = Inflow()
        siblings = modules.siblings[path]
        if modules.is_member[path]:
            feeder, before = far.get(siblings, -1), self._last_in_container.get(modules.container[path], -1)
            inflow.feeders.add(paths[feeder] if feeder >= 0 else -1)
            inflow.near_feeders.add(paths[feeder] if feeder >= 0 and near.get(siblings) == feeder == before else -1)
            last = modules.siblings[paths[before]] if before >= 0 else -1
            is_fed = before >= 0 and before in (far.get(last), near.get(last))
            inflow.series_feeders.add(paths[before] if is_fed else -1)
        for source in known:
            inflow.direct.add(paths[source.direct] if source.direct >= 0 else -1)
        for source_row in far.values():
            inflow.needs.add(paths[source_row])
        if path in self._seen:
            inflow.is_in_series = inflow.is_in_series is not False and (siblings in near or siblings in far)

    def _is_written(self, storage: int, row: int) -> bool:
        ops = self._tables.writes.by_storage.get(storage)
        if not ops:
            return False
        at = bisect_left(ops, self._tables.first_op[row])
        return at < len(ops) and ops[at] < self._tables.end_op[row]


def _with_rivals(tree: CallTree, modules: Modules) -> list[bool]:
    """Paths that may share a family, so that it matters what depends on them. A leaf in a role never is in one."""
    callers = {tree.path[row] for row in tree.children if row >= 0}
    places: list[object] = [
        siblings if member else (container, class_name) if path in callers else None
        for path, (siblings, member, container, class_name) in enumerate(
            zip(modules.siblings, modules.is_member, modules.container, modules.class_name, strict=True)
        )
    ]
    counts = Counter(places)
    return [place is not None and counts[place] > 1 for place in places]


def _in_order(children: list[int], ops: Sequence[int], first_op: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """The caller's calls and own ops as they happened: `(row, whether it is an op)`."""
    at = 0
    for op in ops:
        while at < len(children) and first_op[children[at]] <= op:
            yield children[at], False
            at += 1
        yield op, True
    for child in children[at:]:
        yield child, False


def _latest(clock: Clock) -> Clock:
    """Without the earliest sources, where there are very many: a sum over hundreds of modules has no telling arrows."""
    if len(clock) <= _MAX_SOURCES:
        return clock
    return dict(sorted(clock.items(), key=itemgetter(1))[-_MAX_SOURCES:])


def _merged(clocks: Iterable[Clock]) -> Clock:
    """The latest of each set of siblings. The result may be one of the arguments and is never changed afterwards."""
    merged: Clock = {}
    is_own = False
    for clock in clocks:
        if not merged:
            merged = clock
        elif clock is not merged and clock:
            if not is_own:
                merged, is_own = dict(merged), True
            for siblings, row in clock.items():
                if merged.get(siblings, -1) < row:
                    merged[siblings] = row
    return merged


# Loops over numbered siblings where a trace shows no data flow: a reading of names, classes and counts.
#
# It is weaker evidence than tensors, and the caption says so. Numbered siblings of one class that each run once per
# call of their caller are taken for a chain if their container is named as a stack is, or is itself called: heads and
# pyramids of feature maps are numbered too, and run side by side. Siblings that run unequally often, that a caller
# leaves out, or that are next to a router are taken for experts.

_ROUTER_NAMES = ("gate", "router")
_ROUTER_CLASSES = ("Gate", "Router")
_EXPERTS = "expert"
_STACKS = ("layer", "layers", "block", "blocks", "stage", "stages", "bottlenecks")  # ends of names
_STACK_NAMES = ("h",)


class NamesAndCounts:
    """The calls of one trace, read by name."""

    def __init__(self, tree: CallTree, modules: Modules, *, is_ordered: bool) -> None:
        """`is_ordered`: the rows are in the order of the run, as events are and edges are not."""
        self._tree = tree
        self._modules = modules
        self._is_ordered = is_ordered
        self._called = frozenset(filter(None, tree.paths))
        self._calls_by_caller = CallsByCaller(tree)

    def in_order(self, siblings: Sequence[int]) -> list[int]:
        """As they ran, or else by number."""
        return list(siblings) if self._is_ordered else sorted(siblings, key=lambda path: self._number(path) or 0)

    def is_next(self, path: int, next_path: int) -> bool:
        """Whether the second has the number after the first's."""
        number, following = self._number(path), self._number(next_path)
        return number is not None and following is not None and following == number + 1

    def kind(self, caller: int, siblings: Sequence[int], untouched: Sequence[str] = ()) -> LoopKind | None:
        """How siblings of one class in one container repeat; None where nothing tells."""
        if any(self._number(path) is None for path in siblings) or len(siblings) + len(untouched) < 2:
            return None
        if self._is_routed_by_name(caller, siblings):
            return LoopKind.PARFOR
        members = frozenset(siblings)
        calls = list(self._calls_by_caller.of(caller, members))
        if not all(self._runs_each_once(caller_row, rows, members) for caller_row, rows in calls):
            return LoopKind.PARFOR if self._is_unequal(calls, members) else None
        if self._has_gap(siblings, untouched):
            return LoopKind.PARFOR
        return LoopKind.FOR if self._is_stack(self._modules.container[siblings[0]]) else None

    def _is_routed_by_name(self, caller: int, siblings: Sequence[int]) -> bool:
        container = self._modules.container[siblings[0]]
        if _EXPERTS in container.rpartition(".")[2].lower():
            return True
        rows = self._calls_by_caller.rows(caller)
        callees = {self._tree.path[row] for caller_row in rows for row in self._tree.children[caller_row]}
        return any(
            self._tree.paths[path].rpartition(".")[2] in _ROUTER_NAMES
            or self._modules.class_name[path].endswith(_ROUTER_CLASSES)
            for path in callees.difference(siblings)
        )

    def _is_stack(self, container: str) -> bool:
        """By its name; or it runs them itself, as a `Sequential` does."""
        last = container.rpartition(".")[2]
        return container in self._called or last in _STACK_NAMES or last.endswith(_STACKS)

    def _runs_each_once(self, caller_row: int, rows: list[int], members: frozenset[int]) -> bool:
        """Whether one call of the caller, or each of those counted together, ran every sibling once and in order."""
        paths, weights = [self._tree.path[row] for row in rows], {self._tree.weight[row] for row in rows}
        if len(paths) != len(members) or len(set(paths)) != len(members) or len(weights) > 1:
            return False
        if caller_row >= 0 and weights != {self._tree.weight[caller_row]}:
            return False
        numbers = [self._number(path) or 0 for path in paths]
        return not self._is_ordered or numbers == sorted(numbers)

    def _is_unequal(self, calls: list[tuple[int, list[int]]], members: frozenset[int]) -> bool:
        """Whether some calls left a sibling out, or ran one more often than another."""
        return any(
            len(uses) < len(members) or len(set(uses.values())) > 1 for uses in (self._uses(rows) for _, rows in calls)
        )

    def _uses(self, rows: list[int]) -> Counter[int]:
        uses: Counter[int] = Counter()
        for row in rows:
            uses[self._tree.path[row]] += self._tree.weight[row]
        return uses

    def _has_gap(self, siblings: Sequence[int], untouched: Sequence[str]) -> bool:
        """Whether a sibling that never ran has a lower number than one that did: a stack may only end early."""
        unused = [int(last) for name in untouched if (last := name.rpartition(".")[2]).isdecimal()]
        return bool(unused) and min(unused) < max(self._number(path) or 0 for path in siblings)

    def _number(self, path: int) -> int | None:
        last = self._tree.paths[path].rpartition(".")[2]
        return int(last) if last.isdecimal() and len(last) < 10 else None


def unseen_forwards(tree: CallTree, modules: Modules) -> int | None:
    """How often a caller ran that the trace does not show; None where there is none: one module calls all others.

    Scripts that trace the model inside its wrapper leave the outermost module out. A stack of numbered layers in it
    runs once per call; without one, the module that ran least often tells.
    """
    uses: Counter[int] = Counter()
    for row in tree.children.get(OUTSIDE, ()):
        uses[tree.path[row]] += tree.weight[row]
    if len(uses) < 2:
        return None
    named = NamesAndCounts(tree, modules, is_ordered=False)
    stacks: dict[int, list[int]] = {}
    for path in uses:
        if modules.is_member[path]:
            stacks.setdefault(modules.siblings[path], []).append(path)
    chains = [stack for stack in stacks.values() if named.kind(OUTSIDE, stack) is LoopKind.FOR]
    return min(uses[path] for path in (*(stack[0] for stack in chains),) or uses)
