"""Which memory belongs to which block of a loop: what the block makes, and what the model is given for it.

A model that is given a list of images, one for each sequence, has memory for each before the loop begins. The list may
stand there by_block, as in a decode step: then the loop has no ops, and still as many blocks.

Ops and calls outside a loop may have lists of what its blocks made, which are as long as the loop runs: `stack` of one
result for each sequence, `split` into the rows of each expert.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import call_tensors, calls_of, ops_of, tensor_offsets
from llm_perf_opt.costs.memory.live_memory import MADE_ORIGINS
from llm_perf_opt.sweeps.function.program.alignment import storages_of
from llm_perf_opt.sweeps.function.program.loops import Loop, Repeats

_EXTERNAL = "external"
GIVEN_ORIGINS = frozenset({"input", _EXTERNAL})
_LARGEST_UNIT = 8  # tensors that a list holds for each block


class Irregular(Exception):
    """A loop with blocks that are not all alike."""


class Home(NamedTuple):
    """The loop and the block that a block of memory belongs to, and which of that block's it is."""

    loop: int
    block: int
    place: int


def homes_of(graph: CallGraph, loops: Sequence[Loop]) -> dict[int, Home]:
    """Row of memory -> where it belongs, for all that belongs to a block."""
    storages = storages_of(graph)
    home_of: dict[int, tuple[int, int]] = {}
    for number, loop in enumerate(loops):
        home_of |= {row: (number, block) for block, rows in enumerate(loop.given) for row in rows}
    starts = sorted((loop.first_op, number) for number, loop in enumerate(loops) if loop.length)
    for row, (origin, born) in enumerate(zip(storages.origin, storages.born_op, strict=True)):
        if origin in MADE_ORIGINS:
            # Loops do not overlap, so only the last one that has begun can hold the op.
            number = next((number for first, number in reversed(starts) if first <= born), -1)
            if number >= 0 and born < loops[number].end_op:
                home_of[row] = number, (born - loops[number].first_op) // loops[number].length
    seen: Counter[tuple[int, int]] = Counter()
    homes: dict[int, Home] = {}
    for row, home in home_of.items():  # given memory in the order of its list, made memory in the order of its rows
        homes[row] = Home(*home, seen[home])
        seen[home] += 1
    # Memory of two blocks is matched by its place alone, so every block must have as many places.
    for number, loop in enumerate(loops):
        if len({seen[number, block] for block in range(loop.blocks)}) > 1:
            raise Irregular("blocks of a loop that make more memory than others")
    return homes


def with_given(graph: CallGraph, loops: Sequence[Loop], wanted: Sequence[Repeats]) -> tuple[Loop, ...]:
    """The loops with what the model is given for their blocks, and those that are but lists."""
    result = list(loops)
    used = _used(graph)
    for repeats in wanted:
        if repeats.routed is not None or repeats.times < 2:
            continue
        same = [number for number, loop in enumerate(result) if loop.count == repeats.count and loop.length]
        rows = _listed(graph, repeats.times, [result[number] for number in same], used)
        if rows and same:  # the first loop owns the list; later ones reach it as loops that run alike
            result[same[0]] = replace(result[same[0]], given=rows)
        elif rows:
            calls = len(calls_of(graph).path)
            result.append(
                Loop(
                    count=repeats.count,
                    blocks=repeats.times,
                    first_op=0,
                    length=0,
                    first_call=calls,
                    calls=0,
                    given=rows,
                )
            )
    return tuple(_with_constants(graph, loop, used) for loop in result)


