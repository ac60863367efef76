"""Where the boxes inside a box stand relative to each other: columns from left to right along the flow of data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from llm_perf_opt.document import Arrow, Box

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
