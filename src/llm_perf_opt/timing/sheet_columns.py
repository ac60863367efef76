"""The rates of a data sheet for many kernels at once: sizes as columns in, seconds as columns out.

The arithmetic is `datasheet_rates.kernel_time`, number by number; `tests/timing/test_sheet_columns.py` compares both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.priors import Prior
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.datasheet_rates import (
    LARGE_WEIGHTS,
    SMALL_WEIGHTS,
    DataSheetRates,
    compute_rates,
    priors_of,
)
from llm_perf_opt.timing.lower_bound import BoundBy, fastest_peak

Floats = NDArray[np.float64]
Column = NDArray[Any]  # of integers
_Numbers = TypeVar("_Numbers", float, Floats)
BOUNDS = tuple(BoundBy)
VECTOR_FLOOR_S = 1.5e-6  # half of what the tables' own tool grants a kernel that is bound by its bytes, gap included
VECTOR_BANDWIDTH = 0.8  # share of the data sheet, by the same tool's system files
_MICRO = 1e-6
_SIZES = ("flops", "skippable_flops", "bytes_moved", "avoidable_bytes", "rows", "weights", "sequences", "queries")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelColumns:
    """Kernels of one kind and dtype, each size of all of them as a column.

    `has_flops`: at least one of them multiplies. The peaks of a device hold for no other work.
    """

    kind: KernelKind
    dtype: str
    has_flops: bool
    flops: Column
    skippable_flops: Column
    bytes_moved: Column
    avoidable_bytes: Column
    rows: Column
    weights: Column
    sequences: Column
    queries: Column

    @classmethod
    def of(cls, kernels: Sequence[Kernel]) -> KernelColumns:
        """Of at least one kernel, all of the kind and dtype of the first."""
        columns = {name: np.array([getattr(kernel, name) for kernel in kernels]) for name in _SIZES}
        return cls(kind=kernels[0].kind, dtype=kernels[0].dtype, has_flops=bool(columns["flops"].any()), **columns)

    @property
    def needed_bytes(self) -> Floats:
        """What no engine can avoid to move."""
        return _floats(self.bytes_moved) - _floats(self.avoidable_bytes)


def sheet_times(kernels: KernelColumns, rates: DataSheetRates) -> tuple[Floats, Floats, Column]:
    """Low and high estimate of one launch of each kernel, and the place of its bottleneck in `BOUNDS`."""
    device, size = rates.device, len(kernels.flops)
    low, high, limit = np.zeros(size), np.zeros(size), np.zeros(size, dtype=np.int64)
    required = _floats(kernels.flops) - _floats(kernels.skippable_flops)
    moved = _floats(kernels.bytes_moved)
    needed = np.maximum(kernels.needed_bytes - (device.cache_bytes or 0), 0.0)
    for rows, (floor, fraction, bandwidth) in _classes(kernels, rates):
        fast, slow = compute_rates(kernels.dtype, fraction, device) if kernels.has_flops else (1.0, 1.0)
        device_rate = device.bandwidth_bytes_per_s
        parts = np.stack(
            (
                required[rows] / slow,
                moved[rows] / (device_rate * bandwidth.low),
                np.full(len(moved[rows]), floor.high * _MICRO),
            )
        )
        low[rows] = floor.low * _MICRO + np.maximum(
            required[rows] / fast, needed[rows] / (device_rate * bandwidth.high)
        )
        high[rows] = parts[2] + np.maximum(parts[0], parts[1])
        limit[rows] = np.argmax(parts, axis=0)
    return low, high, limit


def seconds_by_bytes(needed_bytes: _Numbers, device: Device) -> _Numbers:
    """A vector kernel of an engine: a floor, and the bytes that it needs."""
    return VECTOR_FLOOR_S + needed_bytes / (VECTOR_BANDWIDTH * device.bandwidth_bytes_per_s)


def captured_seconds(kernels: KernelColumns, rates: DataSheetRates, bandwidth_share: float) -> Floats:
    """What is expected of kernels in an engine's step: the middle of low and high, and weights and cache from memory.

    Vector kernels go by their bytes. `kernel_rates.from_memory` is the same for a kernel that a table timed.
    """
    if kernels.kind is KernelKind.VECTOR:
        return seconds_by_bytes(kernels.needed_bytes, rates.device)
    low, high, _ = sheet_times(kernels, rates)
    middle = np.sqrt(low * high)
    read_s = kernels.needed_bytes / rates.device.bandwidth_bytes_per_s
    compute_s = _floats(kernels.flops) / fastest_peak(kernels.dtype, rates.device)
    likely_s, least_s = np.maximum(read_s / bandwidth_share, compute_s), np.maximum(read_s, compute_s)
    expected = np.where(middle < likely_s, middle * (likely_s / middle), middle)
    return np.maximum(expected, least_s)


def _classes(
    kernels: KernelColumns, rates: DataSheetRates
) -> Iterator[tuple[slice | Column, tuple[Prior, Prior, Prior]]]:
    """Kernels for which the same priors hold, and these: asked for one kernel of each class."""
    priors = rates.priors
    classes = [
        _bands(kernels.rows, priors.small_matmul_fraction),
        _bands(kernels.rows, priors.large_matmul_fraction),
        np.searchsorted([SMALL_WEIGHTS + 1, LARGE_WEIGHTS], _floats(kernels.weights), side="right"),
        _bands(kernels.sequences, priors.attention_bandwidth),
        kernels.queries == 1,
    ]
    numbers = reduce(lambda total, column: total * 16 + column, classes, np.zeros(len(kernels.rows), dtype=np.int64))
    for number in np.unique(numbers):
        rows = numbers == number
        first = int(np.argmax(rows))
        sized = Kernel(
            kind=KernelKind(kernels.kind),
            dtype=kernels.dtype,
            flops=1,
            skippable_flops=0,
            bytes_moved=1,
            rows=int(kernels.rows[first]),
            weights=int(kernels.weights[first]),
            sequences=int(kernels.sequences[first]),
            queries=int(kernels.queries[first]),
        )
        yield slice(None) if rows.all() else rows, priors_of(sized, priors)


def _bands(sizes: Column, bands: Sequence[Prior]) -> Column:
    assert len(bands) < 16, "a class is one of 16"
    return np.searchsorted([prior.at_least for prior in bands], _floats(sizes), side="right")


def _floats(column: Column) -> Floats:
    return column.astype(np.float64)
