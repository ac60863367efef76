"""A calibrated machine as a device: the best rates that were measured stand in for the peaks nobody publishes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.calibration import Calibration, RateTable, Timing
from llm_perf_opt.core.hardware.device import PEAKS_OF_DTYPE, Device

_PRODUCTS = ("product", "wide_product", "narrow_product", "batched_product")
_BYTES_PER_VALUE = {"bfloat16": 2, "float16": 2, "float32": 4}


def measured_device(calibration: Calibration) -> Device:
    """The device of a calibration, with the best matrix rates and the best bandwidth it tells."""
    rates = best_rates(calibration)
    bandwidth = largest_bandwidth(calibration)
    if not rates or bandwidth is None:
        raise PerfOptError(
            "The calibration tells no matrix rate or no bandwidth.",
            why="its tables of products or copies are missing",
            fix="measure again: llm-perf-opt devices calibrate",
        )
    device = Device(
        id=device_id(calibration),
        name=f"{calibration.title}, measured",
        vendor="measured",
        arch=calibration.kind,
        peak_flops_per_s={PEAKS_OF_DTYPE[dtype][0]: int(rate) for dtype, rate in rates.items()},
        bandwidth_bytes_per_s=int(bandwidth),
        memory_bytes=calibration.memory_bytes,
        is_measured=True,
        threads=calibration.threads if calibration.kind == "cpu" else None,
        reported_names=(calibration.device,),
        sources=("llm-perf-opt devices calibrate",),
        notes="Best rates of a calibration, not figures of a data sheet.",
    )
    sums = calibration.table("arithmetic", "float32")
    return device if sums is None else _with_overheads(device, sums.times[0])


def _with_overheads(device: Device, smallest: Timing) -> Device:
    """The smallest sum stands for an op without work."""
    return replace(
        device,
        launch_overhead_ns=round(smallest.median_s * 1e9),
        launch_overhead_fastest_ns=round(smallest.fastest_s * 1e9),
        launch_overhead_slowest_ns=round(smallest.slowest_s * 1e9),
    )


def device_id(calibration: Calibration) -> str:
    """A name for files and options, made of what the machine reports."""
    words = re.sub(r"[^a-z0-9]+", "-", calibration.device.lower()).strip("-")
    return f"{words}-{calibration.threads}-threads" if calibration.kind == "cpu" else words


def best_rates(calibration: Calibration) -> dict[str, float]:
    """By dtype, the most FLOP/s that any measured product reached."""
    best: dict[str, float] = {}
    for table in calibration.tables:
        if table.family in _PRODUCTS:
            rate = max(2 * math.prod(sizes.values()) / time.median_s for sizes, time in points(table))
            best[table.dtype] = max(rate, best.get(table.dtype, 0.0))
    return best


def largest_bandwidth(calibration: Calibration) -> float | None:
    """Bytes per second of a copy of the largest size, or of reading the largest weight for a single row."""
    found = []
    for table in calibration.tables:
        size = _BYTES_PER_VALUE.get(table.dtype, 0)
        if table.family == "copy":
            *_, (sizes, time) = points(table)
            found.append(2 * sizes["elements"] * size / time.median_s)
        elif table.family == "wide_product":
            found += [
                sizes["columns"] * sizes["depth"] * size / time.median_s
                for sizes, time in points(table)
                if sizes["rows"] == 1
            ]
    return max(found, default=None)


def points(table: RateTable) -> Iterator[tuple[Mapping[str, int], Timing]]:
    """Every combination of sizes with its time."""
    for sizes, time in zip(itertools.product(*table.ticks), table.times, strict=True):
        yield dict(zip(table.axes, sizes, strict=True)), time
