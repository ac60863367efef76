"""Tensors of ops and calls outside a loop that hold what its blocks made: lists, which are as long as the loop runs.

`stack` of one result for each sequence, `split` into the rows of each expert.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, tensor_offsets
from llm_perf_opt.sweeps.function.program.loop_memory import Home, Irregular, NewMemory, Row, sources_of
from llm_perf_opt.sweeps.function.program.loops import Loop

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
        return frozenset(row for row, one in tensors if len(one) > 1 and len(set(one)) == 1)

    @cached_property
    def cut(self) -> frozenset[tuple[int, int]]:
        """The tensors that ops cut into views of them: memory, and how many."""
        rows = self._of_several(CUTS, self.ops.output_storages, self.ends)
        return frozenset((self.ops.output_storages[self.ends[r]], self.ends[r + 1] - self.ends[r]) for r in rows)

    @cached_property
    def joined(self) -> frozenset[tuple[int, int]]:
        """The tensors whose views ops join: memory, and how many."""
        starts = self.starts
        return frozenset((self.ops.input_storages[starts[r]], starts[r + 1] - starts[r]) for r in self.joining)

    def read_in_first_block(self, number: int) -> frozenset[int]:
        """Memory that the first block of a loop reads."""
        if number not in self._read:
            loop = self.loops[number]
            rows = slice(self.starts[loop.first_op], self.starts[loop.first_op + loop.length])
            self._read[number] = frozenset(self.ops.input_storages[rows])
        return self._read[number]

    def run_alike(self, one: int, other: int) -> bool:
        """Whether two loops have a block for each of the same things, so that one may go on where the other ended."""
        if one < 0 or other < 0:
            return False
        left, right = self.loops[one], self.loops[other]
        return left.count == right.count and left.blocks == right.blocks and not left.routed and not right.routed


class Lists:
    """The tensors of rows that may hold lists, when each loop runs so many times."""

    def __init__(self, facts: ListFacts, counts: Sequence[int], memory: NewMemory) -> None:
        self._facts, self._loops, self._homes = facts, facts.loops, facts.homes
        self._counts, self._memory = counts, memory

    def entries(self, row: Row, old_block: int, storages: Sequence[int], offsets: Sequence[int]) -> Iterator[RowTensor]:
        """The tensors of a row."""
        what, where = (storages[offsets[one] : offsets[one + 1]] for one in (row.what, row.where))
        if storages is self._facts.ops.input_storages and not any(one in self._homes for one in where):
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
        """The new block whose memory a row uses."""
        last = self._loops[home.loop].blocks - 1
        if home.loop != row.loop:
            if home.block == old_block and self._facts.run_alike(home.loop, row.loop):
                return row.block
            if home.block in (0, last):
                return 0 if home.block == 0 else self._counts[home.loop] - 1
            raise Irregular("something uses one block of a loop")
        if home.block == old_block:
            return row.block
        if home.block == old_block - 1 and row.block:
            return row.block - 1
        if home.block == 0 and old_block > 1:
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
        each, rest = divmod(len(blocks), self._loops[loop].blocks)
        is_list = each and not rest and blocks == [place // each for place in range(len(blocks))]
        return len(blocks) if is_list else 0

    def _list(self, storages: Sequence[int], at: int, length: int, loop: int) -> Iterator[RowTensor]:
        each = length // self._loops[loop].blocks
        for block, (what, _) in enumerate(sources_of(self._loops[loop], self._counts[loop])):
            for slot in range(at, at + each):
                place = slot + what * each
                home = self._homes[storages[place]]
                yield RowTensor(place, slot, loop, block, self._memory.one_of_block(loop, block, home.place))

    def views(self, row: Row, offsets: Sequence[int]) -> tuple[RowTensor, ...]:
        """The outputs of an op that cuts a tensor into one view for each block of a loop; else nothing."""
        outputs = self._facts.ops.output_storages[offsets[row.what] : offsets[row.what + 1]]
        ahead = [number for number, loop in enumerate(self._loops) if loop.first_op > row.what and loop.length]
        after = min(ahead, key=lambda one: self._loops[one].first_op, default=-1)
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
            n for n, one in enumerate(self._loops) if not one.routed and one.length and one.blocks == len(storages)
        ]
        using = [number for number in fitting if storages[0] in self._facts.read_in_first_block(number)]
        number = next(iter(using or (fitting if is_listed else ())), -1)
        return self._one_for_each_block(storages[0], number) if number >= 0 else ()

    def _one_for_each_block(self, storage: int, number: int) -> tuple[RowTensor, ...]:
        new, sources = self._fixed(storage), enumerate(sources_of(self._loops[number], self._counts[number]))
        return tuple(RowTensor(what, 0, number, block, new) for block, (what, _) in sources)
