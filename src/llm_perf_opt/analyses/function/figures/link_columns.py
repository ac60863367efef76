"""The communication of a stage at many points at once: each distinct payload is timed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.analyses.function.columns import Evaluation
from llm_perf_opt.analyses.function.figures.kernel_forms import CollectiveForms, KernelForms
from llm_perf_opt.analyses.time.communication import band_of, time_on_links
from llm_perf_opt.core.hardware.cluster import Cluster
from llm_perf_opt.ops.op import KernelKind

_NANO = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkColumns:
    """The collectives of a stage: seconds on the links, one after the other, and how many have no known time."""

    low_s: NDArray[np.float64]
    high_s: NDArray[np.float64]
    untimed: NDArray[np.int64]


def links_of(
    counts: Mapping[KernelForms, int], at: Evaluation, cluster: Cluster | None, *, by_engine: bool
) -> LinkColumns:
    """All kernels of communication among these."""
    sums = np.zeros((2, at.size))
    untimed = np.zeros(at.size, dtype=np.int64)
    for kernel, count in counts.items():
        if kernel.kind is not KernelKind.COMMUNICATION:
            continue
        seconds = None if kernel.collective is None else _seconds(kernel.collective, at, cluster, by_engine=by_engine)
        if seconds is None:
            untimed += count
            continue
        sums += np.nan_to_num(seconds[:2]) * count
        untimed += np.where(np.isnan(seconds[0]), count, 0)
    return LinkColumns(low_s=sums[0], high_s=sums[1], untimed=untimed)


def least_seconds(exchanges: Mapping[CollectiveForms, int], at: Evaluation, cluster: Cluster) -> NDArray[np.float64]:
    """The bound of what must be exchanged; a link that is not known adds nothing."""
    zero = np.zeros(at.size)
    return sum((_seconds(one, at, cluster)[2] * count for one, count in exchanges.items()), zero)


def _seconds(
    collective: CollectiveForms, at: Evaluation, cluster: Cluster | None, *, by_engine: bool = False
) -> NDArray[np.float64]:
    """Rows of low, high and bound by point; where low and high are not known they are not a number."""
    payloads, place = np.unique(at.of(collective.payload), return_inverse=True)
    found = np.full((3, len(payloads)), np.nan)
    for column, payload in enumerate(payloads):
        time = time_on_links(collective.of(int(payload)), cluster, by_engine=by_engine)
        band = band_of(time)
        found[2, column] = (time.bound_ns or 0) * _NANO
        if band is not None:
            found[:2, column] = band.low, band.high
    return found[:, place]
