"""The answer of a table: seconds, and where each figure came from.

The roofline of one table: its shortest time, its best rate of FLOPs and its best rate of bytes.

It needs no data sheet: the best rows of the table give the rates. A kernel of another device, format or head size takes
the measured time of its neighbours times the ratio of the two rooflines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Codes = NDArray[np.uint8]


class TimeOrigin(StrEnum):
    """Where the time of a kernel came from, from the best known to the least."""

    MEASURED = "measured row"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "beyond the measured grid"
    SCALED = "scaled"  # from the nearest system, format or shape that was measured
    ROOFLINE = "roofline"


LAUNCH_GAP_S = 1.2e-6  # gap between two captured kernels; fitted to served requests, in no table
ORIGINS = tuple(TimeOrigin)
CODE = {origin: code for code, origin in enumerate(ORIGINS)}


@dataclass(frozen=True, slots=True)
class Times:
    """Expected seconds of many kernels. NaN: no table describes the kernel, and its origin is `ROOFLINE`.

    `spread_low` and `spread_high` are factors around the expected time: 10 % and 90 % quantiles of measured over
    expected time on rows that were left out of the tables. `off_grid` is how many dimensions were not measured.
    """

    seconds: Floats
    origin_codes: Codes
    off_grid: Codes
    spread_low: Floats
    spread_high: Floats

    @property
    def origins(self) -> list[TimeOrigin]:
        """The origin of each time."""
        return [ORIGINS[code] for code in self.origin_codes.tolist()]

    @property
    def is_known(self) -> Flags:
        """Which kernels a table describes."""
        return ~np.isnan(self.seconds)

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True, slots=True)
class Estimate:
    """`Times` before the spread is looked up."""

    seconds: Floats
    origin_codes: Codes
    off_grid: Codes

    @classmethod
    def unknown(cls, count: int) -> Estimate:
        """Kernels that no table describes."""
        return cls(
            np.full(count, np.nan), np.full(count, CODE[TimeOrigin.ROOFLINE], np.uint8), np.zeros(count, np.uint8)
        )

    def at_least(self, origin: TimeOrigin, where: Flags | None = None) -> Estimate:
        """The same times with an origin no better than this one."""
        code = np.maximum(self.origin_codes, CODE[origin]).astype(np.uint8)
        codes = code if where is None else np.where(where, code, self.origin_codes).astype(np.uint8)
        return Estimate(self.seconds, codes, self.off_grid)


def fastest(estimates: Sequence[Estimate]) -> Estimate:
    """Of several answers for the same kernels the shortest time of each; a known time counts before an unknown one."""
    best = estimates[0]
    for other in estimates[1:]:
        better = np.isnan(best.seconds) | (other.seconds < best.seconds)
        best = choose(better & ~np.isnan(other.seconds), other, best)
    return best


def choose(where: Flags, these: Estimate, others: Estimate) -> Estimate:
    """`these` where the condition holds, `others` elsewhere."""
    return Estimate(
        np.where(where, these.seconds, others.seconds),
        np.where(where, these.origin_codes, others.origin_codes),
        np.where(where, these.off_grid, others.off_grid),
    )


_BEST = 0.999  # the quantile that counts as the best rate: one lucky row must not set it
_BEYOND_CACHES = 2**28  # bytes that no cache holds: fewer may move faster than memory does


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRoofline:
    """Seconds of a kernel that starts in `floor_s` and moves FLOPs and bytes at the best rates of a table."""

    floor_s: float
    flops_per_s: float
    bytes_per_s: float

    @classmethod
    def of_rows(cls, seconds: Floats, flops: Floats, moved_bytes: Floats) -> TableRoofline:
        """The roofline of measured rows."""
        is_large = moved_bytes >= _BEYOND_CACHES
        large = is_large if is_large.any() else np.ones_like(is_large)
        return cls(
            floor_s=float(np.min(seconds)),
            flops_per_s=float(np.quantile(flops / seconds, _BEST)),
            bytes_per_s=float(np.quantile((moved_bytes / seconds)[large], _BEST)),
        )

    def log_seconds(self, flops: Floats, moved_bytes: Floats) -> Floats:
        """The logarithm of start, FLOPs and bytes one after the other: smooth where one takes over from another."""
        log: Floats = np.log(self.floor_s + flops / self.flops_per_s + moved_bytes / self.bytes_per_s)
        return log

    def scaled(self, compute: float, bandwidth: float) -> TableRoofline:
        """The same start, with rates this many times as high."""
        return replace(self, flops_per_s=self.flops_per_s * compute, bytes_per_s=self.bytes_per_s * bandwidth)
