"""A trace with its loops run another number of times: which rows there are then, and which memory they use.

A block refers to what it made itself, to what the block before it or the first one made, and to what was there before
the loop. So a trace of a few blocks says what a trace of many is, and one of all experts what one of fewer is. What
refers to a loop in any other way cannot be unfolded.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.costs.memory.live_memory import MADE_ORIGINS
from llm_perf_opt.sweeps.function.program.alignment import storages_of
from llm_perf_opt.sweeps.function.program.loop_memory import (
    Irregular,
    ListFacts,
    Lists,
    MemoryHomes,
    Moves,
    NewMemory,
    Numbers,
    Row,
    Rows,
    RowTensor,
    as_column,
    homes_of,
    moved_rows,
)
from llm_perf_opt.sweeps.function.program.loops import Loop

_MOVED, _LATER, _LAST_BLOCK, _FIRST_BLOCK, _IRREGULAR = range(5)  # when memory is freed


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorsOfRows:
    """The tensors of new rows: the tensors of the old row, one for one, except for lists over a loop."""

    counts: array[int]  # per row
    storages: array[int]  # of all rows, one after the other
    listed: Mapping[int, tuple[RowTensor, ...]]  # new row -> its tensors

    @cached_property
    def _starts(self) -> list[int]:
        return offsets_of(self.counts)

    def of_row(self, new: int, row: Row) -> tuple[RowTensor, ...]:
        """The tensors of one row."""
        listed = self.listed.get(new)
        if listed is not None:
            return listed
        storages = self.storages[self._starts[new] : self._starts[new + 1]]
        return tuple(RowTensor(at, at, row.loop, row.block, storage) for at, storage in enumerate(storages))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unfolded:
    """New rows of ops, calls and memory, and what each refers to."""

    ops: Rows
    op_calls: array[int]
    op_inputs: TensorsOfRows
    op_outputs: TensorsOfRows
    calls: Rows
    parents: array[int]
    first_op: array[int]
    end_op: array[int]
    call_inputs: TensorsOfRows
    call_outputs: TensorsOfRows
    storages: Rows
    born_op: array[int]
    freed_op: array[int]
    new_storage: Numbers  # of memory that belongs to no block; -1 of all other
    loop_ops: tuple[int, ...]  # per loop its first op
    loop_calls: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Tensors:
    """A column of tensors in the old rows; `listed` says which rows may hold a list over a loop."""

    storages: array[int]
    offsets: Sequence[int]
    numbers: Numbers
    starts: Numbers
    listed: Numbers


class Unfolding:
    """A trace and its loops, ready to be unfolded to any numbers of blocks."""

    def __init__(self, graph: CallGraph, loops: Sequence[Loop]) -> None:
        self._graph, self._loops = graph, loops
        self._ops, self._calls, self._storages = ops_of(graph), calls_of(graph), storages_of(graph)
        homes = homes_of(graph, loops)
        self._homes = MemoryHomes(homes, len(self._storages.origin), loops)
        self._lists = ListFacts(graph, loops, homes)
        self._op_spans = [(loop.first_op, loop.length) for loop in loops]
        self._call_spans = [(loop.first_call, loop.calls) for loop in loops]
        op_loops = self._loop_of_rows(len(self._ops.kind), self._op_spans)
        call_loops = self._loop_of_rows(len(self._calls.path), self._call_spans)
        calls, lists = self._calls, self._lists
        self._op_inputs = self._tensors(self._ops.input_storages, lists.starts, op_loops, lists.joining)
        self._op_outputs = self._tensors(self._ops.output_storages, lists.ends, op_loops, lists.cutting)
        self._call_inputs = self._tensors(calls.input_storages, offsets_of(calls.input_count), call_loops)
        self._call_outputs = self._tensors(calls.output_storages, offsets_of(calls.output_count), call_loops)
        self._firsts, self._lengths, self._blocks = (
            np.array([*(getattr(loop, name) for loop in loops), 0], np.int64)  # 0: what no loop has
            for name in ("first_op", "length", "blocks")
        )
        self._is_made = np.array([origin in MADE_ORIGINS for origin in self._storages.origin], bool)
        self._find_ends()

    def _loop_of_rows(self, total: int, spans: Sequence[tuple[int, int]]) -> Numbers:
        loop_of_row = np.full(total, -1, np.int64)
        for number, (first, length) in enumerate(spans):
            loop_of_row[first : first + length * self._loops[number].blocks] = number
        return loop_of_row

    def _tensors(
        self, storages: array[int], offsets: Sequence[int], loops: Numbers, lists: Iterable[int] = ()
    ) -> _Tensors:
        numbers, starts = np.asarray(storages, np.int64), np.asarray(offsets, np.int64)
        rows = np.repeat(np.arange(len(loops)), np.diff(starts))
        homes = np.where(numbers >= 0, self._homes.loop[numbers], -1) if len(numbers) else numbers
        listed = np.zeros(len(loops), np.int64)
        listed[rows[(homes >= 0) & (homes != loops[rows])]] = 1  # it uses what a loop made that it is not in
        outside = [row for row in lists if loops[row] < 0]
        listed[outside] = 1
        return _Tensors(storages, offsets, numbers, starts, listed)

    def _find_ends(self) -> None:
        """Of each block of memory the loop, the block and the place in it of its last op; -1: that is outside loops."""
        last_op = np.asarray(self._storages.freed_op, np.int64) - 1
        self._end_loop, self._end_block, self._end_at = (np.full(len(last_op), -1, np.int64) for _ in range(3))
        for number, loop in enumerate(self._loops):
            inside = np.flatnonzero((last_op >= loop.first_op) & (last_op < loop.end_op))
            self._end_loop[inside] = number
            self._end_block[inside], self._end_at[inside] = np.divmod(last_op[inside] - loop.first_op, loop.length)
        self._ending = np.full(len(last_op), _MOVED, np.int64)
        self._later = np.zeros(len(last_op), np.int64)
        for row in np.flatnonzero((self._homes.loop >= 0) & (self._end_loop >= 0)).tolist():
            self._ending[row], self._later[row] = self._ending_of(row)

    def _ending_of(self, row: int) -> tuple[int, int]:
        """When memory of a block is freed: which rule, and how many blocks later."""
        homes = self._homes
        home, number, block = int(homes.loop[row]), int(self._end_loop[row]), int(self._end_block[row])
        if number != home and not self._lists.run_alike(number, home):
            return _MOVED, 0  # no block of the other loop corresponds to this one
        last, of = int(self._blocks[number]) - 1, int(homes.block[row])
        later = block - of
        if later and block == last:  # the block after it, or the end of the loop: as for the block before it
            before = homes.rows[home][of - 1, homes.place[row]] if of else -1
            later = 1 if later == 1 and before >= 0 and self._end_block[before] < last else -1
        if later in (0, 1):
            return _LATER, later
        if block == last:
            return _LAST_BLOCK, 0
        return (_FIRST_BLOCK if number != home and block == 0 else _IRREGULAR), 0

    def rows(self, counts: Sequence[int]) -> Unfolded:
        """The trace in which each loop runs this many times, at least two (one, where blocks are experts')."""
        # Two at least, as the first and the last block are not alike; of experts any one may be the only one with rows.
        for loop, count in zip(self._loops, counts, strict=True):
            if count < (1 if loop.routed else 2) or (loop.routed and count > loop.blocks):
                raise Irregular(f"a loop that runs {count} times")
        ops = moved_rows(len(self._ops.kind), self._op_spans, self._loops, counts)
        calls = moved_rows(len(self._calls.path), self._call_spans, self._loops, counts)
        storages = self._homes.new_rows(counts)
        memory = NewMemory(self._homes, storages, counts)
        lists = Lists(self._lists, counts, memory)

        def tensors(
            rows: Rows, column: _Tensors, views: Callable[[Row], tuple[RowTensor, ...]] | None
        ) -> TensorsOfRows:
            return self._new_tensors(rows, column, memory, lists, views)

        def views(row: Row) -> tuple[RowTensor, ...]:
            is_cut = row.loop < 0 and row.what in self._lists.cutting
            return lists.views(row, self._lists.ends) if is_cut else ()

        return Unfolded(
            ops=ops.rows,
            op_calls=self._new_calls(np.asarray(self._ops.call, np.int64), ops.rows, calls),
            op_inputs=tensors(ops.rows, self._op_inputs, None),
            op_outputs=tensors(ops.rows, self._op_outputs, views),
            calls=calls.rows,
            parents=self._new_calls(np.asarray(self._calls.parent, np.int64), calls.rows, calls),
            first_op=self._edges(np.asarray(self._calls.first_op, np.int64), calls.rows, ops),
            end_op=self._edges(np.asarray(self._calls.end_op, np.int64), calls.rows, ops),
            call_inputs=tensors(calls.rows, self._call_inputs, None),
            call_outputs=tensors(calls.rows, self._call_outputs, None),
            storages=storages,
            born_op=self._born(storages, ops),
            freed_op=self._freed(storages, ops, counts),
            new_storage=memory.fixed,
            loop_ops=tuple(ops.firsts.tolist()),
            loop_calls=tuple(calls.firsts.tolist()),
        )

    def _new_tensors(
        self,
        rows: Rows,
        column: _Tensors,
        memory: NewMemory,
        lists: Lists,
        views: Callable[[Row], tuple[RowTensor, ...]] | None,
    ) -> TensorsOfRows:
        """The tensors of new rows; rows that may hold a list are searched one by one."""
        counts = column.starts[rows.where + 1] - column.starts[rows.where]
        if (column.starts[rows.what + 1] - column.starts[rows.what] < counts).any():
            raise Irregular("a block that uses less memory than others")
        # Rows without lists are gathered as columns, all at once. The few others take no part in that (`plain` is 0 for
        # them) and are put in between afterwards.
        may_list = column.listed[rows.where] > 0
        plain = np.where(may_list, 0, counts)
        row = np.repeat(np.arange(len(rows)), plain)
        within = np.arange(len(row)) - np.repeat(np.cumsum(plain) - plain, plain)
        plain_storages = self._plain(rows, row, column, within, memory)
        listed: dict[int, tuple[RowTensor, ...]] = {}
        parts: list[Numbers] = []
        done = 0
        ends = np.cumsum(plain)
        for new in np.flatnonzero(may_list).tolist():
            at = Row(*(int(column_values[new]) for column_values in rows.columns))
            entries = (views(at) if views else ()) or tuple(
                lists.entries(at, int(rows.old[new]), column.storages, column.offsets)
            )
            parts += [plain_storages[done : ends[new]], np.array([entry.storage for entry in entries], np.int64)]
            done, counts[new] = int(ends[new]), len(entries)
            if any(entry[:4] != (place, place, at.loop, at.block) for place, entry in enumerate(entries)):
                listed[new] = entries
        storages = np.concatenate([*parts, plain_storages[done:]])
        return TensorsOfRows(counts=as_column(counts), storages=as_column(storages), listed=listed)

    def _plain(self, rows: Rows, row: Numbers, column: _Tensors, within: Numbers, memory: NewMemory) -> Numbers:
        """The memory of tensors that no loop made, or that the loop made in which the row is."""
        homes = self._homes
        where = column.numbers[column.starts[rows.where[row]] + within]
        what = column.numbers[column.starts[rows.what[row]] + within]
        is_of_loop = (where >= 0) & (homes.loop[where] >= 0)
        if (memory.fixed[what[~is_of_loop & (what >= 0)]] < 0).any():
            raise Irregular("a block uses what another block made in the place of what was there before")
        storages: Numbers = np.where(what < 0, what, memory.fixed[what])
        inside, of = row[is_of_loop], where[is_of_loop]
        blocks, olds, new = homes.block[of], rows.old[inside], rows.block[inside]
        # Memory of the same block, of the one before it (a scan), or of the first one (made once, used by all).
        is_before = blocks == olds - 1
        if ((blocks != olds) & ~(is_before & (new > 0)) & ((blocks != 0) | is_before)).any():
            raise Irregular("a block uses what a block far before it made")
        block = np.where(blocks == olds, new, np.where(is_before, new - 1, 0))
        storages[is_of_loop] = memory.of_block(homes.loop[of], block, homes.place[of])
        return storages

    def _new_calls(self, column: Numbers, rows: Rows, moves: Moves) -> array[int]:
        """The calls in which rows run."""
        old = column[rows.where]
        calls = np.where(old < 0, old, moves.outside(np.maximum(old, 0)))
        for number, loop in enumerate(self._loops):
            inside = np.flatnonzero((rows.loop == number) & (old >= loop.first_call) & (old < loop.end_call))
            if len(inside):
                begin = moves.firsts[number] + rows.block[inside] * loop.calls
                calls[inside] = begin + (old[inside] - loop.first_call) % loop.calls
        return as_column(calls)

    def _edges(self, column: Numbers, rows: Rows, ops: Moves) -> array[int]:
        """The new rows of the ops at which calls begin or end."""
        old, is_in_loop = column[rows.where], rows.loop >= 0
        for loop in self._loops:
            if (~is_in_loop & (old > loop.first_op) & (old < loop.end_op)).any():
                raise Irregular("something begins or ends in the midst of a loop")
        edges = ops.outside(old)
        loops = rows.loop[is_in_loop]
        in_block = old[is_in_loop] - self._firsts[loops] - rows.old[is_in_loop] * self._lengths[loops]
        edges[is_in_loop] = ops.firsts[loops] + rows.block[is_in_loop] * self._lengths[loops] + in_block
        return as_column(edges)

    def _born(self, rows: Rows, ops: Moves) -> array[int]:
        born = np.asarray(self._storages.born_op, np.int64)[rows.where]
        born_ops, inside = ops.outside(born), (rows.loop >= 0) & self._is_made[rows.where]
        loops = rows.loop[inside]
        in_block = (born[inside] - self._firsts[loops]) % self._lengths[loops]
        born_ops[inside] = ops.firsts[loops] + rows.block[inside] * self._lengths[loops] + in_block
        return as_column(born_ops)

    def _freed(self, rows: Rows, ops: Moves, counts: Sequence[int]) -> array[int]:
        """With the block that last uses it, or where the op is now that does; in a loop it is of the first or last."""
        ending, number, at = self._ending[rows.where], self._end_loop[rows.where], self._end_at[rows.where]
        if (ending == _IRREGULAR).any():
            raise Irregular("memory of a block that lives for some blocks more")
        last = np.array([*counts, 0], np.int64)[number] - 1
        block = np.where(
            ending == _LATER, rows.block + self._later[rows.where], np.where(ending == _LAST_BLOCK, last, 0)
        )
        freed = np.asarray(self._storages.freed_op, np.int64)[rows.where]
        is_moved = ending == _MOVED
        firsts, ends = self._firsts[number], self._firsts[number] + self._lengths[number] * self._blocks[number]
        crosses = is_moved & (number >= 0) & (freed > firsts) & (freed < ends)
        old = self._end_block[rows.where]
        if (crosses & (old != 0) & (old != self._blocks[number] - 1)).any():
            raise Irregular("something begins or ends in the midst of a loop")
        # Memory from elsewhere that a loop frees: by its first block or by its last one, which exist at every count.
        block = np.where(crosses, np.where(old == 0, 0, last), block)
        freed_ops = ops.outside(freed)
        inside = ~is_moved | crosses
        loops = number[inside]
        freed_ops[inside] = ops.firsts[loops] + block[inside] * self._lengths[loops] + at[inside] + 1
        return as_column(freed_ops)


def unfold(graph: CallGraph, loops: Sequence[Loop], counts: Sequence[int]) -> Unfolded:
    """The trace in which each loop runs this many times, at least two (one, where blocks are experts')."""
    return Unfolding(graph, loops).rows(counts)


def offsets_of(counts: Iterable[int]) -> list[int]:
    """Where the entries of each row begin, and at last where all of them end."""
    return list(accumulate(counts, initial=0))
