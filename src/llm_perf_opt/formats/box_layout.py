"""Boxes in boxes on a plane: sizes from the inside out, places relative to the box around, arrows between siblings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Protocol, TypeVar

from llm_perf_opt.core.graph_view import Arrow, Box
from llm_perf_opt.formats.box_routes import CLEAR, ENTRY, BoxCell, Point, Router, Wire

PADDING = 10.0
STACK_GAP = 11.0  # between boxes of one column
BAND_GAP = 16.0
CHANNEL = CLEAR + ENTRY  # between columns, as long as no more lanes are needed
_TRIES = 3
_DIRECT = 4  # corner points of an arrow to the next column, at most
_DETOUR = 40.0  # the height that an arrow on another way is worth
_PARTS = (0.25, 0.33, 0.42, 0.5, 0.67, 0.83, 1.0)  # of the width there is, as the limits tried for a box
_LANES = 2 * CHANNEL  # what lanes usually need left and right of the bands
PORT_Y = 19.0  # where arrows meet a box, below its top: the middle of its first line


@dataclass(frozen=True, slots=True)
class Size:
    """For a box that is drawn open: of its heading, the width being the least it can do with."""

    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A box with its place. Coordinates are relative to the box around; routes are corner points inside this box."""

    box: Box
    x: float
    y: float
    width: float
    height: float
    children: tuple[Placed, ...] = ()
    routes: tuple[tuple[Point, ...], ...] = ()
    burden: float = 0.0  # the height one would give to be rid of the detours inside


Measure = Callable[[Box], Size]


def is_opened(box: Box) -> bool:
    """Whether the default picture shows what is inside."""
    return box.is_open and bool(box.children)


@dataclass(frozen=True, slots=True)
class _Column:
    """Boxes above each other, all as wide as the widest."""

    boxes: tuple[Placed, ...]
    width: float
    height: float
    burden: float


class BoxLayout:
    """Lays out one view from the inside out: every box offers a few shapes, narrow and high to wide and low."""

    def __init__(self, measure: Measure) -> None:
        self._measure_of = measure
        self._sizes: dict[str, Size] = {}

    def place(self, root: Box, limit: float) -> Placed:
        """The box at (0, 0), as low as can be within `limit`; wider only where its boxes leave no choice."""
        if not is_opened(root):
            return self._closed(root)
        columns = self._columns(root, limit - 2 * PADDING)
        inner = limit - 2 * PADDING
        placed = self._arranged(root, columns, inner)
        for _ in range(_TRIES):  # lanes take room that is known only afterwards
            excess = placed.width - limit
            if excess <= 0:
                break
            inner -= excess + 1
            placed = min(placed, self._arranged(root, columns, inner), key=lambda choice: choice.width)
        return placed

    def _shapes(self, box: Box, limit: float) -> list[Placed]:
        """The shapes a box can take, each wider and lower than the one before."""
        if not is_opened(box):
            return [self._closed(box)]
        columns = self._columns(box, limit - 2 * PADDING)
        tried = [self._arranged(box, columns, limit * part - 2 * PADDING) for part in _PARTS]
        return _frontier(tried)

    def _columns(self, box: Box, inner: float) -> list[list[_Column]]:
        limit = inner - _LANES
        return [
            _stacks([self._shapes(child, limit) for child in column]) for column in columns_of(box.children, box.arrows)
        ]

    def _measure(self, box: Box) -> Size:
        if box.id not in self._sizes:
            self._sizes[box.id] = self._measure_of(box)
        return self._sizes[box.id]

    def _closed(self, box: Box) -> Placed:
        size = self._measure(box)
        return Placed(box=box, x=0, y=0, width=size.width, height=size.height)

    def _arranged(self, box: Box, columns: list[list[_Column]], inner: float) -> Placed:
        heading = self._measure(box)
        content = _Arrangement(columns, box, inner)
        return Placed(
            box=box,
            x=0,
            y=0,
            width=max(content.width + 2 * PADDING, heading.width),
            height=heading.height + content.height + PADDING,
            children=tuple(
                replace(child, x=child.x + PADDING, y=child.y + heading.height) for child in content.children
            ),
            routes=tuple(tuple((x + PADDING, y + heading.height) for x, y in route) for route in content.routes),
            burden=content.burden,
        )


def _stacks(members: list[list[Placed]]) -> list[_Column]:
    """Boxes above each other, at every width that one of them offers; each takes its lowest shape that fits."""
    columns = []
    for width in sorted({shape.width for shapes in members for shape in shapes}):
        boxes = tuple(
            next((shape for shape in reversed(shapes) if shape.width <= width), shapes[0]) for shapes in members
        )
        height = sum(placed.height + STACK_GAP for placed in boxes) - STACK_GAP
        burden = sum(placed.burden for placed in boxes)
        columns.append(_Column(boxes, max(placed.width for placed in boxes), height, burden))
    return _frontier(columns)


