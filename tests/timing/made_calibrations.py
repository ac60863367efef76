"""Calibrations of machines that do not exist, whose times follow formulas a person can work out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from llm_perf_opt.core.hardware.calibration import Calibration, RateTable, Timing


def timing(median_s: float, spread: float = 0.0) -> Timing:
    return Timing(median_s=median_s, fastest_s=median_s * (1 - spread), slowest_s=median_s * (1 + spread))


def table(
    family: str,
    dtype: str,
    ticks: dict[str, tuple[int, ...]],
    seconds: Callable[..., float],
    *,
    growth: tuple[int, ...] | None = None,
    spread: float = 0.0,
) -> RateTable:
    """One time per combination, `seconds(*sizes)`."""
    return RateTable(
        family=family,
        dtype=dtype,
        axes=tuple(ticks),
        ticks=tuple(ticks.values()),
        growth=growth or (1,) * len(ticks),
        times=tuple(timing(seconds(*sizes), spread) for sizes in itertools.product(*ticks.values())),
    )


def calibration(*tables: RateTable, fresh_byte_s: float | None = None) -> Calibration:
    return Calibration(
        device="A Machine (TM) 9000",
        kind="cpu",
        threads=2,
        memory_bytes=2**34,
        library_versions={"torch": "2.13.0"},
        tables=tables,
        fresh_byte=None if fresh_byte_s is None else timing(fresh_byte_s),
    )


def matmul_seconds(rows: int, columns: int, depth: int) -> float:
    """A machine of 1 TFLOP/s that reads weights of two bytes at 10 GB/s, and overlaps nothing."""
    return 2 * rows * columns * depth / 1e12 + 2 * columns * depth / 1e10


def close(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=1e-9)
