"""A trace with its loops run another number of times: which rows there are then, and which memory they use.

A block refers to what it made itself, to what the block before it or the first one made, and to what was there before
the loop. So a trace of a few blocks says what a trace of many is, and one of all experts what one of fewer is. What
refers to a loop in any other way cannot be unfolded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import NamedTuple

from llm_perf_opt.analyses.function.program.alignment import storages_of
from llm_perf_opt.analyses.function.program.loop_memory import Home, Irregular, homes_of
from llm_perf_opt.analyses.function.program.loops import Loop
from llm_perf_opt.analyses.memory.live_memory import MADE_ORIGINS
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, tensor_offsets

_NO_HOME = Home(-1, -1, -1)
_JOINS = ("aten.cat.", "aten.stack.")
CUTS = ("aten.unbind.", "aten.split.", "aten.split_with_sizes.", "aten.chunk.", "aten.tensor_split.")


class Row(NamedTuple):
    """A new row: the old row that says what it is, the one that says where it stands, its loop (or -1) and block."""

    what: int
    where: int
    loop: int
    block: int


class Entry(NamedTuple):
    """A tensor of a new row: which of the old row's it is, the loop and block that its size is of, its new memory.

    `slot` is the same for tensors that stand for each other in the blocks of a loop.
    """

    place: int
    slot: int
    loop: int
    block: int
    storage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfolded:
    """New rows of ops, calls and memory, and what each refers to."""

    ops: tuple[Row, ...]
    op_calls: array[int]
    op_inputs: tuple[tuple[Entry, ...], ...]
    op_outputs: tuple[tuple[Entry, ...], ...]
    calls: tuple[Row, ...]
    parents: array[int]
    first_op: array[int]
    end_op: array[int]
    call_inputs: tuple[tuple[Entry, ...], ...]
    call_outputs: tuple[tuple[Entry, ...], ...]
    storages: tuple[Row, ...]
    born_op: array[int]
    freed_op: array[int]
    new_storage: dict[int, int]  # of memory that belongs to no block
    loop_ops: tuple[int, ...]  # per loop its first op
    loop_calls: tuple[int, ...]


def unfold(graph: CallGraph, loops: Sequence[Loop], counts: Sequence[int]) -> Unfolded:
    """The trace in which each loop runs so many times, at least two (one, where blocks are experts')."""
    for loop, count in zip(loops, counts, strict=True):
        if count < (1 if loop.routed else 2) or (loop.routed and count > loop.blocks):
            raise Irregular(f"a loop that runs {count} times")
    return _Unfolding(graph, loops, counts).result()


class _Unfolding:
    def __init__(self, graph: CallGraph, loops: Sequence[Loop], counts: Sequence[int]) -> None:
        self._graph, self._loops, self._counts = graph, loops, counts
        self._ops, self._calls, self._storages = ops_of(graph), calls_of(graph), storages_of(graph)
        self._count = len(self._ops.kind)
        self._homes = homes_of(graph, loops)
        self._rows_at = {home: row for row, home in self._homes.items()}
        op_spans = [(one.first_op, one.length) for one in loops]
        self._op_rows, self._op_first, self._op_shift = self._rows(self._count, op_spans)
        call_spans = [(one.first_call, one.calls) for one in loops]
        self._call_rows, self._call_first, self._call_shift = self._rows(len(self._calls.path), call_spans)
        self._storage_rows = tuple(self._new_storages())
        self._read: dict[int, frozenset[int]] = {}  # per loop the memory that its first block reads
        self._fixed: dict[int, int] = {}
        self._of_block: dict[tuple[int, int, int], int] = {}
        for new, row in enumerate(self._storage_rows):
            home = self._homes.get(row.where)
            if home is None:
                self._fixed[row.what] = new
            else:
                self._of_block[home.loop, row.block, home.place] = new

    def result(self) -> Unfolded:
        starts, ends = tensor_offsets(self._graph)
        op_inputs = self._tensors(self._op_rows, self._ops.input_storages, starts)
        op_outputs = tuple(
            self._views(row, ends) or tuple(self._entries(row, self._ops.output_storages, ends))
            for row in self._op_rows
        )
        calls = self._calls
        call_inputs = self._tensors(self._call_rows, calls.input_storages, offsets_of(calls.input_count))
        call_outputs = self._tensors(self._call_rows, calls.output_storages, offsets_of(calls.output_count))
        return Unfolded(
            ops=self._op_rows,
            op_calls=array("q", (self._call_of(self._ops.call[row.where], row) for row in self._op_rows)),
            op_inputs=op_inputs,
            op_outputs=op_outputs,
            calls=self._call_rows,
            parents=array("q", (self._call_of(calls.parent[row.where], row) for row in self._call_rows)),
            first_op=array("q", (self._edge(calls.first_op[row.where], row) for row in self._call_rows)),
            end_op=array("q", (self._edge(calls.end_op[row.where], row) for row in self._call_rows)),
            call_inputs=call_inputs,
            call_outputs=call_outputs,
            storages=self._storage_rows,
            born_op=array("q", (self._born(row) for row in self._storage_rows)),
            freed_op=array("q", (self._freed(row) for row in self._storage_rows)),
            new_storage=self._fixed,
            loop_ops=tuple(self._op_first),
            loop_calls=tuple(self._call_first),
        )

    def _sources(self, number: int) -> Iterator[tuple[int, int]]:
        """Per new block the old block that says what it is, and the one that says where it stands."""
        loop, count = self._loops[number], self._counts[number]
        last = loop.blocks - 1
        for block in range(count):
            if loop.routed is not None:
                yield block, last if block == count - 1 else block
            else:
                old = last if block == count - 1 else min(block, 2, last - 1)
                yield old, old

    def _rows(
        self, total: int, spans: Sequence[tuple[int, int]]
    ) -> tuple[tuple[Row, ...], list[int], list[tuple[int, int]]]:
        """New rows; per loop its first new row; and from which old row on rows move by how much."""
        rows: list[Row] = []
        firsts, shifts, done = [0] * len(spans), [(0, 0)], 0
        for number in sorted(range(len(spans)), key=lambda one: spans[one][0]):
            first, length = spans[number]
            rows.extend(Row(row, row, -1, -1) for row in range(done, first))
            firsts[number] = len(rows)
            for block, (what, where) in enumerate(self._sources(number)):
                rows.extend(
                    Row(first + what * length + at, first + where * length + at, number, block) for at in range(length)
                )
            done = first + length * self._loops[number].blocks
            shifts.append((done, len(rows) - done))
        rows.extend(Row(row, row, -1, -1) for row in range(done, total))
        return tuple(rows), firsts, shifts

    def _new_storages(self) -> Iterator[Row]:
        """Memory in the order of the old rows; that of a block that runs more often once for each time."""
        rows = self._rows_at
        sources = [list(self._sources(number)) for number in range(len(self._loops))]
        groups = groupby(range(len(self._storages.origin)), key=lambda row: (self._homes.get(row) or _NO_HOME)[:2])
        for (loop, old), group in groups:
            if loop < 0:
                yield from (Row(row, row, -1, -1) for row in group)
                continue
            members = [(row, self._homes[row].place) for row in group]
            for block, (what, where) in enumerate(sources[loop]):
                if where == old:
                    yield from (Row(rows[Home(loop, what, place)], row, loop, block) for row, place in members)

    def _outside(self, row: int, shifts: Sequence[tuple[int, int]]) -> int:
        return row + next(by for begin, by in reversed(shifts) if begin <= row)

    def _block_of(self, home: Home, row: Row, old_block: int) -> int:
        """The new block whose memory a row of a loop uses."""
        last = self._loops[home.loop].blocks - 1
        if home.loop != row.loop:
            if home.block == old_block and self._run_alike(home.loop, row.loop):
                return row.block
            if home.block in (0, last):
                return 0 if home.block == 0 else self._counts[home.loop] - 1
            raise Irregular("something uses one block of a loop")
        if home.block == old_block:
            return row.block
        if home.block == old_block - 1:
            return row.block - 1
        if home.block == 0:
            return 0
        raise Irregular("a block uses what a block far before it made")

    def _run_alike(self, one: int, other: int) -> bool:
        """Whether two loops have a block for each of the same things, so that one may go on where the other ended."""
        if one < 0 or other < 0:
            return False
        left, right = self._loops[one], self._loops[other]
        return left.count == right.count and left.blocks == right.blocks and not left.routed and not right.routed

    def _old_block(self, row: Row) -> int:
        """The old block in which a row of a loop stands; the row may be an op's or a call's or of memory."""
        loop = self._loops[row.loop]
        last = loop.blocks - 1
        if row.block == self._counts[row.loop] - 1:
            return last
        return row.block if loop.routed is not None else min(row.block, 2, last - 1)

    def _tensors(
        self, rows: Sequence[Row], storages: Sequence[int], offsets: Sequence[int]
    ) -> tuple[tuple[Entry, ...], ...]:
        return tuple(tuple(self._entries(row, storages, offsets)) for row in rows)

    def _entries(self, row: Row, storages: Sequence[int], offsets: Sequence[int]) -> Iterator[Entry]:
        what, where = (storages[offsets[one] : offsets[one + 1]] for one in (row.what, row.where))
        if row.what == row.where and not any(one in self._homes for one in where):
            if (joined := self._joined(row, where)) and storages is self._ops.input_storages:
                yield from joined
                return
            yield from (
                Entry(at, at, row.loop, row.block, self._fixed[one] if one >= 0 else one)
                for at, one in enumerate(where)
            )
            return
        old_block, at = self._old_block(row) if row.loop >= 0 else -1, 0
        while at < len(where):
            home = self._homes.get(where[at])
            if home is None:
                yield Entry(at, at, row.loop, row.block, what[at] if what[at] < 0 else self._fixed[what[at]])
                at += 1
                continue
            length = self._list_length(where, at, home.loop) if home.loop != row.loop else 0
            if length:
                yield from self._list(where, at, length, home.loop)
                at += length
                continue
            block = self._block_of(home, row, old_block)
            yield Entry(at, at, row.loop, row.block, self._of_block[home.loop, block, home.place])
            at += 1

    def _list_length(self, storages: Sequence[int], at: int, loop: int) -> int:
        """How many entries from here on are of all blocks of a loop, one block after the other; 0: it is no list."""
        blocks: list[int] = []
        for one in storages[at:]:
            home = self._homes.get(one)
            if home is None or home.loop != loop or (blocks and home.block < blocks[-1]):
                break
            blocks.append(home.block)
        each, rest = divmod(len(blocks), self._loops[loop].blocks)
        is_list = each and not rest and blocks == [place // each for place in range(len(blocks))]
        return len(blocks) if is_list else 0

    def _list(self, storages: Sequence[int], at: int, length: int, loop: int) -> Iterator[Entry]:
        each = length // self._loops[loop].blocks
        for block, (what, _) in enumerate(self._sources(loop)):
            for slot in range(at, at + each):
                place = slot + what * each
                home = self._homes[storages[place]]
                yield Entry(place, slot, loop, block, self._of_block[loop, block, home.place])

    def _views(self, row: Row, offsets: Sequence[int]) -> tuple[Entry, ...]:
        """The outputs of an op that cuts a tensor into one view for each block of a loop; else nothing."""
        outputs = self._ops.output_storages[offsets[row.what] : offsets[row.what + 1]]
        if row.loop >= 0 or len(outputs) < 2 or not self._name(row.what).startswith(CUTS):
            return ()
        ahead = [number for number, loop in enumerate(self._loops) if loop.first_op > row.what and loop.length]
        after = min(ahead, key=lambda one: self._loops[one].first_op, default=-1)
        if after >= 0 and self._loops[after].routed and self._loops[after].blocks == len(outputs):
            return self._one_for_each_block(outputs[0], after)
        return self._one_of_each(outputs, is_listed=(outputs[0], len(outputs)) in self._lists[1])

    def _joined(self, row: Row, inputs: Sequence[int]) -> tuple[Entry, ...]:
        """The inputs of an op that joins one view of a tensor for each block of a loop; else nothing."""
        if row.loop >= 0 or len(inputs) < 2 or len(set(inputs)) > 1:
            return ()
        if not self._name(row.what).startswith(_JOINS):
            return ()
        return self._one_of_each(inputs, is_listed=(inputs[0], len(inputs)) in self._lists[0])

    def _one_of_each(self, storages: Sequence[int], *, is_listed: bool) -> tuple[Entry, ...]:
        """Views of one tensor, as many as a loop that uses it has blocks, or as an op before or after it has."""
        fitting = [
            n for n, one in enumerate(self._loops) if not one.routed and one.length and one.blocks == len(storages)
        ]
        using = [number for number in fitting if storages[0] in self._read_in_first_block(number)]
        number = next(iter(using or (fitting if is_listed else ())), -1)
        return self._one_for_each_block(storages[0], number) if number >= 0 else ()

    def _one_for_each_block(self, storage: int, number: int) -> tuple[Entry, ...]:
        new, sources = self._fixed[storage], enumerate(self._sources(number))
        return tuple(Entry(what, 0, number, block, new) for block, (what, _) in sources)

    def _name(self, op: int) -> str:
        return self._graph.op_kinds[self._ops.kind[op]].name

    @cached_property
    def _lists(self) -> tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]]]:
        """The tensors that ops cut into views, and those whose views ops join: memory, and how many."""
        starts, ends = tensor_offsets(self._graph)
        columns = (CUTS, self._ops.output_storages, ends), (_JOINS, self._ops.input_storages, starts)
        found: list[frozenset[tuple[int, int]]] = []
        for names, column, offsets in columns:
            rows = (row for row in range(self._count) if self._name(row).startswith(names))
            tensors = (column[offsets[row] : offsets[row + 1]] for row in rows)
            found.append(frozenset((one[0], len(one)) for one in tensors if len(one) > 1 and len(set(one)) == 1))
        return found[0], found[1]

    def _read_in_first_block(self, number: int) -> frozenset[int]:
        if number not in self._read:
            loop, (starts, _) = self._loops[number], tensor_offsets(self._graph)
            rows = slice(starts[loop.first_op], starts[loop.first_op + loop.length])
            self._read[number] = frozenset(self._ops.input_storages[rows])
        return self._read[number]

    def _call_of(self, call: int, row: Row) -> int:
        if call < 0:
            return call
        if row.loop >= 0:
            loop = self._loops[row.loop]
            if loop.first_call <= call < loop.end_call:
                return self._call_first[row.loop] + row.block * loop.calls + (call - loop.first_call) % loop.calls
        return self._outside(call, self._call_shift)

    def _edge(self, op: int, row: Row) -> int:
        """The new row of the op at which a call begins or ends."""
        if row.loop >= 0:
            loop = self._loops[row.loop]
            in_block = op - loop.first_op - self._old_block(row) * loop.length
            return self._op_first[row.loop] + row.block * loop.length + in_block
        return self._moved(op, may_be_inside=False)

    def _born(self, row: Row) -> int:
        born = self._storages.born_op[row.where]
        if row.loop < 0 or self._storages.origin[row.where] not in MADE_ORIGINS:
            return self._outside(born, self._op_shift)
        loop = self._loops[row.loop]
        return self._op_first[row.loop] + row.block * loop.length + (born - loop.first_op) % loop.length

    def _freed(self, row: Row) -> int:
        home = self._homes.get(row.where)
        number, block, at = self._last_use(row.where)
        if home is None or not (number == home.loop or self._run_alike(number, home.loop)):
            return self._moved(self._storages.freed_op[row.where], may_be_inside=True)
        loop, last = self._loops[number], self._loops[number].blocks - 1
        later = block - home.block
        if later and block == last:  # the block after it, or the end of the loop: as for the block before it
            before = self._rows_at.get(Home(home.loop, home.block - 1, home.place))
            later = 1 if later == 1 and before is not None and self._last_use(before)[1] < last else -1
        if later in (0, 1):
            new = row.block + later
        elif block == last:
            new = self._counts[number] - 1
        elif number != home.loop and block == 0:
            new = 0
        else:
            raise Irregular("memory of a block that lives for some blocks more")
        return self._op_first[number] + new * loop.length + at + 1

    def _last_use(self, storage: int) -> tuple[int, int, int]:
        """The loop, the block and the place in it of the last op that sees a block of memory; -1: outside loops."""
        op = self._storages.freed_op[storage] - 1
        for number, loop in enumerate(self._loops):
            if loop.first_op <= op < loop.end_op:
                return number, *divmod(op - loop.first_op, loop.length)
        return -1, -1, -1

    def _moved(self, op: int, *, may_be_inside: bool) -> int:
        """The new row of an op that does not move with a block; inside a loop it is of its first block or its last."""
        for number, loop in enumerate(self._loops):
            if loop.first_op < op < loop.end_op:
                block, at = divmod(op - 1 - loop.first_op, loop.length)
                if not may_be_inside or block not in (0, loop.blocks - 1):
                    raise Irregular("something begins or ends in the midst of a loop")
                new = 0 if block == 0 else self._counts[number] - 1
                return self._op_first[number] + new * loop.length + at + 1
        return self._outside(op, self._op_shift)


def offsets_of(counts: Iterable[int]) -> list[int]:
    """Where the entries of each row begin, and at last where all of them end."""
    return list(accumulate(counts, initial=0))