_S = TypeVar("_S", Placed, _Column)


def _frontier(shapes: list[_S]) -> list[_S]:
    """Without the shapes that another one beats or equals in width and cost; from narrow to wide."""
    frontier: list[_S] = []
    for shape in sorted(shapes, key=lambda shape: (shape.width, shape.height + shape.burden)):
        if not frontier or shape.height + shape.burden < frontier[-1].height + frontier[-1].burden:
            frontier.append(shape)
    return frontier


class _Arrangement:
    """The content of one box: columns in bands, with lanes for the arrows between them."""

    def __init__(self, columns: Sequence[Sequence[_Column]], box: Box, limit: float) -> None:
        self._bands = [
            [columns[place][choice].boxes for place, choice in enumerate(band.chosen, start=band.start)]
            for band in bands_of(columns, limit, CHANNEL)
        ]
        order = [child for band in self._bands for column in band for child in column]
        number = {child.box.id: place for place, child in enumerate(order)}
        wires = [
            Wire(number[arrow.source], number[arrow.target]) for arrow in box.arrows if arrow.source != arrow.target
        ]
        router = Router(self._cells(), wires, [len(band) for band in self._bands])
        self._place_across(router)
        router.assign_gutters(self._left_of)
        self._place_down(router)
        self.children = tuple(self._children())
        rights = [child.x + child.width for child in self.children]
        lefts = [child.x for child in self.children]
        self.routes = tuple(
            tuple(router.points(wire, self._left_of, self._tops.__getitem__, self._gutter_tops.__getitem__, edges))
            for wire in wires
            for edges in [(rights[wire.source], lefts[wire.target])]
        )
        detours = sum(len(route) > _DIRECT for route in self.routes)
        self.burden = detours * _DETOUR + sum(child.burden for child in self.children)

    def _cells(self) -> list[BoxCell]:
        return [
            BoxCell(band=band_number, column=column_number, port_y=top + PORT_Y)
            for band_number, band in enumerate(self._bands)
            for column_number, column in enumerate(band)
            for top in _tops_in(column)
        ]

    def _place_across(self, router: Router) -> None:
        """Where channels and columns begin, band by band."""
        self._channel_lefts: list[list[float]] = []
        self._column_lefts: list[list[float]] = []
        right = 0.0
        for number, band in enumerate(self._bands):
            x = router.margin_width()
            channels, lefts = [], []
            for column_number, column in enumerate(band):
                channels.append(x)
                room = router.channel_width(number, column_number)
                x += max(room, CHANNEL) if column_number else room
                lefts.append(x)
                x += max(child.width for child in column)
            channels.append(x)
            right = max(right, x + router.channel_width(number, len(band)))
            self._channel_lefts.append(channels)
            self._column_lefts.append(lefts)
        self.width = right

    def _place_down(self, router: Router) -> None:
        """Where gutters and bands begin."""
        rooms = [router.gutter_height(number) for number in range(len(self._bands) + 1)]
        gaps = [0.0, *[BAND_GAP] * (len(self._bands) - 1), 0.0]
        heights = [
            max(sum(child.height + STACK_GAP for child in column) - STACK_GAP for column in band)
            for band in self._bands
        ]
        steps = [max(room, gap) + height for room, gap, height in zip(rooms, gaps, [*heights, 0.0], strict=True)]
        self._gutter_tops = [0.0, *accumulate(steps[:-1])]
        self._tops = [top + max(room, gap) for top, room, gap in zip(self._gutter_tops, rooms, gaps, strict=True)]
        self.height = self._gutter_tops[-1] + rooms[-1]

    def _left_of(self, band: int, channel: int) -> float:
        return self._channel_lefts[band][channel]

    def _children(self) -> list[Placed]:
        """Boxes of one column share the width of the widest."""
        return [
            replace(child, x=left, y=top_of_band + top, width=width)
            for band, lefts, top_of_band in zip(self._bands, self._column_lefts, self._tops, strict=False)
            for column, left in zip(band, lefts, strict=True)
            for width in [max(child.width for child in column)]
            for child, top in zip(column, _tops_in(column), strict=True)
        ]


def _tops_in(column: Sequence[Placed]) -> list[float]:
    return [0.0, *accumulate(child.height + STACK_GAP for child in column[:-1])]


_TALLEST = 5  # boxes in one column


