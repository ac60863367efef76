"""The roofline of one table: its shortest time, its best rate of FLOPs and its best rate of bytes.

It needs no data sheet: the best rows of the table give the rates. A kernel of another device, format or head size takes
the measured time of its neighbours times the ratio of the two rooflines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llm_perf_opt.timing.kernels.times import Floats

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
        """The same start, with rates so many times as high."""
        return replace(self, flops_per_s=self.flops_per_s * compute, bytes_per_s=self.bytes_per_s * bandwidth)
