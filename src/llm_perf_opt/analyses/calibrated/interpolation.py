"""A time between measured ones: along straight lines between the logarithms of sizes and times.

On those lines a time that is constant (the way to the kernel) and one that grows in proportion (bandwidth, arithmetic)
are both told exactly, whatever the distance between the measured sizes.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from llm_perf_opt.core.hardware.calibration import RateTable, Timing


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