def columns_of(children: Sequence[Box], arrows: Sequence[Arrow]) -> list[list[Box]]:
    """Columns of siblings: an arrow points to a later column, unless it goes back to an earlier call.

    A box that takes nothing from a sibling stands just before the first that uses it. One without any arrow stands
    under the box called before it. Where no arrow is known at all, each box is a column and the order is the calls'.
    """
    place = {child.id: number for number, child in enumerate(children)}
    forward = {(place[arrow.source], place[arrow.target]) for arrow in arrows}
    forward = {(source, target) for source, target in forward if source < target}
    if not forward:
        return [[child] for child in children]
    ranks = _ranks(len(children), forward)
    by_rank: defaultdict[int, list[Box]] = defaultdict(list)
    for rank, child in zip(ranks, children, strict=True):
        by_rank[rank].append(child)
    return [part for rank in sorted(by_rank) for part in _parts(by_rank[rank])]


def _ranks(count: int, forward: set[tuple[int, int]]) -> list[int]:
    """The longest way from a source, then sources moved up to their first use."""
    ranks = [0] * count
    for source, target in sorted(forward):  # call order is a topological order of these arrows
        ranks[target] = max(ranks[target], ranks[source] + 1)
    fed = {target for _, target in forward}
    uses: defaultdict[int, list[int]] = defaultdict(list)
    for source, target in forward:
        uses[source].append(ranks[target])
    for place in range(count):
        if place not in fed and uses[place]:
            ranks[place] = min(uses[place]) - 1
        elif place not in fed and place:
            ranks[place] = ranks[place - 1]
    return ranks


def _parts(column: list[Box]) -> list[list[Box]]:
    """A column that is too tall as several of nearly equal height."""
    count = -(-len(column) // _TALLEST)
    cuts = [len(column) * number // count for number in range(count + 1)]
    return [column[start:end] for start, end in pairwise(cuts)]


class BoxShape(Protocol):
    """A size and its price: `burden` is the height one would give to be rid of the detours inside."""

    @property
    def width(self) -> float:
        """From left to right."""
        ...

    @property
    def height(self) -> float:
        """From top to bottom."""
        ...

    @property
    def burden(self) -> float:
        """As a height."""
        ...


@dataclass(frozen=True, slots=True)
class ColumnBand:
    """Neighbouring columns, the first being number `start`; for each, which of its shapes was chosen."""

    start: int
    chosen: tuple[int, ...]
    width: float
    cost: float  # the height, and the burdens


def bands_of(columns: Sequence[Sequence[BoxShape]], limit: float, gap: float) -> list[ColumnBand]:
    """Bands no wider than `limit`, unless a band is a single column.

    Every column offers shapes, from the narrowest to the widest. The sum of the bands' costs is the least that was
    found; among equals the widest band is the narrowest.
    """
    best: list[tuple[float, float, ColumnBand | None]] = [(0.0, 0.0, None)]  # total cost, widest band, last band
    for end in range(1, len(columns) + 1):
        choices = []
        for start in range(end - 1, -1, -1):
            band = _cheapest(columns[start:end], start, limit, gap)
            if band.width > limit and start < end - 1:
                break
            total, widest, _ = best[start]
            choices.append((total + band.cost + gap, max(widest, band.width), band))
        best.append(min(choices, key=lambda choice: choice[:2]))
    bands: list[ColumnBand] = []
    end = len(columns)
    while band_at_end := best[end][2]:
        bands.append(band_at_end)
        end = band_at_end.start
    return bands[::-1]


def _cheapest(columns: Sequence[Sequence[BoxShape]], start: int, limit: float, gap: float) -> ColumnBand:
    """All columns at their narrowest, then the one widened that helps most, as long as there is room."""
    chosen = [0] * len(columns)
    band = _band(columns, chosen, start, gap)
    while True:
        wider = [
            _band(columns, [*chosen[:place], choice, *chosen[place + 1 :]], start, gap)
            for place, column in enumerate(columns)
            for choice in range(chosen[place] + 1, len(column))
            if band.width - column[chosen[place]].width + column[choice].width <= limit
        ]
        best = min(wider, key=lambda other: other.cost, default=band)
        if best.cost >= band.cost:
            return band
        band, chosen = best, list(best.chosen)


def _band(columns: Sequence[Sequence[BoxShape]], chosen: Sequence[int], start: int, gap: float) -> ColumnBand:
    shapes = [column[choice] for column, choice in zip(columns, chosen, strict=True)]
    width = sum(shape.width for shape in shapes) + gap * (len(shapes) - 1)
    cost = max(shape.height for shape in shapes) + sum(shape.burden for shape in shapes)
    return ColumnBand(start, tuple(chosen), width, cost)
