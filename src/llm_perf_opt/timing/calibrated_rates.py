"""Rates of a calibrated machine: every op by the measured table of its family of work, at its size.

Between two measured sizes a time lies on a straight line between their logarithms. On those lines a time that is
constant (the way to the kernel) and one that grows in proportion (bandwidth, arithmetic) are both exact, whatever the
distance between the measured sizes.

Some tensors lie scattered in memory: neighbours along their last dimension are far apart. A convolution leaves its
channels first; read with the channels last, they are scattered. Elementwise ops hand the layout of their first operand
on to their result, so that a whole residual stream can stay scattered: every sum with a contiguous tensor then reads
one of the two in strides, and every norm copies its input first. A trace holds no strides; they are followed here from
the views that move the last dimension.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_calls, stage_of_ops, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.hardware.calibration import Calibration, RateTable, Timing
from llm_perf_opt.core.report import Level, Note
from llm_perf_opt.costs.necessary.read_once import preparation
from llm_perf_opt.ops.op import CalibratedWork, Kernel, Layout
from llm_perf_opt.ops.table import MODULE_CALL, ScatteredInputs, calibrated_work_of, op_of
from llm_perf_opt.timing.heap import fresh_bytes_by_op
from llm_perf_opt.timing.lower_bound import LowerBound
from llm_perf_opt.timing.rates import NOTHING, Band, OpRun, Overhead, Piece, Pieces, RateTime
from llm_perf_opt.timing.stage_work import StageWork

SOURCE = "calibration"


@dataclass(frozen=True, slots=True)
class CalibratedRates:
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
        """Where the times and their ends come from."""
        yield Note(f"Times on {self.title}, as its calibration measured them.")
        yield Note("Low and high: all work at the fastest, or all at the slowest try of the calibration.")
        if self.calibration.is_smoke:
            yield Note("The calibration tried the smallest sizes only: these times mean nothing.", Level.WARNING)

    @property
    def engine(self) -> str | None:
        """No engine's in particular."""
        return None

    def meet(self, graphs: Iterable[CallGraph]) -> None:
        """Kernels are timed as they come: nothing is learnt of a run."""

    def expected_s(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, float]:
        """None: times are those of ops."""
        return {}

    def pieces(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, Pieces]:
        """The ops of each stage, its module calls, and the bytes that the system hands out while it runs."""
        names, stages = stage_names(graph), stage_of_ops(graph)
        runs = _op_runs_by_stage(graph, stages)
        calls = Counter(names[stage] for stage in stage_of_calls(graph))
        fresh = self._fresh_bytes_by_stage(graph, stages)
        overheads = {Overhead.FRESH_BYTE: fresh, Overhead.MODULE_CALL: calls}
        return {
            work.name: (
                *runs[work.name].items(),
                *((overhead, counts[work.name]) for overhead, counts in overheads.items() if counts[work.name]),
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

    def of_stage(self, kernels: Band) -> Band:
        """Its ops and nothing else."""
        return kernels

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
    found: dict[str, dict[OpRun, int]] = {name: {} for name in names}
    for (stage, kind, scattered), count in counts.items():
        found[names[stage]][OpRun(graph.op_kinds[kind], scattered)] = count
    return found


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
    """Whether an output lies scattered, from whether the inputs do."""
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
