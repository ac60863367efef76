"""The strips of one channel, gutter or margin, given out so that no two arrows run along each other."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

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
        """Give out the lanes, the first free one to each; `earlier` are the sources whose lane must come before."""
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
