"""The kernels of many forwards of a rank, side by side, and the sums of their times for each forward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.ops.kernel_shape import ExpertsShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.collective_time import band_of, kernel_on_links
from llm_perf_opt.timing.datasheet_rates import DataSheetRates
from llm_perf_opt.timing.kernels.times import CODE, TimeOrigin
from llm_perf_opt.timing.sheet_columns import KernelColumns, captured_seconds
from llm_perf_opt.timing.step.engine_step import Counted

Column = NDArray[Any]


@dataclass(frozen=True, slots=True)
class LaunchColumns:
    """One launch of each kernel. NaN: nothing describes it. A row that sums up several kernels has `launches` gaps."""

    seconds: NDArray[np.float64]
    origin_codes: Column
    launches: Column


class ForwardKernels:
    """The kernels of some forwards in one list, forward after forward."""

    def __init__(self, of_forwards: Sequence[Sequence[Counted]]) -> None:
        self.forwards = len(of_forwards)
        self.kernels = [kernel for counted in of_forwards for kernel, _ in counted]
        self.counts = np.array([count for counted in of_forwards for _, count in counted], dtype=np.int64)
        self.forward_of = np.repeat(np.arange(self.forwards), [len(counted) for counted in of_forwards])

    @cached_property
    def _alike(self) -> list[tuple[Column, KernelColumns, bool]]:
        """Rows that one set of rates describes, with their sizes, and whether they are experts."""
        rows_of = defaultdict[tuple[KernelKind, str, bool], list[int]](list)
        for row, kernel in enumerate(self.kernels):
            if kernel.kind is not KernelKind.COMMUNICATION:
                rows_of[kernel.kind, kernel.dtype, isinstance(kernel.shape, ExpertsShape)].append(row)
        return [
            (np.array(rows), KernelColumns.of([self.kernels[row] for row in rows]), are_experts)
            for (_, _, are_experts), rows in rows_of.items()
        ]

    @cached_property
    def _collectives(self) -> list[tuple[int, Kernel]]:
        return [(row, kernel) for row, kernel in enumerate(self.kernels) if kernel.kind is KernelKind.COMMUNICATION]

    def by_data_sheet(self, rates: DataSheetRates) -> LaunchColumns:
        """By its rates and by the links of its cluster, where no table comes near the device."""
        seconds = np.full(len(self.kernels), np.nan)
        for rows, sizes, are_experts in self._alike:
            seconds[rows] = captured_seconds(sizes, rates, 1.0 if are_experts else rates.best_bandwidth_share)
        for row, kernel in self._collectives:
            band = band_of(kernel_on_links(kernel, rates.cluster, by_engine=rates.is_engine))
            seconds[row] = np.nan if band is None else band.middle
        return LaunchColumns(seconds, np.full(len(seconds), CODE[TimeOrigin.ROOFLINE]), np.ones(len(seconds), np.int64))

    def sums(self, amounts: Column, of: Column, size: int) -> list[list[float]]:
        """For each forward the sums of some amounts of its kernels, apart by a number below `size`."""
        added: list[list[float]] = (
            np.bincount(self.forward_of * size + of, weights=amounts, minlength=self.forwards * size)
            .reshape(self.forwards, size)
            .tolist()  # type: ignore[assignment]
        )
        return added
