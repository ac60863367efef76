"""The rates by which `predict` times eager PyTorch on a device: tables and recordings, or recordings alone."""

from __future__ import annotations

from collections.abc import Callable

from llm_perf_opt.analyses.time.datasheet_rates import DataSheetRates
from llm_perf_opt.analyses.time.kernel_rates import table_rates
from llm_perf_opt.analyses.time.rates import RateSource, RateTime
from llm_perf_opt.analyses.time.recorded_rates import recorded_rates
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.ops.op import Kernel

DEVICES = {"h100": "h100-sxm", "mi300": "mi300x"}  # name in a recording -> device


def eager_source(device: str) -> RateSource:
    """The best rates of a device; its data sheet where nothing was measured or recorded."""
    below = DataSheetRates(find_device(device))
    return table_rates(below) or recorded_rates(below) or below


def durations(device: str) -> Callable[[Kernel], RateTime]:
    """Kernel -> the time of one launch, with its band and origin."""
    source, known = eager_source(device), dict[Kernel, RateTime]()

    def of(kernel: Kernel) -> RateTime:
        if kernel not in known:
            times = source.duration(kernel)
            assert times is not None, kernel
            known[kernel] = times[0]
        return known[kernel]

    return of
