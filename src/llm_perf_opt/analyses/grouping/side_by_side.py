"""Whether siblings run side by side, judged from the tensors of their calls alone.

A trace without the tensors of ops does not show what the caller did between two calls: one sibling may feed the next
through a residual sum. Three observations rule that out: a sibling was left out, siblings got different numbers of
rows, or all of them read memory that was there before the first of them ran.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate

from llm_perf_opt.analyses.grouping.call_tree import OUTSIDE, CallTree
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import CallColumns


class SideBySide:
    """The calls of one trace, by caller."""

    def __init__(self, graph: CallGraph, calls: CallColumns, tree: CallTree) -> None:
        self._shapes = [meta.shape for meta in graph.tensor_metas]
        self._calls = calls
        self._input_end = list(accumulate(calls.input_count))
        self._output_end = list(accumulate(calls.output_count))
        self._tree = tree
        self._rows_of: dict[int, list[int]] = {}
        for row in tree.children:
            self._rows_of.setdefault(tree.path[row] if row >= 0 else OUTSIDE, []).append(row)

    def are_routed(self, caller: int, siblings: Collection[int]) -> bool:
        """Whether some call of the caller left a sibling out, or gave them different numbers of rows.

        A chain runs all its members, and a residual sum keeps the number of rows.
        """
        members = frozenset(siblings)
        return any(
            len({self._tree.path[row] for row in rows}) < len(members) or self._differ_in_rows(rows)
            for _, rows in self._calls_of(caller, members)
        )

    def read_earlier_memory(self, caller: int, siblings: Collection[int]) -> bool:
        """Whether in each call of the caller the siblings read only what it or the first of them was given."""
        found = [
            rows[1:] and all(self._is_within(self._inputs(row), self._given(caller_row, rows[0])) for row in rows)
            for caller_row, rows in self._calls_of(caller, frozenset(siblings))
        ]
        return bool(found) and all(found)

    def _calls_of(self, caller: int, members: frozenset[int]) -> Iterator[tuple[int, list[int]]]:
        """The calls of members, by call of the caller."""
        for caller_row in self._rows_of.get(caller, ()):
            rows = [row for row in self._tree.children[caller_row] if self._tree.path[row] in members]
            if rows:
                yield caller_row, rows

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
