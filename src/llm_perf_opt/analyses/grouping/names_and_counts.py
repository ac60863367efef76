"""Loops over numbered siblings where a trace shows no data flow: a reading of names, classes and counts.

It is weaker evidence than tensors, and the caption says so. Numbered siblings of one class that each run once per call
of their caller are taken for a chain if their container is named as a stack is, or is itself called: heads and pyramids
of feature maps are numbered too, and run side by side. Siblings that run unequally often, that a caller leaves out, or
that stand beside a router are taken for experts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.grouping.call_tree import OUTSIDE, CallTree, Modules
from llm_perf_opt.core.graph_view import LoopKind

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
        self._rows_of: dict[int, list[int]] = {}
        for row in tree.children:
            self._rows_of.setdefault(tree.path[row] if row >= 0 else OUTSIDE, []).append(row)

    def in_order(self, siblings: Sequence[int]) -> list[int]:
        """As they ran, or else by number."""
        return list(siblings) if self._is_ordered else sorted(siblings, key=lambda path: self._number(path) or 0)

    def is_next(self, path: int, next_path: int) -> bool:
        """Whether the second has the number after that of the first."""
        number, following = self._number(path), self._number(next_path)
        return number is not None and following is not None and following == number + 1

    def kind(self, caller: int, siblings: Sequence[int], untouched: Sequence[str] = ()) -> LoopKind | None:
        """How siblings of one class in one container repeat; None where nothing tells."""
        if any(self._number(path) is None for path in siblings) or len(siblings) + len(untouched) < 2:
            return None
        if self._is_routed_by_name(caller, siblings):
            return LoopKind.PARFOR
        members = frozenset(siblings)
        calls = list(self._calls_of(caller, members))
        if not all(self._runs_each_once(caller_row, rows, members) for caller_row, rows in calls):
            return LoopKind.PARFOR if self._is_unequal(calls, members) else None
        if self._has_gap(siblings, untouched):
            return LoopKind.PARFOR
        return LoopKind.FOR if self._is_stack(self._modules.container[siblings[0]]) else None

    def _is_routed_by_name(self, caller: int, siblings: Sequence[int]) -> bool:
        container = self._modules.container[siblings[0]]
        if _EXPERTS in container.rpartition(".")[2].lower():
            return True
        rows = self._rows_of.get(caller, ())
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

    def _calls_of(self, caller: int, members: frozenset[int]) -> Iterator[tuple[int, list[int]]]:
        for caller_row in self._rows_of.get(caller, ()):
            rows = [row for row in self._tree.children[caller_row] if self._tree.path[row] in members]
            if rows:
                yield caller_row, rows

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
