"""A probe: one family of work, the sizes to try it at, and how to set it up for one combination of sizes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from llm_perf_opt.hardware.calibration import RateTable
from llm_perf_opt.runs.calibration.stopwatch import Stopwatch, Work

log = logging.getLogger(__name__)

Prepare = Callable[..., Work]  # one keyword argument per axis -> the work to be timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """`prepare` makes the operands; what it returns is timed.

    Work grows in proportion to every axis, unless `growth` gives another power for it. `sweep` is whether the inner
    caches are swept before each try of short work.
    """

    family: str
    dtype: str
    axes: Mapping[str, tuple[int, ...]]
    prepare: Prepare
    growth: Mapping[str, int] = field(default_factory=dict)
    sweep: bool = True

    def coarse(self) -> Probe:
        """The same with the two smallest sizes of every axis: enough to see that it runs."""
        return replace(self, axes={axis: ticks[:2] for axis, ticks in self.axes.items()})


def measure(probe: Probe, stopwatch: Stopwatch) -> RateTable:
    """One time for every combination of sizes."""
    log.debug("Timing %s in %s.", probe.family, probe.dtype)
    times = []
    with torch.inference_mode():
        for sizes in itertools.product(*probe.axes.values()):
            work = probe.prepare(**dict(zip(probe.axes, sizes, strict=True)))
            times.append(stopwatch.time(work, sweep=probe.sweep))
            del work
    return RateTable(
        family=probe.family,
        dtype=probe.dtype,
        axes=tuple(probe.axes),
        ticks=tuple(probe.axes.values()),
        growth=tuple(probe.growth.get(axis, 1) for axis in probe.axes),
        times=tuple(times),
    )
