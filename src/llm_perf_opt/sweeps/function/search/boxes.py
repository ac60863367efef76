"""Cells of a phase with several lengths: boxes in which it is one program, the largest first.

A program is fitted on a few samples near one end of a box and asked at its corners and at random points in it. Where it
is not what a trace says, the box shrinks until it is, and what was cut off is searched for itself. A boundary that runs
across two lengths (a window over the cache and the new tokens together) leaves a rest that no few boxes fill: that rest
stays open.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, product

from llm_perf_opt.sweeps.function.figures.costs import Region
from llm_perf_opt.sweeps.function.fitting import BATCH, Fitter
from llm_perf_opt.sweeps.function.form import Point
from llm_perf_opt.sweeps.function.program.alignment import Parting, same_run
from llm_perf_opt.sweeps.function.program.program import NoRule, Program
from llm_perf_opt.sweeps.function.program.sizing import program_of
from llm_perf_opt.sweeps.function.search.cells import Cell, OpenRegion
from llm_perf_opt.sweeps.function.search.sampling import NoTracesLeft, Traces

# How far the samples are from the end of a box, in each variable: no two of them move together.
_BATCHES = (0, 1, 0, 0, 1, 3, 0)
_FAR = ((0, 5, 9, 5, 11, 15, 21), (18, 18, 18, 30, 42, 28, 66))
_NEAR = ((0, 0, 1, 0, 2, 3, 1), (0, 0, 0, 1, 2, 1, 3))
_CHECKS = 2  # random points of each box that took no part
_HALVINGS = 2  # of a box that no program begins or ends


@dataclass(kw_only=True)
class BoxSearch:
    """Cells of a domain: a batch, and lengths along which the program may change.

    `hints` are lengths at which something may begin: they are asked first, which saves a bisection.
    """

    traces: Traces
    domain: Region
    hints: Sequence[int] = ()
    chunks: Sequence[int] = ()
    _reason: Parting | None = field(default=None, init=False)
    _known: set[int] = field(default_factory=set, init=False)  # the hints, and where boxes were found to end

    def run(self) -> Iterator[Cell | OpenRegion]:
        """The cells and the regions left open; together they tile the domain."""
        self._known.update(self.hints)
        numbers = count()
        waiting = [(-_volume(box), next(numbers), box, _HALVINGS) for box in _by_batch(self.domain)]
        heapq.heapify(waiting)
        while waiting:
            _, _, box, halvings = heapq.heappop(waiting)
            try:
                cell = self._cell_in(box)
            except NoTracesLeft:
                yield OpenRegion(region=box, why=_spent(self.traces))
                continue
            if cell is not None:
                yield cell
                rest, left = list(_without(box, cell.region)), halvings
            elif halvings and any((box[name][0] < box[name][1]) for name in self._lengths()):
                rest, left = self._halves(box), halvings - 1
            else:
                assert self._reason is not None, "a box without a cell has a reason"
                yield OpenRegion(region=box, why=self._reason)
                continue
            for part in rest:
                heapq.heappush(waiting, (-_volume(part), next(numbers), part, left))

    def _lengths(self) -> list[str]:
        return [name for name in self.domain if name != BATCH]

    def _halves(self, box: Region) -> list[Region]:
        name = max(self._lengths(), key=lambda length: math.log((box[length][1] + 1) / (box[length][0] + 1)))
        low, high = box[name]
        middle = min(high - 1, math.isqrt(low * high))
        return [{**box, name: (low, middle)}, {**box, name: (middle + 1, high)}]

    def _cell_in(self, box: Region) -> Cell | None:
        """A cell that holds one end of a box; None where no program is fitted at either end.

        What a cell left over lies beyond a boundary: there the far end is more likely to be one program.
        """
        is_first = all(box[name][0] == self.domain[name][0] for name in self._lengths())
        for at_low in (is_first, not is_first):
            points = self._samples(box, at_low=at_low)
            try:
                graphs = [self.traces.at(point) for point in points]
                varying = [name for name in box if len({point[name] for point in points}) > 1]
                program = program_of(graphs, Fitter(points=points, variables=varying, chunks=self.chunks))
            except NoRule as refusal:
                self._reason = refusal.parting
                continue
            cell = self._shrunk(box, program, points[0])
            if cell is not None:
                return cell
        return None

    def _samples(self, box: Region, *, at_low: bool) -> list[Point]:
        offsets = {BATCH: _BATCHES}
        lengths = self._lengths()
        has_room = all(box[name][1] - box[name][0] >= 2 * max(far) for name, far in zip(lengths, _FAR, strict=True))
        begin, reach = sum(box[name][0] for name in lengths), sum(map(max, _FAR))
        is_cut = at_low and any(begin < hint <= begin + reach for hint in self._known)
        offsets.update(zip(lengths, _FAR if has_room and not is_cut else _NEAR, strict=True))
        points = [
            {name: _at(ends, offsets[name][place], at_low=at_low or name == BATCH) for name, ends in box.items()}
            for place in range(len(_BATCHES))
        ]
        return list({tuple(point.values()): point for point in points}.values())

    def _shrunk(self, box: Region, program: Program, anchor: Point) -> Cell | None:
        """The box around a sample in which the program is what traces say; None where it is that sample alone."""
        checked: list[Point] = []
        rng = random.Random(0)
        while True:
            failing = next((p for p in self._questions(box, rng) if not self._is_right(program, p, checked)), None)
            if failing is None:
                return Cell(region=box, program=program, checked=tuple(p for p in checked if _holds(box, p)))
            cut = self._cut(box, program, anchor, failing, checked)
            if cut is None:
                return None
            box = cut

    def _questions(self, box: Region, rng: random.Random) -> Iterator[Point]:
        """The corners, which a boundary across the box always separates from the sample, and random points."""
        corners = product(*(dict.fromkeys(reversed(ends)) for ends in box.values()))
        yield from (dict(zip(box, corner, strict=True)) for corner in corners)
        for _ in range(_CHECKS):
            yield {name: rng.randint(*ends) for name, ends in box.items()}

    def _is_right(self, program: Program, point: Point, checked: list[Point]) -> bool:
        rebuilt = program.graph_at(point, with_observations=False)
        try:
            parting = same_run(rebuilt, self.traces.at(point))
        except NoRule as refusal:  # the trace failed
            parting = refusal.parting
        if parting is None:
            checked.append(point)
            return True
        self._reason = parting
        return False

    def _cut(self, box: Region, program: Program, anchor: Point, failing: Point, checked: list[Point]) -> Region | None:
        """The box without a failing point: cut in the one variable that makes it fail, or in all of them."""
        names = [name for name in (*reversed(self._lengths()), BATCH) if name in box and failing[name] != anchor[name]]
        for name in names:
            inside = {**failing, name: anchor[name]}
            if self._is_right(program, inside, checked):
                last = self._last_good(program, inside, failing, name, checked)
                self._known.update(() if name == BATCH else (last,))
                return _cut_at(box, name, last, failing[name])
        start = {**anchor, BATCH: failing[BATCH]}
        if not self._is_right(program, start, checked):
            last = self._last_good(program, anchor, start, BATCH, checked)
            return None if last == failing[BATCH] else _cut_at(box, BATCH, last, failing[BATCH])
        good = self._on_the_way(program, start, failing, checked)
        for name in names:
            box = _cut_at(box, name, good[name], failing[name])
        return None if _holds(box, failing) else box

    def _last_good(self, program: Program, inside: Point, failing: Point, name: str, checked: list[Point]) -> int:
        """The last value of one variable with which the program is right, from a good point to a failing one."""
        good, bad = inside[name], failing[name]
        others = {0, *(value for variable, value in failing.items() if variable not in (name, BATCH))}
        hints = {hint - other + side for hint in self._known for other in others for side in (-2, -1, 0, 1)}
        while abs(bad - good) > 1:
            low, high = sorted((good, bad))
            between = sorted(hint for hint in hints if low < hint < high)
            middle = between[len(between) // 2] if between else (low + high) // 2
            if self._is_right(program, {**failing, name: middle}, checked):
                good = middle
            else:
                bad = middle
        return good

    def _on_the_way(self, program: Program, anchor: Point, failing: Point, checked: list[Point]) -> Point:
        """The last good point on the way from the sample to a failing point, all variables moving in proportion."""
        good, bad, steps = 0, 64, 64
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._is_right(program, _between(anchor, failing, middle / steps), checked):
                good = middle
            else:
                bad = middle
        return _between(anchor, failing, good / steps)


def _between(start: Point, end: Point, share: float) -> Point:
    """So far from one point to the other, in equal ratios."""
    return {name: round((start[name] + 1) ** (1 - share) * (end[name] + 1) ** share) - 1 for name in start}


def _at(ends: tuple[int, int], offset: int, *, at_low: bool) -> int:
    low, high = ends
    inside = offset % (high - low + 1)
    return low + inside if at_low else high - inside


def _holds(box: Region, point: Point) -> bool:
    return all(low <= point[name] <= high for name, (low, high) in box.items())


def _cut_at(box: Region, name: str, good: int, failing: int) -> Region:
    low, high = box[name]
    return {**box, name: (low, good) if failing > good else (good, high) if failing < good else (low, high)}


def _without(box: Region, inner: Region) -> Iterator[Region]:
    """What is left of a box around an inner one, as boxes that do not overlap."""
    left = dict(box)
    for name, (low, high) in inner.items():
        first, last = left[name]
        if first < low:
            yield {**left, name: (first, low - 1)}
        if high < last:
            yield {**left, name: (high + 1, last)}
        left[name] = (low, high)


def _volume(box: Region) -> float:
    """Each octave of a length counts alike; a batch of one counts as much as all others."""
    return math.prod(math.log2((high + 1) / low) for name, (low, high) in box.items() if name != BATCH)


def _by_batch(domain: Region) -> Iterator[Region]:
    """A batch of one for itself: copies turn into views there."""
    low, high = domain[BATCH]
    if low == 1:
        yield {**domain, BATCH: (1, 1)}
    if high > 1:
        yield {**domain, BATCH: (max(low, 2), high)}


def _spent(traces: Traces) -> Parting:
    return Parting(what="budget", op=None, text=f"{traces.count} traces were made, and no more allowed")
