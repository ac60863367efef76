"""Rates of a calibrated machine: every op by the measured table of its family of work, at its size.

Between two measured sizes a time is on a straight line between their logarithms. On those lines a time that is
constant (the way to the kernel) and one that grows in proportion (bandwidth, arithmetic) are both exact, whatever the
distance between the measured sizes.

Some tensors are scattered in memory: neighbours along their last dimension are far apart. A convolution leaves its
channels first; read with the channels last, they are scattered. Elementwise ops hand the layout of their first operand
on to their result, so that a whole residual stream can stay scattered: every sum with a contiguous tensor then reads
one of the two in strides, and every norm copies its input first. A trace holds no strides; they are followed here from
the views that move the last dimension.

How much memory a run takes fresh from the system, op by op, under the allocator of the GNU C library.

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

import itertools
import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_calls, stage_of_ops, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.hardware.calibration import Calibration, RateTable, Timing
from llm_perf_opt.core.report import Level, Note
from llm_perf_opt.costs.necessary.read_once import preparation
from llm_perf_opt.ops.op import CalibratedWork, Kernel, Layout
from llm_perf_opt.ops.table import MODULE_CALL, ScatteredInputs, calibrated_work_of, op_of
from llm_perf_opt.timing.lower_bound import LowerBound
from llm_perf_opt.timing.rates import NOTHING, Band, OpRun, Overhead, Piece, RateTime, StagePieces, TimesPieces
from llm_perf_opt.timing.stage_work import StageWork

_LARGE = 32 * 2**20
_MOST_FREE_END = 2 * _LARGE
_ALIGNMENT = 64  # of torch's allocations, and what a block needs besides its content
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
            piece_bytes, address = self._free_by_size[place]
            self._remove_free(address, piece_bytes)
            if piece_bytes > size:
                self._add_free(address + size, piece_bytes - size)
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


SOURCE = "calibration"


@dataclass(frozen=True, slots=True)
class CalibratedRates(TimesPieces):
    """The rates that a calibration measured, one op after the other, on one machine."""

    calibration: Calibration

    @property
    def name(self) -> str:
        """The origin of its times."""
        return SOURCE

    @property
    def title(self) -> str:
        """The machine."""
        return self.calibration.title

    @property
    def device(self) -> None:
        """No data sheet bounds a machine that was only measured."""
        return

    @property
    def is_engine(self) -> bool:
        """Times were measured op by op."""
        return False

    @property
    def cluster(self) -> None:
        """One machine was measured, and no link."""
        return

    def notes(self) -> Iterator[Note]:
        """Where the times come from, and their low and high."""
        yield Note(f"Times on {self.title}, as its calibration measured them.")
        yield Note("Low and high: all work at the fastest, or all at the slowest try of the calibration.")
        if self.calibration.is_smoke:
            yield Note("The calibration tried the smallest sizes only: these times mean nothing.", Level.WARNING)

    def pieces(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, StagePieces]:
        """The ops of each stage, its module calls, and the bytes that the system hands out while it runs."""
        names, stages = stage_names(graph), stage_of_ops(graph)
        runs = _op_runs_by_stage(graph, stages)
        calls = Counter(names[stage] for stage in stage_of_calls(graph))
        fresh = self._fresh_bytes_by_stage(graph, stages)
        overheads = {Overhead.FRESH_BYTE: fresh, Overhead.MODULE_CALL: calls}
        return {
            work.name: StagePieces(
                pieces=(
                    *runs[work.name].items(),
                    *((overhead, counts[work.name]) for overhead, counts in overheads.items() if counts[work.name]),
                )
            )
            for work in works
        }

    def _fresh_bytes_by_stage(self, graph: CallGraph, stages: Sequence[int]) -> Counter[str]:
        """Where memory from the system costs nothing, none is counted."""
        fresh: Counter[str] = Counter()
        if self.calibration.fresh_byte is not None:
            names = stage_names(graph)
            for stage, taken in zip(stages, fresh_bytes_by_op(graph), strict=True):
                fresh[names[stage]] += taken
        return fresh

    def duration(self, piece: Piece) -> tuple[RateTime, ...] | None:
        """By every family of work in it; None: no family describes it, or the table of one was not measured.

        A calibration without a table of module calls counts them as free.
        """
        if isinstance(piece, Kernel):
            return None
        if piece is Overhead.FRESH_BYTE:
            fresh = self.calibration.fresh_byte
            return () if fresh is None else (_rate_time(piece, fresh, 1.0),)
        if piece is Overhead.MODULE_CALL:
            called = self._work_time(MODULE_CALL)
            return () if called is None else (called,)
        works = calibrated_work_of(piece.kind, piece.scattered)
        times = [None] if works is None else [self._work_time(work) for work in works]
        return None if None in times else tuple(time for time in times if time is not None)

    def _work_time(self, work: CalibratedWork) -> RateTime | None:
        table = self.calibration.table(work.family, work.dtype)
        if table is None or not work.sizes.keys() >= set(table.axes):  # a table of the same name, of other work
            return None
        return _rate_time(work.family, time_at(table, work.sizes), work.times)

    def launch_time(self) -> Band:
        """A measured op includes its launch."""
        return NOTHING

    def likely_s(self, lower_bound: LowerBound) -> float:
        """The same as `least_s`."""
        return self.least_s(lower_bound)

    def least_s(self, lower_bound: LowerBound) -> float:
        """Without a data sheet there is no bound to respect."""
        return 0.0


def _rate_time(rate: str, time: Timing, count: float) -> RateTime:
    band = Band(time.fastest_s * count, time.slowest_s * count, time.median_s * count)
    return RateTime(source=SOURCE, rate=str(rate), band=band)


def _op_runs_by_stage(graph: CallGraph, stages: Sequence[int]) -> dict[str, dict[OpRun, int]]:
    """Stage -> how often each op ran with which of its inputs scattered; what prepares a phase is no work of it."""
    kinds, first = ops_of(graph).kind, preparation(graph).stop
    counts: Counter[tuple[int, int, ScatteredInputs]] = Counter()
    for row, scattered in enumerate(scattered_inputs(graph)):
        if row >= first:
            counts[stages[row], kinds[row], scattered] += 1
    names = stage_names(graph)
    runs: dict[str, dict[OpRun, int]] = {name: {} for name in names}
    for (stage, kind, scattered), count in counts.items():
        runs[names[stage]][OpRun(graph.op_kinds[kind], scattered)] = count
    return runs


def scattered_inputs(graph: CallGraph) -> Iterator[ScatteredInputs]:
    """Per op, the places of its scattered inputs; a trace that follows no memory has none."""
    ops = ops_of(graph)
    inputs_from, outputs_from = tensor_offsets(graph)
    layouts = [Layout.NEW if (op := op_of(kind)) is None else op.layout for kind in graph.op_kinds]
    is_scattered: dict[tuple[int, tuple[int, ...]], bool] = {}  # storage and the shape it is seen in
    for row, index in enumerate(ops.kind):
        kind = graph.op_kinds[index]
        inputs = ops.input_storages[inputs_from[row] : inputs_from[row + 1]]
        outputs = ops.output_storages[outputs_from[row] : outputs_from[row + 1]]
        seen = [
            is_scattered.get((storage, meta.shape), False) for storage, meta in zip(inputs, kind.inputs, strict=False)
        ]
        yield frozenset(place for place, scattered in enumerate(seen) if scattered)
        for place, (storage, meta) in enumerate(zip(outputs, kind.outputs, strict=False)):
            is_scattered[storage, meta.shape] = _result(kind, layouts[index], place, seen)


def _result(kind: OpKind, layout: Layout, place: int, seen: list[bool]) -> bool:
    """Whether an output is scattered, from whether the inputs do."""
    if not seen:
        return False
    alias = kind.output_aliases[place] if place < len(kind.output_aliases) else -1
    if alias >= 0:
        moved = layout is Layout.REORDERED and kind.inputs[alias].shape[-1:] != kind.outputs[place].shape[-1:]
        return seen[alias] != moved
    if layout is not Layout.KEPT:
        return False
    return seen[_leading(kind)]


def _leading(kind: OpKind) -> int:
    """The first operand as large as the result; a broadcast operand does not decide the layout."""
    for place, meta in enumerate(kind.inputs):
        if meta.shape == kind.outputs[0].shape:
            return place
    return 0


def time_at(table: RateTable, sizes: Mapping[str, float]) -> Timing:
    """The time at `sizes`, one per axis of the table.

    Below the first size of an axis the time stays what it is there. Beyond the last it grows with the power that the
    table gives for the axis: a rate once reached is kept.
    """
    corners = [_corners(ticks, sizes[axis]) for axis, ticks in zip(table.axes, table.ticks, strict=True)]
    beyond = math.prod(
        max(1.0, sizes[axis] / ticks[-1]) ** power
        for axis, ticks, power in zip(table.axes, table.ticks, table.growth, strict=True)
    )
    fastest = median = slowest = 0.0
    for corner in itertools.product(*corners):
        weight = math.prod(share for _, share in corner)
        if weight:
            time = table.times[_row(table, [place for place, _ in corner])]
            fastest += weight * math.log(time.fastest_s)
            median += weight * math.log(time.median_s)
            slowest += weight * math.log(time.slowest_s)
    return Timing(
        median_s=beyond * math.exp(median),
        fastest_s=beyond * math.exp(min(fastest, median)),
        slowest_s=beyond * math.exp(max(slowest, median)),
    )


def _corners(ticks: Sequence[int], size: float) -> list[tuple[int, float]]:
    """The places of the one or two ticks around `size`, and how much each of them counts."""
    if size <= ticks[0]:
        return [(0, 1.0)]
    if size >= ticks[-1]:
        return [(len(ticks) - 1, 1.0)]
    right = bisect_right(ticks, size)
    share = math.log(size / ticks[right - 1]) / math.log(ticks[right] / ticks[right - 1])
    return [(right - 1, 1.0 - share), (right, share)]


def _row(table: RateTable, places: Sequence[int]) -> int:
    row = 0
    for ticks, place in zip(table.ticks, places, strict=True):
        row = row * len(ticks) + place
    return row
