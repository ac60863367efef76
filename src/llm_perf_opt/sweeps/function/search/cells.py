"""Regions in which a phase is one program, found by asking traces and nothing else.

A region is a box: a range for each variable. Fit a program on a few samples in it, then ask traces at its corners, at
lengths that a configuration names and at random. Where a trace is another run than the program says, bisect for the
last good value, cut the box there, and go on with the part that was cut off. A batch of one is a region of its own,
since copies turn into views there. What cannot be proven within the budget of traces is left open.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import lcm

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of
from llm_perf_opt.sweeps.function.figures.costs import Region
from llm_perf_opt.sweeps.function.fitting import Fitter
from llm_perf_opt.sweeps.function.form import Point
from llm_perf_opt.sweeps.function.program.alignment import Parting, same_program, same_run
from llm_perf_opt.sweeps.function.program.program import NO_RULE, NoRule, Program
from llm_perf_opt.sweeps.function.program.sizing import program_of
from llm_perf_opt.sweeps.function.search.sampling import (
    CHUNK_OFFSETS,
    FAILED,
    LENGTH_OFFSETS,
    NoTracesLeft,
    Stride,
    Traces,
    at_chunk_end,
    batch_ranges,
    corners,
    holds,
    random_point,
    samples_of,
    size_of,
)

_SMALLEST_CHUNK = 16
_CHECKS = 2  # random points of a region that took no part; one where only one variable moves
_SIDES = (0, -1, 1, -2)  # of a length that a configuration names: where a window begins to be felt
_MOST_SINGLES = 3  # lengths in a row of which each is a program of its own
_MOST_REFITS = 6
_SIZES_PART = frozenset(("sizes", "bytes"))  # the same program, and another size


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A region and its program. `checked` are points at which a trace was found to be the same run.

    `stride` leaves out lengths of the region.
    """

    region: Region
    program: Program
    checked: tuple[Point, ...] = ()
    stride: Stride | None = None

    def holds(self, point: Point) -> bool:
        """Whether the point is in the region."""
        return holds(self.region, self.stride, point)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRegion:
    """A region without a program, and the reason."""

    region: Region
    why: Parting
    stride: Stride | None = None


@dataclass(kw_only=True)
class _Fit:
    """A program and the points it was fitted on; the first of them is where a search for a boundary starts."""

    program: Program
    samples: list[Point]


_Found = tuple[list[Cell | OpenRegion], list[Region]]  # of a part of a region, and what is left of it


