"""Where the boxes inside a box stand: columns along the flow of data, broken into bands as words into lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from llm_perf_opt.core.graph_view import Arrow, Box

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
