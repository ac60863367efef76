"""Arrows that never cross a box or run along each other: lanes between columns, bands and along the left margin.

Boxes stand in columns, columns in bands. An arrow to the next column crosses the channel between the two. Any other
leaves to the right, follows a lane of that channel to the gutter above or below its band, and enters its target
from the left in the same way. Arrows from one box share their lanes, because they carry the same tensor. An arrow
enters its target next to the port where a neighbour of its source leaves at that height for another box: on one
height the two would run along each other, whichever lanes they had.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

Run = tuple[float, float]  # where it begins and ends, the smaller number first


@dataclass(slots=True)
class Lanes:
    """Each source that runs through has one lane, and two that do not meet may share."""

    spans: dict[int, Run] = field(default_factory=dict)
    lane_of: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def use(self, source: int, start: float, end: float) -> None:
        """`source` runs from `start` to `end`, in addition to what it has already."""
        low, high = self.spans.get(source, (math.inf, -math.inf))
        self.spans[source] = (min(low, start, end), max(high, start, end))

    def assign(self, earlier: Mapping[int, Collection[int]] | None = None) -> None:
        """Give out the lanes, the first free one to each; the lanes of the sources `earlier` must come before."""
        earlier = earlier or {}
        lanes: list[list[Run]] = []
        waiting = sorted(self.spans, key=lambda source: (self.spans[source], source))
        while waiting:
            ready = (source for source in waiting if not set(earlier.get(source, ())) & set(waiting))
            source = next(ready, waiting[0])  # where sources wait for each other in a circle, one must begin
            waiting.remove(source)
            least = 1 + max((self.lane_of.get(other, -1) for other in earlier.get(source, ())), default=-1)
            run = self.spans[source]
            lane = next((lane for lane in range(least, len(lanes)) if not _meets(run, lanes[lane])), len(lanes))
            if lane == len(lanes):
                lanes.append([])
            lanes[lane].append(run)
            self.lane_of[source] = lane
        self.count = len(lanes)


def _meets(run: Run, others: list[Run]) -> bool:
    return any(run[0] <= high and low <= run[1] for low, high in others)


LANE = 6.0
CLEAR = 10.0  # between a box and the first lane: a family sticks out a little to the right and below
ENTRY = 14.0  # between the last lane and the box on its right: room for the head of an arrow
_ABOVE = 4.0  # between the content's upper edge and the first lane
_BESIDE = 8.0  # from the port to the second place where arrows may enter

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxCell:
    """Where a box stands: band, column within it, the height at which arrows meet it, from the top of the band."""

    band: int
    column: int
    port_y: float


@dataclass(frozen=True, slots=True)
class Wire:
    """One arrow, as the places in the list of cells."""

    source: int
    target: int


class Router:
    """Finds the lanes of all arrows among siblings, tells how wide channels must be, and then the corner points."""

    def __init__(self, cells: Sequence[BoxCell], wires: Iterable[Wire], columns_per_band: Sequence[int]) -> None:
        self._cells = cells
        self._wires = list(wires)
        self._turning: defaultdict[tuple[int, int], list[Wire]] = defaultdict(list)  # by band and column of the source
        for wire in self._wires:
            if not self._is_level(wire):
                source = self._cells[wire.source]
                self._turning[source.band, source.column].append(wire)
        self._leaving = [[Lanes() for _ in range(count + 1)] for count in columns_per_band]
        self._entering = [[Lanes() for _ in range(count + 1)] for count in columns_per_band]
        self._crossed = {
            (self._cells[wire.source].band, self._cells[wire.target].column)
            for wire in self._wires
            if self._is_next(wire)
        }
        self.gutters = [Lanes() for _ in range(len(columns_per_band) + 1)]
        self.margin = Lanes()
        for wire in self._wires:
            self._use_channels(wire)
        for lanes in [*_flat(self._leaving), *_flat(self._entering), self.margin]:
            lanes.assign()

    def channel_width(self, band: int, channel: int) -> float:
        """The room that lanes and arrow heads need left of column `channel`; 0 where nothing runs."""
        count = self._leaving[band][channel].count + self._entering[band][channel].count
        if not count:
            return CLEAR + ENTRY if (band, channel) in self._crossed else 0.0
        return CLEAR + (count - 1) * LANE + ENTRY

    def margin_width(self) -> float:
        """The room left of all bands."""
        return self.margin.count * LANE

    def gutter_height(self, gutter: int) -> float:
        """The room above band `gutter`, or below the last band; 0 where nothing runs."""
        count = self.gutters[gutter].count
        return _first_lane(gutter) + (count - 1) * LANE + _ABOVE if count else 0.0

    def assign_gutters(self, left_of: Callable[[int, int], float]) -> None:
        """Give out the lanes between bands; `left_of(band, channel)` is where a channel begins."""
        for wire in self._wires:
            if not self._is_next(wire):
                for gutter, start, end in self._gutter_runs(wire, left_of):
                    self.gutters[gutter].use(wire.source, start, end)
        for gutter, lanes in enumerate(self.gutters):
            lanes.assign(self._earlier_in(gutter, left_of))

    def points(
        self,
        wire: Wire,
        left_of: Callable[[int, int], float],
        top_of: Callable[[int], float],
        gutter_top: Callable[[int], float],
        edges: tuple[float, float],
    ) -> list[Point]:
        """The corners of an arrow; `edges` are the right side of its source and the left side of its target."""
        source, target = self._cells[wire.source], self._cells[wire.target]
        start_y, end_y = top_of(source.band) + source.port_y, top_of(target.band) + self._entry_y(wire)
        start, end = (edges[0], start_y), (edges[1], end_y)
        if self._is_next(wire):
            if start_y == end_y:
                return [start, end]
            lane = self._leaving_x(wire.source, left_of)
            return [start, (lane, start_y), (lane, end_y), end]
        ys = [
            gutter_top(gutter) + _first_lane(gutter) + self.gutters[gutter].lane_of[wire.source] * LANE
            for gutter in self._gutters_of(wire)
        ]
        out, into = self._leaving_x(wire.source, left_of), self._entering_x(wire, left_of)
        corners = [(out, start_y), (out, ys[0])]
        if len(ys) == 2:
            margin = self.margin.lane_of[wire.source] * LANE
            corners += [(margin, ys[0]), (margin, ys[1])]
        return [start, *corners, (into, ys[-1]), (into, end_y), end]

    def _is_next(self, wire: Wire) -> bool:
        source, target = self._cells[wire.source], self._cells[wire.target]
        return source.band == target.band and source.column + 1 == target.column

    def _is_level(self, wire: Wire) -> bool:
        """Whether the two ports can be joined by one line."""
        return self._is_next(wire) and self._cells[wire.source].port_y == self._cells[wire.target].port_y

    def _entry_y(self, wire: Wire) -> float:
        """The height at which an arrow meets its target: the port, or next to it where that height is taken."""
        source, port_y = self._cells[wire.source], self._cells[wire.target].port_y
        if self._is_level(wire) or not self._is_next(wire):
            return port_y
        is_taken = any(
            other.source != wire.source
            and other.target != wire.target
            and abs(self._cells[other.source].port_y - port_y) < _BESIDE / 2
            for other in self._turning[source.band, source.column]
        )
        return port_y + _BESIDE if is_taken else port_y

    def _gutters_of(self, wire: Wire) -> tuple[int, ...]:
        """The gutter between, above a shared band, or two of them joined by the margin. Gutter 0 is above band 0."""
        source, target = self._cells[wire.source].band, self._cells[wire.target].band
        if source == target:
            return (source,)
        return (target,) if target == source + 1 else (source + 1, target)

    def _use_channels(self, wire: Wire) -> None:
        source, target = self._cells[wire.source], self._cells[wire.target]
        leaving = self._leaving[source.band][source.column + 1]
        if self._is_next(wire):
            entry_y = self._entry_y(wire)
            if source.port_y != entry_y:
                leaving.use(wire.source, source.port_y, entry_y)
            return
        gutters = self._gutters_of(wire)
        leaving.use(wire.source, source.port_y, -math.inf if gutters[0] == source.band else math.inf)
        self._entering[target.band][target.column].use(wire.source, target.port_y, -math.inf)
        if len(gutters) == 2:
            self.margin.use(wire.source, *gutters)

    def _gutter_runs(self, wire: Wire, left_of: Callable[[int, int], float]) -> list[tuple[int, float, float]]:
        gutters = self._gutters_of(wire)
        out, into = self._leaving_x(wire.source, left_of), self._entering_x(wire, left_of)
        if len(gutters) == 1:
            return [(gutters[0], out, into)]
        return [(gutters[0], 0.0, out), (gutters[1], 0.0, into)]

    def _earlier_in(self, gutter: int, left_of: Callable[[int, int], float]) -> dict[int, set[int]]:
        """For sources that go down from a gutter: those that come down to it at the same place, and must end above."""
        coming: list[tuple[int, float]] = []
        going: list[tuple[int, float]] = []
        for wire in self._wires:
            gutters = () if self._is_next(wire) else self._gutters_of(wire)
            if gutter in gutters[:1]:
                is_above = self._cells[wire.source].band < gutter
                (coming if is_above else going).append((wire.source, self._leaving_x(wire.source, left_of)))
            if gutter in gutters[-1:]:
                going.append((wire.source, self._entering_x(wire, left_of)))
        earlier: defaultdict[int, set[int]] = defaultdict(set)
        for (lower, x), (upper, upper_x) in product(going, coming):
            if lower != upper and abs(x - upper_x) < LANE / 2:
                earlier[lower].add(upper)
        return earlier

    def _leaving_x(self, source: int, left_of: Callable[[int, int], float]) -> float:
        cell = self._cells[source]
        lane = self._leaving[cell.band][cell.column + 1].lane_of[source]
        return left_of(cell.band, cell.column + 1) + CLEAR + lane * LANE

    def _entering_x(self, wire: Wire, left_of: Callable[[int, int], float]) -> float:
        cell = self._cells[wire.target]
        lane = self._entering[cell.band][cell.column].lane_of[wire.source]
        lane += self._leaving[cell.band][cell.column].count
        return left_of(cell.band, cell.column) + CLEAR + lane * LANE


def _flat(rows: list[list[Lanes]]) -> list[Lanes]:
    return [lanes for row in rows for lanes in row]


def _first_lane(gutter: int) -> float:
    return CLEAR if gutter else _ABOVE