@dataclass(kw_only=True)
class CellSearch:
    """Cells of a domain: a batch, and one length along which the program may change.

    `hints` are values of `length` at which something may begin, as the windows and chunks of a configuration: they are
    asked in every region. `boundaries` are where cells of other phases and batches began, and those found here: a
    bisection asks there first. `chunks` are lengths in which code may cut a sequence.
    """

    traces: Traces
    domain: Region
    length: str
    hints: Sequence[int] = ()
    chunks: Sequence[int] = ()
    boundaries: list[int] = field(default_factory=list)
    _fits: list[_Fit] = field(default_factory=list, init=False)
    _singles: int = field(default=0, init=False)
    _cuts: set[int] = field(default_factory=set, init=False)  # lengths at which cells of this phase begin
    _multiples_of: list[tuple[Region, int]] = field(default_factory=list, init=False)  # still to be searched
    _drawn: list[Point] = field(default_factory=list, init=False)  # random points that were asked
    _chunk: int | None = field(default=None, init=False)  # a chunk with multiples that run another program

    def run(self) -> Iterator[Cell | OpenRegion]:
        """The cells and the regions left open, in order; together they tile the domain."""
        waiting: list[Region] = [{**self.domain, **batches} for batches in batch_ranges(self.domain)]
        done = list[Cell | OpenRegion]()
        while waiting or self._multiples_of:
            region = max(waiting, key=size_of, default=None)  # a small budget proves as much as it can
            if region is None or (self._multiples_of and _width(region[self.length]) < _SMALLEST_CHUNK):
                done.extend(self._multiples(*self._multiples_of.pop(0)))
                continue
            waiting.remove(region)
            if self._cuts and region[self.length] == self.domain[self.length]:
                waiting.extend(self._cut_alike(region))  # other batches part at the same lengths, as a rule
                continue
            try:
                cell, rest = self._first_in(region)
            except NoTracesLeft:
                cell, rest = [OpenRegion(region=region, why=self._spent())], []
            done.extend(cell)
            waiting.extend(rest)
        yield from sorted(done, key=lambda cell: tuple(cell.region.values()))

    def _cut_alike(self, region: Region) -> Iterator[Region]:
        low, high = region[self.length]
        starts = sorted({low, *self._cuts})
        self._cuts.clear()
        for start, end in pairwise((*starts, high + 1)):
            yield {**region, self.length: (start, end - 1)}

    def _first_in(self, region: Region) -> _Found:
        """The cells of a part of a region, and what is left of the region."""
        for fit in reversed(self._fits):
            if all(self._parting(fit.program, corner) is None for corner in corners(region)):
                anchored = replace(fit, samples=[next(corners(region)), *fit.samples])
                return self._proven(region, anchored)
        reason: Parting | None = None
        for lengths in self._sample_lengths(region):
            try:
                fit = self._fitted_on(region, lengths)
            except NoRule as refusal:
                if refusal.parting.what == FAILED:
                    return [OpenRegion(region=region, why=refusal.parting)], []
                reason = reason or refusal.parting
                continue
            self._fits.append(fit)
            self._singles = 0
            return self._proven(region, fit)
        return self._single(region, reason)

    def _sample_lengths(self, region: Region) -> Iterator[list[int]]:
        """Lengths to fit on: below the first length that a configuration names, then ever nearer to the low end."""
        low, high = region[self.length]
        ahead = [
            hint - 2 for hint in (*self.boundaries, *self.hints) if low + max(LENGTH_OFFSETS[-1]) <= hint - 2 < high
        ]
        seen: set[tuple[int, ...]] = set()
        for end in dict.fromkeys((min(ahead, default=high), high)):
            for offsets in LENGTH_OFFSETS:
                if low + offsets[-1] <= end and offsets not in seen:
                    seen.add(offsets)
                    yield [low + offset for offset in offsets]
                    if end < high:
                        break  # the widest that stays below it
        if high - low < LENGTH_OFFSETS[-1][-1]:
            yield list(range(low, high + 1))

    def _single(self, region: Region, reason: Parting | None) -> _Found:
        """The lowest length as a region of its own, where its neighbours are other programs."""
        low, high = region[self.length]
        unfit = reason or Parting(what=NO_RULE, op=None, text="no sizes could be found from these samples")
        if low == high or self._singles >= _MOST_SINGLES:
            return [OpenRegion(region=region, why=unfit)], []
        self._singles += 1
        alone, rest = {**region, self.length: (low, low)}, {**region, self.length: (low + 1, high)}
        try:
            fit = self._fitted_on(alone, [low])
        except NoRule as refusal:
            return [OpenRegion(region=alone, why=refusal.parting)], [rest]
        cell, more = self._proven(alone, fit)
        return cell, [rest, *more]

    def _fitted_on(self, region: Region, lengths: Sequence[int]) -> _Fit:
        """A program fitted on few samples, or on more where few give no rule."""
        few, more = samples_of(region, self.length, lengths)
        try:
            return self._fitted(few)
        except NoRule as refusal:
            if refusal.parting.what != NO_RULE or len(few) == len(more):
                raise
            return self._fitted(more)

    def _fitted(self, points: Sequence[Point]) -> _Fit:
        varying = [name for name in self.domain if len({point[name] for point in points}) > 1]
        graphs = list(self._of_one_program(points))
        try:
            program = program_of(graphs, Fitter(points=points, variables=varying, chunks=self.chunks))
        except NoRule as refusal:
            if refusal.wanted is None or refusal.wanted in points:
                raise
            return self._fitted([*points, refusal.wanted])
        return _Fit(program=program, samples=list(points))

    def _of_one_program(self, points: Sequence[Point]) -> Iterator[CallGraph]:
        """The graphs of points; no further ones are traced when one is of another program than the first.

        One with more ops or fewer may be the same with a loop that runs more often.
        """
        first = self.traces.at(points[0])
        yield first
        for point in points[1:]:
            graph = self.traces.at(point)
            if len(ops_of(first).kind) == len(ops_of(graph).kind) and (parting := same_program([first, graph])):
                raise NoRule(parting)
            yield graph

    def _proven(self, region: Region, fit: _Fit, stride: Stride | None = None) -> _Found:
        """The part of a region in which a program is what traces say, and the parts that were cut off."""
        rest, refits = list[Region](), 0
        while True:
            checked = list[Point]()
            bad = self._first_bad(region, stride, fit, checked)
            if bad is None:
                return [Cell(region=region, program=fit.program, checked=tuple(checked), stride=stride)], rest
            point, parting = bad
            if parting.what in _SIZES_PART and refits < _MOST_REFITS and self._refitted(fit, point):
                refits += 1
                continue
            if stride is None and (chunk := self._chunk_at(region, fit.program, point)) is not None:
                self._chunk = chunk
                others = Stride(variable=self.length, chunk=chunk, is_multiple=False)
                cell, cut_off = self._proven(region, fit, others)
                self._multiples_of.append((cell[0].region, chunk))
                return cell, [*cut_off, *rest]
            region, cut = self._cut(region, fit, point, stride)
            rest.insert(0, cut)

    def _chunk_at(self, region: Region, program: Program, bad: Point) -> int | None:
        """The chunk with multiples that run another program than their neighbours, a point among them, or None."""
        low, high = region[self.length]
        length = bad[self.length]

        def is_bad(value: int) -> bool:
            return self._parting(program, {**bad, self.length: value}) is not None

        fitting = [c for c in self._likely_chunks() if length % c == 0]
        neighbours = [neighbour for neighbour in (length - 1, length + 1) if low <= neighbour <= high]
        if not fitting or high - low < 4 * min(fitting) or any(map(is_bad, neighbours)):
            return None
        if self._chunk in fitting:
            return self._chunk
        away = -1 if length - low > high - length else 1
        return next((c for c in fitting if low < length + away * c < high and is_bad(length + away * c)), None)

    def _likely_chunks(self) -> list[int]:
        """Chunks that a configuration names, then others, small ones first."""
        return [c for c in dict.fromkeys((*sorted(self.hints), *sorted(self.chunks))) if c >= _SMALLEST_CHUNK]

    def _multiples(self, region: Region, chunk: int) -> Iterator[Cell | OpenRegion]:
        """The lengths of a region that are multiples of a chunk. One chunk may be another program than several."""
        low, high = region[self.length]
        first = -(-low // chunk) * chunk
        if first > high:
            return
        stride = Stride(variable=self.length, chunk=chunk, is_multiple=True)
        cell = self._whole_cell(region, stride)
        if isinstance(cell, Cell) or high < first + chunk:
            yield cell
            return
        yield self._whole_cell({**region, self.length: (low, first)}, stride)
        yield self._whole_cell({**region, self.length: (first + 1, high)}, stride)

    def _whole_cell(self, region: Region, stride: Stride) -> Cell | OpenRegion:
        """A region as one cell, or not at all."""
        low, high = stride.inner(*region[self.length])
        lengths = [low + stride.chunk * offset for offset in CHUNK_OFFSETS if low + stride.chunk * offset <= high]
        checked = list[Point]()
        try:
            fit = self._fitted_on(region, lengths)
            bad = self._first_bad(region, stride, fit, checked)
            if bad is None:
                return Cell(region=region, program=fit.program, checked=tuple(checked), stride=stride)
            why = bad[1]
        except NoRule as refusal:
            why = refusal.parting
        except NoTracesLeft:
            why = self._spent()
        return OpenRegion(region=region, why=why, stride=stride)

    def _spent(self) -> Parting:
        return Parting(what="budget", op=None, text=f"{self.traces.count} traces were made, and no more allowed")

    def _first_bad(
        self, region: Region, stride: Stride | None, fit: _Fit, checked: list[Point]
    ) -> tuple[Point, Parting] | None:
        """A point of a region at which a trace is another run than the program says; None: none was found."""
        for point in self._to_check(region, stride, fit):
            parting = self._parting(fit.program, point)
            if parting is not None:
                return point, parting
            if point not in checked and point not in fit.samples:
                checked.append(point)
        return None

    def _to_check(self, region: Region, stride: Stride | None, fit: _Fit) -> Iterator[Point]:
        """Every point that was traced before, corners, lengths that a configuration names, and random points."""
        yield from (point for point in self.traces.points if holds(region, stride, point))
        yield from corners(region, stride)
        low, high = region[self.length]
        rng = random.Random(str(sorted(region.items())))
        named = [hint + side for hint in self.hints if low + 2 < hint < high - 2 for side in _SIDES]
        every_chunk = lcm(*(chunk for chunk in self.chunks if chunk >= _SMALLEST_CHUNK))
        if low < high // every_chunk * every_chunk < high:
            named.append(high // every_chunk * every_chunk)  # without a remainder, whatever the chunk is
        for length in named:
            if stride is None or stride.holds(length):
                yield {**random_point(region, stride, rng), self.length: length}
        moving = sum(low < high for low, high in region.values())
        drawn = [point for point in self._drawn if holds(region, stride, point) and point not in fit.samples]
        for _ in range(min(moving, _CHECKS) - len(drawn)):
            point: Point = random_point(region, stride, rng)
            if not drawn and fit.program.has_steps:
                point = at_chunk_end(region, stride, point, self.length, self._likely_chunks())
            drawn.append(point)
            self._drawn.append(point)
            yield point

    def _refitted(self, fit: _Fit, point: Point) -> bool:
        """Whether a program with another size at a point is one that fits this point too; it then replaces it."""
        try:
            better = self._fitted([*fit.samples, point])
        except NoRule:
            return False
        fit.program, fit.samples = better.program, better.samples
        return True

    def _cut(self, region: Region, fit: _Fit, bad: Point, stride: Stride | None) -> tuple[Region, Region]:
        """A region in two, between a sample and a point that differs: the part of the sample, and the other."""
        inside = [point for point in fit.samples if holds(region, stride, point)]
        at = dict(min(inside, key=lambda point: abs(point[self.length] - bad[self.length])))
        for axis in (self.length, *(name for name in region if name != self.length)):
            there = {**at, axis: bad[axis]}
            if at[axis] == bad[axis]:
                continue
            if self._parting(fit.program, there) is None:
                at = there
                continue
            good, other = self._bisected(fit.program, at, axis, bad[axis], stride)
            low, high = region[axis]
            if other > good:
                self._remember(axis, other)
                return {**region, axis: (low, good)}, {**region, axis: (other, high)}
            self._remember(axis, good)
            return {**region, axis: (good, high)}, {**region, axis: (low, other)}
        raise AssertionError("a point that differs from a sample differs in a variable")

    def _remember(self, axis: str, start: int) -> None:
        if axis == self.length:
            self._cuts.add(start)
            if start not in self.boundaries:
                self.boundaries.append(start)

    def _bisected(self, program: Program, at: Point, axis: str, bad: int, stride: Stride | None) -> tuple[int, int]:
        """The last good and the first bad value along a variable; values that hints name are asked first."""
        good = at[axis]
        named = (*self.boundaries, *self.hints, *self.chunks) if axis == self.length else ()
        hints = [hint + side for hint in named for side in _SIDES]
        while abs(bad - good) > 1:
            low, high = sorted((good, bad))
            if stride is not None and axis == self.length:
                between = [
                    cut for cut in (*hints, (low + high) // 2, low + 1) if low < cut < high and stride.holds(cut)
                ]
            else:
                between = [cut for cut in (*hints, (low + high) // 2) if low < cut < high]
            if not between:
                return good, good + (1 if bad > good else -1)
            value = between[0]
            if self._parting(program, {**at, axis: value}) is None:
                good = value
            else:
                bad = value
        return good, bad

    def _parting(self, program: Program, point: Point) -> Parting | None:
        try:
            return same_run(program.graph_at(point, with_observations=False), self.traces.at(point))
        except NoRule as refusal:  # a loop cannot run as often as it would have to, or the trace failed
            return refusal.parting


def _width(limits: tuple[int, int]) -> int:
    return limits[1] - limits[0] + 1
