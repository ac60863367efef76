"""How much memory a run takes fresh from the system, op by op, under the allocator of the GNU C library.

Memory that a process touches for the first time costs a page fault per 4 KiB, often more than the work done in it.
Which results land in such memory follows from sizes and lifetimes, by the rules of glibc's malloc as it comes:

- a request is served from the smallest free piece that holds it, else from the free end of the heap;
- where both are too small, a large block is mapped on its own and given back when freed, a smaller one grows the heap;
- when the free end of the heap exceeds twice the size from which blocks count as large, it is given back.

A block counts as large from 32 MiB on: the bound starts lower and follows the largest block freed so far, and a process
that has built a model has freed blocks of every size. What kernels allocate for themselves is not in a trace and hence
not here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import defaultdict

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of

_LARGE = 32 * 2**20
_MOST_FREE_END = 2 * _LARGE
_ALIGNMENT = 64  # of torch's allocations, and what a block needs beside its content
_PASSES = 3  # a model runs more than once; by then the allocator has settled


def fresh_bytes_by_op(graph: CallGraph) -> array[int]:
    """Bytes that each op makes the system hand out, once the run has been repeated; zeros without lifetimes."""
    fresh = array("q", bytes(8 * len(ops_of(graph).kind)))
    storages = graph.storages
    if storages is None:
        return fresh
    born, freed = defaultdict(list), defaultdict(list)
    for row, origin in enumerate(storages.origin):
        if origin == "activation" and storages.bytes[row]:
            born[storages.born_op[row]].append(row)
            freed[storages.freed_op[row]].append(row)
    heap = Heap()
    for _ in range(_PASSES):
        for op in range(len(fresh) + 1):
            for row in freed[op]:
                heap.free(row)
            taken = sum(heap.allocate(row, storages.bytes[row]) for row in born[op])
            if op < len(fresh):
                fresh[op] = taken
        heap.free_all()
    return fresh


class Heap:
    """Addresses only: pieces in use, free pieces between them, and the free end above `_top`."""

    def __init__(self) -> None:
        self._top = 0
        self._end = 0
        self._free_by_size: list[tuple[int, int]] = []  # size, address; ascending
        self._size_at: dict[int, int] = {}  # free pieces by where they begin
        self._begin_of: dict[int, int] = {}  # and by where they end
        self._blocks: dict[int, tuple[int, int]] = {}  # in use: address and size; mapped ones have address -1

    def allocate(self, key: int, content_bytes: int) -> int:
        """Place a block and return how many of its bytes the system had to hand out."""
        size = -(-content_bytes // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        place = bisect_left(self._free_by_size, (size, 0))
        if place < len(self._free_by_size):
            held, address = self._free_by_size[place]
            self._remove_free(address, held)
            if held > size:
                self._add_free(address + size, held - size)
            self._blocks[key] = (address, size)
            return 0
        if self._end - self._top < size and size >= _LARGE:
            self._blocks[key] = (-1, size)
            return size
        grown = max(0, self._top + size - self._end)
        self._blocks[key] = (self._top, size)
        self._top += size
        self._end = max(self._end, self._top)
        return grown

    def free(self, key: int) -> None:
        """Give a block back to the heap, or a mapped one to the system."""
        if key not in self._blocks:
            return
        address, size = self._blocks.pop(key)
        if address < 0:
            return
        if address in self._begin_of:
            before = self._begin_of[address]
            self._remove_free(before, address - before)
            address, size = before, size + address - before
        after = self._size_at.get(address + size)
        if after is not None:
            self._remove_free(address + size, after)
            size += after
        if address + size < self._top:
            self._add_free(address, size)
            return
        self._top = address
        if self._end - self._top > _MOST_FREE_END:
            self._end = self._top

    def free_all(self) -> None:
        """What outlived the run goes when the next one begins."""
        for key in list(self._blocks):
            self.free(key)

    def _add_free(self, address: int, size: int) -> None:
        insort(self._free_by_size, (size, address))
        self._size_at[address] = size
        self._begin_of[address + size] = address

    def _remove_free(self, address: int, size: int) -> None:
        del self._free_by_size[bisect_left(self._free_by_size, (size, address))]
        del self._size_at[address]
        del self._begin_of[address + size]
