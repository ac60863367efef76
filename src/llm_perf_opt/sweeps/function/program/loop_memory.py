"""Which memory belongs to which block of a loop: what the block makes, and what the model is given for it.

A model that is given a list of images, one for each sequence, has memory for each before the loop begins. The list may
stand there unread, as in a decode step: then the loop has no ops, and still as many blocks.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """A loop whose blocks are not all alike."""


class Home(NamedTuple):
    """The loop and the block that a block of memory belongs to, and which of that block's it is."""

    loop: int
    block: int
    place: int


def homes_of(graph: CallGraph, loops: Sequence[Loop]) -> dict[int, Home]:
    """Row of memory -> where it belongs, for all that belongs to a block."""
    storages = storages_of(graph)
    found: dict[int, tuple[int, int]] = {}
    for number, loop in enumerate(loops):
        found |= {row: (number, block) for block, rows in enumerate(loop.given) for row in rows}
    starts = sorted((loop.first_op, number) for number, loop in enumerate(loops) if loop.length)
    for row, (origin, born) in enumerate(zip(storages.origin, storages.born_op, strict=True)):
        if origin in MADE_ORIGINS:
            number = next((number for first, number in reversed(starts) if first <= born), -1)
            if number >= 0 and born < loops[number].end_op:
                found[row] = number, (born - loops[number].first_op) // loops[number].length
    seen: Counter[tuple[int, int]] = Counter()
    homes: dict[int, Home] = {}
    for row, home in found.items():  # what is given in the order of its list, what is made in that of its rows
        homes[row] = Home(*home, seen[home])
        seen[home] += 1
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
        if rows and same:
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
    found: list[list[int]] = [[] for _ in range(loop.blocks)]
    for row, ops in sorted(used.items()):
        blocks = {(op - loop.first_op) // loop.length for op in ops}
        if origins[row] == _EXTERNAL and row not in taken and len(blocks) == 1 and 0 <= min(blocks) < loop.blocks:
            found[blocks.pop()].append(row)
    if not found[0] or len({len(rows) for rows in found}) > 1:
        return loop
    given = loop.given or ((),) * loop.blocks
    return replace(loop, given=tuple((*one, *rows) for one, rows in zip(given, found, strict=True)))


def _used(graph: CallGraph) -> Mapping[int, Sequence[int]]:
    """Row of given memory -> the ops that use it."""
    ops, storages = ops_of(graph), storages_of(graph)
    given = {row for row, origin in enumerate(storages.origin) if origin in GIVEN_ORIGINS}
    starts, _ = tensor_offsets(graph)
    found: dict[int, list[int]] = {}
    for row in range(len(ops.kind)):
        for storage in given.intersection(ops.input_storages[starts[row] : starts[row + 1]]):
            found.setdefault(storage, []).append(row)
    return found


def _listed(
    graph: CallGraph, times: int, loops: Sequence[Loop], used: Mapping[int, Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Memory of a list that the model is given, by block; empty: there is no such list."""
    origins = storages_of(graph).origin
    for root in (row for row, parent in enumerate(calls_of(graph).parent) if parent < 0):
        entries = list(call_tensors(graph, root, "input"))
        for unit in range(min(_LARGEST_UNIT, len(entries) // times), 0, -1):
            for start in range(len(entries) - unit * times + 1):
                part = entries[start : start + unit * times]
                rows = [row for _, row in part]
                is_given = all(row >= 0 and origins[row] in GIVEN_ORIGINS for row in rows) and len(set(rows)) == len(
                    rows
                )
                is_periodic = all(one == other for (one, _), (other, _) in zip(part, part[unit:], strict=False))
                if (
                    is_given
                    and is_periodic
                    and all(_fits(used.get(r, ()), i // unit, loops) for i, r in enumerate(rows))
                ):
                    return tuple(tuple(rows[block * unit : (block + 1) * unit]) for block in range(times))
    return ()


def _fits(used: Sequence[int], block: int, loops: Sequence[Loop]) -> bool:
    """Whether memory is used in one block of the loops alone, whatever uses it outside; of lists, in none."""
    if not loops:
        return not used
    inside = [(loop, row) for loop in loops for row in used if loop.first_op <= row < loop.end_op]
    return all((row - loop.first_op) // loop.length == block for loop, row in inside)


# Rows of a trace whose loops run another number of times: each new row, and the old rows that say what it is.
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
    if loop.routed is not None:
        return [(block, last if block == count - 1 else block) for block in range(count)]
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
    """The rows of ops or calls when each loop runs so many times."""
    parts: list[Rows] = []
    firsts, begins, shifts, done, made = [0] * len(spans), [0], [0], 0, 0
    for number in sorted(range(len(spans)), key=lambda one: spans[one][0]):
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
    return Moves(joined_rows(parts), *(np.array(one, np.int64) for one in (firsts, begins, shifts)))


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
        found = np.full((size, 3), -1, np.int64)
        if homes:
            found[np.fromiter(homes, np.int64)] = np.array(list(homes.values()), np.int64)
        self.loop, self.block, self.place = (np.ascontiguousarray(found[:, column]) for column in range(3))
        self._loops = loops
        self.places = np.array([1 + max(self.place[self.loop == one], default=-1) for one in range(len(loops))], int)
        self.rows = [np.zeros((loop.blocks, self.places[one]), np.int64) for one, loop in enumerate(loops)]
        for number, table in enumerate(self.rows):
            inside = np.flatnonzero(self.loop == number)
            table[self.block[inside], self.place[inside]] = inside
        keys = zip(self.loop.tolist(), self.block.tolist(), strict=True)
        self._groups = [(key, [row for row, _ in some]) for key, some in groupby(enumerate(keys), lambda one: one[1])]

    def new_rows(self, counts: Sequence[int]) -> Rows:
        """Memory in the order of the old rows; that of a block that runs more often once for each time."""
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
                same = [np.full(len(rows), one, np.int64) for one in (loop_number, block, old)]
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
        found: Numbers = self._of_block[self._bases[loop] + block * self._places[loop] + place]
        return found

    def one_of_block(self, loop: int, block: int, place: int) -> int:
        """The new memory of one block of a loop."""
        return int(self._of_block[self._bases[loop] + block * self._places[loop] + place])


def as_column(numbers: Numbers) -> array[int]:
    """As a column of a call graph."""
    column = array("q")
    column.frombytes(np.ascontiguousarray(numbers, np.int64).tobytes())
    return column
