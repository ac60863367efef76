"""Which modules called by one caller are a family, and whether they run in series or side by side.

The chain is tested first. A chain splits where the structure of its members differs; what is in no chain and depends on
no sibling may stand side by side. See `docs/how/reading-the-graph.md` for the rules in full. Where a trace does not
follow tensors through ops, `SideBySide` looks at the calls instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import CallColumns
from llm_perf_opt.core.graph_view import LoopKind
from llm_perf_opt.graphs.call_tree import UNKNOWN_CLASS, CallsByCaller, CallTree, Modules
from llm_perf_opt.graphs.data_flow import DataFlow, Knowledge, NamesAndCounts

MAX_DEPTH = 64  # levels of calls told apart; only runaway recursion goes deeper


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingFamily:
    """Modules of one class and structure under one caller; often just one. `kind` is None for one, or if unknown."""

    paths: tuple[int, ...]
    kind: LoopKind | None
    slot: str  # where it stands in the caller: the same for corresponding families of corresponding callers
    class_name: str
    structure: int
    untouched: tuple[str, ...] = ()  # declared next to them and never called


class Families:
    """Families and structures of all callers, each found once, when first asked for."""

    def __init__(self, graph: CallGraph, tree: CallTree, modules: Modules, flow: DataFlow) -> None:
        self._paths = tree.paths
        self._callees = tree.callee_paths()
        self._modules = modules
        self._flow = flow
        self._weights = _weight_shapes(graph)
        self._untouched = _untouched(graph)
        self._is_declared = bool(graph.module_types)
        knows_nothing = flow.knowledge is Knowledge.NONE
        self._by_name = NamesAndCounts(tree, modules, is_ordered=bool(graph.events)) if knows_nothing else None
        self._seen_calls: SideBySide | None = None
        if flow.knowledge is Knowledge.CALLS and graph.calls is not None:
            self._seen_calls = SideBySide(graph, graph.calls, tree)
        self._structures: dict[object, int] = {}
        self._structure_of: dict[int, int] = {}
        self._families_of: dict[int, tuple[SiblingFamily, ...]] = {}
        self._open: list[int] = []

    def families_of(self, caller: int) -> tuple[SiblingFamily, ...]:
        """What the module (or OUTSIDE) called, in the order of the first call."""
        if caller not in self._callees:
            return ()
        families = self._families_of.get(caller)
        if families is None:
            families = tuple(self._with_untouched(caller, list(self._find(caller))))
            self._families_of[caller] = families
        return families

    def chain_lengths(self) -> set[int]:
        """How many modules run in series in each container, whatever their class and structure."""
        lengths: set[int] = set()
        for caller, callees in self._callees.items():
            members = [path for path in callees if self._modules.is_member[path]]
            for bucket in _by(members, self._modules.container.__getitem__):
                lengths.update(len(run) for run in self._runs(caller, bucket))
        return lengths

    def _runs(self, caller: int, bucket: list[int]) -> list[list[int]]:
        if self._by_name is None:
            return _cut(bucket, partial(self._precedes, caller))
        ordered = self._by_name.in_order(bucket)
        is_chain = self._by_name.kind(caller, ordered, self._untouched_beside(ordered[0])) is LoopKind.FOR
        return _cut(ordered, self._by_name.is_next) if is_chain else []

    def _precedes(self, caller: int, path: int, next_path: int) -> bool:
        return self._flow.inflow(caller, next_path).series_feeders == {path}

    def _structure(self, path: int) -> int:
        """A number equal for modules of one class that call families of equal structure in equal places."""
        known = self._structure_of.get(path)
        if known is not None:
            return known
        class_name = self._modules.class_name[path]
        # A module inside itself: its structure is not known yet, and the class is all that can be said.
        if path in self._open or len(self._open) >= MAX_DEPTH:
            return self._structures.setdefault(class_name, len(self._structures))
        self._open.append(path)
        inside = tuple(
            (family.slot, family.class_name, self._size(family), family.structure) for family in self.families_of(path)
        )
        self._open.pop()
        structure = self._structures.setdefault((class_name, inside), len(self._structures))
        self._structure_of[path] = structure
        return structure

    def _size(self, family: SiblingFamily) -> int | None:
        """How many there are; a trace that declares no modules cannot tell, where a router may have left some out."""
        if not self._is_declared and family.kind is not LoopKind.FOR and self._modules.is_member[family.paths[0]]:
            return None
        return len(family.paths) + len(family.untouched)

    def _find(self, caller: int) -> Iterator[SiblingFamily]:
        callees = list(self._callees[caller])
        order = {path: position for position, path in enumerate(callees)}
        families = [family for bucket in self._buckets(callees) for family in self._split(caller, bucket)]
        yield from sorted(families, key=lambda family: order[family.paths[0]])

    def _buckets(self, callees: Iterable[int]) -> list[list[int]]:
        """Candidates: siblings in containers, and modules of one class and stage in roles."""
        modules, buckets = self._modules, dict[object, list[int]]()
        for path in callees:
            role = (modules.class_name[path], modules.stage[path])
            key = modules.siblings[path] if modules.is_member[path] else role  # a number, or a pair
            buckets.setdefault(key, []).append(path)
        return list(buckets.values())

    def _split(self, caller: int, bucket: list[int]) -> Iterator[SiblingFamily]:
        """Chains first, then siblings, then what is left alone."""
        is_member = self._modules.is_member[bucket[0]]
        if self._by_name is not None and is_member:
            yield from self._split_by_name(self._by_name, caller, bucket)
            return
        alone: list[int] = []
        for run in _cut(bucket, partial(self._feeds, caller)):
            if len(run) == 1:
                alone += run
            else:
                # Layers of two structures may alternate and are two families; in roles only neighbours are alike.
                parts = _by(run, self._structure) if is_member else _cut(run, self._is_alike)
                yield from (self._family(caller, part, LoopKind.FOR) for part in parts)
        # What is in no chain may still feed on a sibling through the caller's ops; then it stands by itself.
        siblings = set(bucket)
        side_by_side = {path: None for path in alone if self._may_stand_beside(caller, path, siblings)}
        for part in _by(side_by_side, self._structure):
            kind = self._sibling_kind(caller, part)
            together = [part] if is_member or kind is not None else [[path] for path in part]
            yield from (self._family(caller, paths, kind) for paths in together)
        yield from (self._family(caller, [path], None) for path in alone if path not in side_by_side)

    def _split_by_name(self, named: NamesAndCounts, caller: int, bucket: list[int]) -> Iterator[SiblingFamily]:
        """A chain is cut where a number is missing; nothing else tells its members apart from experts."""
        ordered = named.in_order(bucket)
        kind = named.kind(caller, ordered, self._untouched_beside(ordered[0]))
        for run in _cut(ordered, named.is_next) if kind is LoopKind.FOR else [ordered]:
            yield from (self._family(caller, part, kind) for part in _by(run, self._structure))

    def _untouched_beside(self, path: int) -> list[str]:
        """Modules of its class in its container that never ran."""
        return self._untouched.get((self._modules.container[path], self._modules.class_name[path]), [])

    def _feeds(self, caller: int, path: int, next_path: int) -> bool:
        inflow = self._flow.inflow(caller, next_path)
        if not self._modules.is_member[path]:
            return path in inflow.direct
        return (inflow.near_feeders if self._modules.is_mixed[next_path] else inflow.feeders) == {path}

    def _sibling_kind(self, caller: int, paths: list[int]) -> LoopKind | None:
        """Without the ops in between, siblings that no observation tells apart may still feed each other."""
        if self._flow.knowledge is Knowledge.OPS:
            return LoopKind.PARFOR
        if self._seen_calls is None or len(paths) == 1:
            return None
        is_routed = self._modules.is_member[paths[0]] and self._seen_calls.are_routed(caller, paths)
        return LoopKind.PARFOR if is_routed or self._seen_calls.read_earlier_memory(caller, paths) else None

    def _may_stand_beside(self, caller: int, path: int, siblings: set[int]) -> bool:
        """Whether siblings may share a family without a chain. A leaf in a role (`q_proj`) has a name of its own."""
        if not self._modules.is_member[path] and (path not in self._callees or not self._flow.knowledge):
            return False
        return not any(other in siblings for other in self._flow.inflow(caller, path).needs if other != path)

    def _is_alike(self, path: int, next_path: int) -> bool:
        """Of one structure; in roles, leaves of different weights are different things: `lora_A` and `lora_B`."""
        if self._structure(path) != self._structure(next_path):
            return False
        is_leaf = path not in self._callees
        return not is_leaf or self._weights.get(self._paths[path]) == self._weights.get(self._paths[next_path])

    def _family(self, caller: int, paths: list[int], kind: LoopKind | None) -> SiblingFamily:
        # One expert that ran stands for its container if others may exist that the trace does not declare.
        may_be_more = not self._is_declared and self._modules.is_member[paths[0]]
        place = self._modules.container[paths[0]] if len(paths) > 1 or may_be_more else self._paths[paths[0]]
        return SiblingFamily(
            paths=tuple(paths),
            kind=kind if len(paths) > 1 else None,
            slot=self._slot(caller, place),
            class_name=self._modules.class_name[paths[0]],
            structure=self._structure(paths[0]),
        )

    def _slot(self, caller: int, place: str) -> str:
        """The place seen from the caller; a place outside the caller keeps its full name.

        A place next to the caller in the same member of a list, such as a layer, is seen from there: `../q_proj`.
        """
        above = "" if caller < 0 else self._paths[caller]
        if place == above:
            return ""
        below = f"{above}." if above else ""
        if place.startswith(below):
            return place.removeprefix(below)
        own, other = above.split("."), place.split(".")
        shared = next((at for at, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]), len(other))
        if not any(map(str.isdecimal, own[:shared])):
            return f"/{place}"
        return "../" * (len(own) - shared) + ".".join(other[shared:])

    def _with_untouched(self, caller: int, families: list[SiblingFamily]) -> Iterator[SiblingFamily]:
        """Hand members of a container that were never called to the largest family of their class there."""
        largest: dict[tuple[str, str], SiblingFamily] = {}
        for family in families:
            if self._modules.is_member[family.paths[0]]:
                place = (self._modules.container[family.paths[0]], family.class_name)
                if place not in largest or len(family.paths) > len(largest[place].paths):
                    largest[place] = family
        for family in families:
            place = (self._modules.container[family.paths[0]], family.class_name)
            untouched = self._untouched.get(place, ()) if largest.get(place) is family else ()
            yield self._joined(caller, family, tuple(untouched)) if untouched else family

    def _joined(self, caller: int, family: SiblingFamily, untouched: tuple[str, ...]) -> SiblingFamily:
        if self._by_name is not None:
            kind = self._by_name.kind(caller, family.paths, untouched)
        else:
            kind = LoopKind.PARFOR if self._flow.knowledge else None  # a chain runs all its members
        return replace(
            family,
            kind=family.kind or kind,
            slot=self._slot(caller, self._modules.container[family.paths[0]]),
            untouched=untouched,
        )


def _cut(paths: list[int], feeds: Callable[[int, int], bool]) -> list[list[int]]:
    """The paths in order, cut wherever one does not feed the next."""
    runs: list[list[int]] = []
    for path in paths:
        if runs and feeds(runs[-1][-1], path):
            runs[-1].append(path)
        else:
            runs.append([path])
    return runs


def _by(paths: Iterable[int], key: Callable[[int], object]) -> list[list[int]]:
    parts: dict[object, list[int]] = {}
    for path in paths:
        parts.setdefault(key(path), []).append(path)
    return list(parts.values())


def _untouched(graph: CallGraph) -> dict[tuple[str, str], list[str]]:
    """Container and class -> declared modules that nothing called."""
    by_class: dict[tuple[str, str], list[str]] = {}
    for path, class_name in graph.module_types.items():
        if path not in graph.call_counts and class_name != UNKNOWN_CLASS:
            by_class.setdefault((path.rpartition(".")[0], class_name), []).append(path)
    return by_class


def _weight_shapes(graph: CallGraph) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Module path -> shapes of the weights it holds itself."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for parameter in graph.parameters:
        shapes.setdefault(parameter.name.rpartition(".")[0], []).append(parameter.meta.shape)
    return {path: tuple(of_path) for path, of_path in shapes.items()}


# Whether siblings run side by side, judged from the tensors of their calls alone.
#
# A trace without the tensors of ops does not show what the caller did between two calls: one sibling may feed the next
# through a residual sum. Three observations rule that out: a sibling was left out, siblings got different numbers of
# rows, or all of them read memory that was there before the first of them ran.


class SideBySide:
    """The calls of one trace, by caller."""

    def __init__(self, graph: CallGraph, calls: CallColumns, tree: CallTree) -> None:
        self._shapes = [meta.shape for meta in graph.tensor_metas]
        self._calls = calls
        self._input_end = list(accumulate(calls.input_count))
        self._output_end = list(accumulate(calls.output_count))
        self._tree = tree
        self._calls_by_caller = CallsByCaller(tree)

    def are_routed(self, caller: int, siblings: Collection[int]) -> bool:
        """Whether some call of the caller left a sibling out, or gave them different numbers of rows.

        A chain runs all its members, and a residual sum keeps the number of rows.
        """
        members = frozenset(siblings)
        return any(
            len({self._tree.path[row] for row in rows}) < len(members) or self._differ_in_rows(rows)
            for _, rows in self._calls_by_caller.of(caller, members)
        )

    def read_earlier_memory(self, caller: int, siblings: Collection[int]) -> bool:
        """Whether in each call of the caller the siblings read only what it or the first of them was given."""
        verdicts = [
            rows[1:] and all(self._is_within(self._inputs(row), self._given(caller_row, rows[0])) for row in rows)
            for caller_row, rows in self._calls_by_caller.of(caller, frozenset(siblings))
        ]
        return bool(verdicts) and all(verdicts)

    def _differ_in_rows(self, rows: Sequence[int]) -> bool:
        """Whether the calls took and returned tensors that differ in the first dimension alone."""
        inputs, outputs = [self._first_input(row) for row in rows], [self._first_output(row) for row in rows]
        if not all(inputs) or len({shape[1:] for shape in inputs}) > 1 or len({shape[1:] for shape in outputs}) > 1:
            return False
        keeps_rows = all(taken[:1] == made[:1] for taken, made in zip(inputs, outputs, strict=True))
        return keeps_rows and len({shape[0] for shape in inputs}) > 1

    def _first_input(self, row: int) -> tuple[int, ...]:
        count, end = self._calls.input_count[row], self._input_end[row]
        return self._shapes[self._calls.input_metas[end - count]] if count else ()

    def _first_output(self, row: int) -> tuple[int, ...]:
        count, end = self._calls.output_count[row], self._output_end[row]
        return self._shapes[self._calls.output_metas[end - count]] if count else ()

    def _inputs(self, row: int) -> set[int]:
        count, end = self._calls.input_count[row], self._input_end[row]
        return set(self._calls.input_storages[end - count : end])

    def _given(self, caller_row: int, first_row: int) -> set[int]:
        return self._inputs(first_row) | (self._inputs(caller_row) if caller_row >= 0 else set())

    def _is_within(self, read: set[int], given: set[int]) -> bool:
        return bool(read) and read <= given