def _with_constants(graph: CallGraph, loop: Loop, used: Mapping[int, Sequence[int]]) -> Loop:
    """The loop with tensors that come from outside the model and are used in one block each: numbers in its code."""
    if loop.routed is not None or not loop.length:
        return loop
    origins, taken = storages_of(graph).origin, {row for block in loop.given for row in block}
    by_block: list[list[int]] = [[] for _ in range(loop.blocks)]
    for row, ops in sorted(used.items()):
        blocks = {(op - loop.first_op) // loop.length for op in ops}
        if origins[row] == _EXTERNAL and row not in taken and len(blocks) == 1 and 0 <= min(blocks) < loop.blocks:
            by_block[blocks.pop()].append(row)
    if not by_block[0] or len({len(rows) for rows in by_block}) > 1:
        return loop
    given = loop.given or ((),) * loop.blocks
    return replace(loop, given=tuple((*listed, *rows) for listed, rows in zip(given, by_block, strict=True)))


def _used(graph: CallGraph) -> Mapping[int, Sequence[int]]:
    """Row of given memory -> the ops that use it."""
    ops, storages = ops_of(graph), storages_of(graph)
    given = {row for row, origin in enumerate(storages.origin) if origin in GIVEN_ORIGINS}
    starts, _ = tensor_offsets(graph)
    ops_by_row: dict[int, list[int]] = {}
    for row in range(len(ops.kind)):
        for storage in given.intersection(ops.input_storages[starts[row] : starts[row + 1]]):
            ops_by_row.setdefault(storage, []).append(row)
    return ops_by_row


def _listed(
    graph: CallGraph, times: int, loops: Sequence[Loop], used: Mapping[int, Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Memory of a list that the model is given, by block; empty: there is no such list."""
    origins = storages_of(graph).origin
    for root in (row for row, parent in enumerate(calls_of(graph).parent) if parent < 0):
        entries = list(call_tensors(graph, root, "input"))
        # The largest unit first: a smaller one would leave some of what belongs to a block outside of it.
        for unit in range(min(_LARGEST_UNIT, len(entries) // times), 0, -1):
            for start in range(len(entries) - unit * times + 1):
                part = entries[start : start + unit * times]
                rows = [row for _, row in part]
                if len(set(rows)) < len(rows) or any(row < 0 or origins[row] not in GIVEN_ORIGINS for row in rows):
                    continue
                is_periodic = all(
                    entry == later_entry for (entry, _), (later_entry, _) in zip(part, part[unit:], strict=False)
                )
                if is_periodic and all(_fits(used.get(r, ()), i // unit, loops) for i, r in enumerate(rows)):
                    return tuple(tuple(rows[block * unit : (block + 1) * unit]) for block in range(times))
    return ()


def _fits(used: Sequence[int], block: int, loops: Sequence[Loop]) -> bool:
    """Whether memory is used in one block of the loops alone, whatever uses it outside; of lists, in none."""
    if not loops:
        return not used
    inside = [(loop, row) for loop in loops for row in used if loop.first_op <= row < loop.end_op]
    return all((row - loop.first_op) // loop.length == block for loop, row in inside)


# Rows of a trace when its loops run another number of times: each new row, and the old rows that say what it is.
#
# Rows are columns, so that a trace of ten thousand ops is unfolded in some ten milliseconds.

Numbers = NDArray[np.int64]
Spans = Sequence[tuple[int, int]]  # per loop the first row of its first block, and how many rows a block has


class Row(NamedTuple):
    """A new row: the old row that says what it is, the one that says where it stands, its loop (or -1) and block."""

    what: int
    where: int
    loop: int
    block: int


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """New rows as columns; `old` is the old block in which a row of a loop stands."""

    what: Numbers
    where: Numbers
    loop: Numbers
    block: Numbers
    old: Numbers

    def __len__(self) -> int:
        return len(self.what)

    def __iter__(self) -> Iterator[Row]:
        return map(Row, *(column.tolist() for column in self.columns))

    @property
    def columns(self) -> tuple[Numbers, ...]:
        """The fields of a row."""
        return self.what, self.where, self.loop, self.block


def sources_of(loop: Loop, count: int) -> list[tuple[int, int]]:
    """Per new block the old block that says what it is, and the one that says where it stands."""
    last = loop.blocks - 1
    # The last block is always the old last one: what follows the loop reads and frees memory there.
    if loop.routed is not None:  # each expert has sizes of its own, so a block is what it was
        return [(block, last if block == count - 1 else block) for block in range(count)]
    # The first block has none before it, and the second has the first. From the third on all are alike.
    olds = [last if block == count - 1 else min(block, 2, last - 1) for block in range(count)]
    return [(old, old) for old in olds]


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """New rows of ops or calls: per loop its first new row; and from which old row on rows move by how much."""

    rows: Rows
    firsts: Numbers
    begins: Numbers
    shifts: Numbers

    def outside(self, old: Numbers) -> Numbers:
        """Where rows are now that belong to no loop."""
        return old + self.shifts[np.searchsorted(self.begins, old, side="right") - 1]


def moved_rows(total: int, spans: Spans, loops: Sequence[Loop], counts: Sequence[int]) -> Moves:
    """The rows of ops or calls when each loop runs this many times."""
    parts: list[Rows] = []
    firsts, begins, shifts, done, made = [0] * len(spans), [0], [0], 0, 0
    for number in sorted(range(len(spans)), key=lambda loop: spans[loop][0]):
        first, length = spans[number]
        parts.append(_unmoved(np.arange(done, first)))
        firsts[number] = made + max(0, first - done)
        sources = np.array(sources_of(loops[number], counts[number]), np.int64)
        parts.append(_repeated(first, length, number, sources))
        made = firsts[number] + length * counts[number]
        done = first + length * loops[number].blocks
        begins.append(done)
        shifts.append(made - done)
    parts.append(_unmoved(np.arange(done, total)))
    return Moves(joined_rows(parts), *(np.array(column, np.int64) for column in (firsts, begins, shifts)))


def _unmoved(rows: Numbers) -> Rows:
    none = np.full(len(rows), -1, np.int64)
    return Rows(rows, rows, none, none, none)


def _repeated(first: int, length: int, loop: int, sources: Numbers) -> Rows:
    """The rows of all blocks of a loop."""
    at, count = np.arange(length), len(sources)
    what, where = ((first + sources[:, side, None] * length + at).ravel() for side in (0, 1))
    blocks = np.repeat(np.arange(count), length)
    return Rows(what, where, np.full(count * length, loop, np.int64), blocks, np.repeat(sources[:, 1], length))


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Rows one after the other."""
    names = ("what", "where", "loop", "block", "old")
    return Rows(*(np.concatenate([getattr(part, name) for part in parts]).astype(np.int64) for name in names))


class MemoryHomes:
    """Memory by the block that it belongs to, as columns: -1 where it belongs to none."""

    def __init__(self, homes: Mapping[int, Home], size: int, loops: Sequence[Loop]) -> None:
        where = np.full((size, 3), -1, np.int64)
        if homes:
            where[np.fromiter(homes, np.int64)] = np.array(list(homes.values()), np.int64)
        self.loop, self.block, self.place = (np.ascontiguousarray(where[:, column]) for column in range(3))
        self._loops = loops
        self.places = np.array([1 + max(self.place[self.loop == n], default=-1) for n in range(len(loops))], int)
        self.rows = [np.zeros((loop.blocks, self.places[n]), np.int64) for n, loop in enumerate(loops)]
        for number, table in enumerate(self.rows):
            inside = np.flatnonzero(self.loop == number)
            table[self.block[inside], self.place[inside]] = inside
        keys = zip(self.loop.tolist(), self.block.tolist(), strict=True)
        self._groups = [(key, [row for row, _ in some]) for key, some in groupby(enumerate(keys), lambda pair: pair[1])]

    def new_rows(self, counts: Sequence[int]) -> Rows:
        """Memory in the order of the old rows; the memory of a block that runs more often occurs once for each time."""
        blocks: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for number, loop in enumerate(self._loops):
            for block, (what, where) in enumerate(sources_of(loop, counts[number])):
                blocks.setdefault((number, where), []).append((block, what))
        parts: list[Rows] = []
        for (loop_number, old), group in self._groups:
            rows = np.array(group, np.int64)
            if loop_number < 0:
                parts.append(_unmoved(rows))
                continue
            for block, what in blocks.get((loop_number, old), ()):
                same = [np.full(len(rows), constant, np.int64) for constant in (loop_number, block, old)]
                parts.append(Rows(self.rows[loop_number][what, self.place[rows]], rows, *same))
        return joined_rows([_unmoved(np.arange(0)), *parts])


class NewMemory:
    """Where each old block of memory is now: one place outside loops, one for each block inside."""

    def __init__(self, homes: MemoryHomes, rows: Rows, counts: Sequence[int]) -> None:
        self._places = homes.places
        self._bases = np.concatenate(([0], np.cumsum(homes.places * np.array(counts, np.int64)))).astype(np.int64)
        self.fixed = np.full(len(homes.loop), -1, np.int64)
        self._of_block = np.full(self._bases[-1], -1, np.int64)
        inside, new = homes.loop[rows.where] >= 0, np.arange(len(rows))
        self.fixed[rows.what[~inside]] = new[~inside]
        loops, places = rows.loop[inside], homes.place[rows.where[inside]]
        self._of_block[self._bases[loops] + rows.block[inside] * self._places[loops] + places] = new[inside]

    def of_block(self, loop: Numbers, block: Numbers, place: Numbers) -> Numbers:
        """The new memory of blocks of loops."""
        rows: Numbers = self._of_block[self._bases[loop] + block * self._places[loop] + place]
        return rows

    def one_of_block(self, loop: int, block: int, place: int) -> int:
        """The new memory of one block of a loop."""
        return int(self._of_block[self._bases[loop] + block * self._places[loop] + place])


def as_column(numbers: Numbers) -> array[int]:
    """As a column of a call graph."""
    column = array("q")
    column.frombytes(np.ascontiguousarray(numbers, np.int64).tobytes())
    return column


_JOINS = ("aten.cat.", "aten.stack.")
CUTS = ("aten.unbind.", "aten.split.", "aten.split_with_sizes.", "aten.chunk.", "aten.tensor_split.")


class RowTensor(NamedTuple):
    """A tensor of a new row: which of the old row's it is, the loop and block that its size is of, its new memory.

    `slot` is the same for tensors that stand for each other in the blocks of a loop.
    """

    place: int
    slot: int
    loop: int
    block: int
    storage: int


class ListFacts:
    """What a trace says of its lists, however often its loops run."""

    def __init__(self, graph: CallGraph, loops: Sequence[Loop], homes: dict[int, Home]) -> None:
        self.graph, self.loops, self.homes = graph, loops, homes
        self.ops = ops_of(graph)
        self.starts, self.ends = tensor_offsets(graph)
        self._read: dict[int, frozenset[int]] = {}  # per loop the memory that its first block reads

    @cached_property
    def joining(self) -> frozenset[int]:
        """Ops that join several views of one tensor."""
        return self._of_several(_JOINS, self.ops.input_storages, self.starts)

    @cached_property
    def cutting(self) -> frozenset[int]:
        """Ops that cut a tensor into several."""
        return frozenset(row for row in self._named(CUTS) if self.ends[row + 1] - self.ends[row] > 1)

    def _named(self, names: tuple[str, ...]) -> Iterator[int]:
        kinds = {number for number, kind in enumerate(self.graph.op_kinds) if kind.name.startswith(names)}
        return (row for row, kind in enumerate(self.ops.kind) if kind in kinds)

    def _of_several(self, names: tuple[str, ...], column: Sequence[int], offsets: Sequence[int]) -> frozenset[int]:
        tensors = ((row, column[offsets[row] : offsets[row + 1]]) for row in self._named(names))
        return frozenset(row for row, storages in tensors if len(storages) > 1 and len(set(storages)) == 1)

    @cached_property
    def cut(self) -> frozenset[tuple[int, int]]:
        """The tensors that ops cut into views of them: memory, and how many."""
        rows = self._of_several(CUTS, self.ops.output_storages, self.ends)
        return frozenset((self.ops.output_storages[self.ends[r]], self.ends[r + 1] - self.ends[r]) for r in rows)

    @cached_property
    def joined(self) -> frozenset[tuple[int, int]]:
        """The tensors that ops join from views: memory, and how many."""
        starts = self.starts
        return frozenset((self.ops.input_storages[starts[r]], starts[r + 1] - starts[r]) for r in self.joining)

    def read_in_first_block(self, number: int) -> frozenset[int]:
        """Memory that the first block of a loop reads."""
        if number not in self._read:
            loop = self.loops[number]
            rows = slice(self.starts[loop.first_op], self.starts[loop.first_op + loop.length])
            self._read[number] = frozenset(self.ops.input_storages[rows])
        return self._read[number]

    def run_alike(self, first: int, second: int) -> bool:
        """Whether two loops have a block for each of the same things, so that one may go on where the other ended."""
        if first < 0 or second < 0:
            return False
        left, right = self.loops[first], self.loops[second]
        return left.count == right.count and left.blocks == right.blocks and not left.routed and not right.routed


class Lists:
    """The tensors of rows that may hold lists, when each loop runs this many times."""

    def __init__(self, facts: ListFacts, counts: Sequence[int], memory: NewMemory) -> None:
        self._facts, self._loops, self._homes = facts, facts.loops, facts.homes
        self._counts, self._memory = counts, memory

    def entries(self, row: Row, old_block: int, storages: Sequence[int], offsets: Sequence[int]) -> Iterator[RowTensor]:
        """The tensors of a row."""
        what, where = (storages[offsets[number] : offsets[number + 1]] for number in (row.what, row.where))
        if storages is self._facts.ops.input_storages and not any(storage in self._homes for storage in where):
            joined = self._joined(row, where)
            if joined:
                yield from joined
                return
        at = 0
        while at < len(where):
            home = self._homes.get(where[at])
            if home is None:
                yield RowTensor(at, at, row.loop, row.block, what[at] if what[at] < 0 else self._fixed(what[at]))
                at += 1
                continue
            length = self._list_length(where, at, home.loop) if home.loop != row.loop else 0
            if length:
                yield from self._list(where, at, length, home.loop)
                at += length
                continue
            block = self._block_of(home, row, old_block)
            yield RowTensor(at, at, row.loop, row.block, self._memory.one_of_block(home.loop, block, home.place))
            at += 1

    def _fixed(self, storage: int) -> int:
        if storage < 0 or self._memory.fixed[storage] < 0:
            raise Irregular("something outside a loop uses one of its blocks in the place of another's")
        return int(self._memory.fixed[storage])

    def _block_of(self, home: Home, row: Row, old_block: int) -> int:
        """The new block that holds the memory of a row."""
        last = self._loops[home.loop].blocks - 1
        if home.loop != row.loop:
            # However often a loop runs, three blocks can be named from outside: the same, the first and the last.
            if home.block == old_block and self._facts.run_alike(home.loop, row.loop):
                return row.block
            if home.block in (0, last):
                return 0 if home.block == 0 else self._counts[home.loop] - 1
            raise Irregular("something uses one block of a loop")
        if home.block == old_block:
            return row.block
        if home.block == old_block - 1 and row.block:  # the state of a scan
            return row.block - 1
        if home.block == 0 and old_block > 1:  # made once, used by all that follow
            return 0
        raise Irregular("a block uses what a block far before it made")

    def _list_length(self, storages: Sequence[int], at: int, loop: int) -> int:
        """How many entries from here on are of all blocks of a loop, one block after the other; 0: it is no list."""
        blocks: list[int] = []
        for storage in storages[at:]:
            home = self._homes.get(storage)
            if home is None or home.loop != loop or (blocks and home.block < blocks[-1]):
                break
            blocks.append(home.block)
        per_block, rest = divmod(len(blocks), self._loops[loop].blocks)
        is_list = per_block and not rest and blocks == [place // per_block for place in range(len(blocks))]
        return len(blocks) if is_list else 0

    def _list(self, storages: Sequence[int], at: int, length: int, loop: int) -> Iterator[RowTensor]:
        per_block = length // self._loops[loop].blocks
        for block, (what, _) in enumerate(sources_of(self._loops[loop], self._counts[loop])):
            for slot in range(at, at + per_block):
                place = slot + what * per_block
                home = self._homes[storages[place]]
                yield RowTensor(place, slot, loop, block, self._memory.one_of_block(loop, block, home.place))

    def views(self, row: Row, offsets: Sequence[int]) -> tuple[RowTensor, ...]:
        """The outputs of an op that cuts a tensor into one view for each block of a loop; else nothing."""
        outputs = self._facts.ops.output_storages[offsets[row.what] : offsets[row.what + 1]]
        ahead = [number for number, loop in enumerate(self._loops) if loop.first_op > row.what and loop.length]
        # The next loop is over experts and has as many blocks: the op splits rows by expert.
        after = min(ahead, key=lambda number: self._loops[number].first_op, default=-1)
        if after >= 0 and self._loops[after].routed and self._loops[after].blocks == len(outputs):
            return self._one_for_each_block(outputs[0], after)
        return self._one_of_each(outputs, is_listed=(outputs[0], len(outputs)) in self._facts.joined)

    def _joined(self, row: Row, inputs: Sequence[int]) -> tuple[RowTensor, ...]:
        """The inputs of an op that joins one view of a tensor for each block of a loop; else nothing."""
        if row.loop >= 0 or row.what not in self._facts.joining:
            return ()
        return self._one_of_each(inputs, is_listed=(inputs[0], len(inputs)) in self._facts.cut)

    def _one_of_each(self, storages: Sequence[int], *, is_listed: bool) -> tuple[RowTensor, ...]:
        """Views of one tensor, as many as a loop that uses it has blocks, or as an op before or after it has."""
        fitting = [
            n for n, loop in enumerate(self._loops) if not loop.routed and loop.length and loop.blocks == len(storages)
        ]
        using = [number for number in fitting if storages[0] in self._facts.read_in_first_block(number)]
        number = next(iter(using or (fitting if is_listed else ())), -1)
        return self._one_for_each_block(storages[0], number) if number >= 0 else ()

    def _one_for_each_block(self, storage: int, number: int) -> tuple[RowTensor, ...]:
        new, sources = self._fixed(storage), enumerate(sources_of(self._loops[number], self._counts[number]))
        return tuple(RowTensor(what, 0, number, block, new) for block, (what, _) in sources)
