"""The band of several kernels one after the other, where errors of single kernels partly cancel.

A table is wrong for a kernel by a part that holds for every kernel of its kind and by a part of its own. The first adds
up, the second adds in squares. With `d` the distance from the expected time of a kernel to an edge, kernels of one kind
have `(share * sum(d)) ** 2 + (1 - share ** 2) * sum(d ** 2)`, and kinds add in squares. A kernel that runs n times is
wrong n times in the same way. What a roofline times has no expected error, only ends: those add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from llm_perf_opt.timing.rates import NOTHING, Band

SYSTEMATIC_SHARE = 0.6  # of the distance to an edge: what kernels of one kind have in common


@dataclass(frozen=True, slots=True)
class BandOfKind:
    """The time of a kernel and all its runs; `kind` None: ends without a known error between them."""

    kind: str | None
    band: Band


def combined(bands: Iterable[BandOfKind]) -> Band:
    """One after the other: expected times add up, and the ends by the rule of this file."""
    certain, kinds = NOTHING, dict[str, list[Band]]()
    for one in bands:
        if one.kind is None or one.band.expected is None:
            certain += one.band
        else:
            kinds.setdefault(one.kind, []).append(one.band)
    parts = [band for found in kinds.values() for band in found]
    expected = sum(band.expected or 0.0 for band in parts)
    below = math.hypot(*(_distance([(one.expected or 0.0) - one.low for one in found]) for found in kinds.values()))
    above = math.hypot(*(_distance([one.high - (one.expected or 0.0) for one in found]) for found in kinds.values()))
    least = sum(band.low for band in parts)
    return certain + Band(max(least, expected - below), expected + above, expected)


def _distance(distances: list[float]) -> float:
    common = SYSTEMATIC_SHARE * sum(distances)
    return math.sqrt(common**2 + (1 - SYSTEMATIC_SHARE**2) * sum(distance**2 for distance in distances))
