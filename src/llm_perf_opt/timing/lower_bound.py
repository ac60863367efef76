"""The lower bound of a stage: no implementation on the device is faster.

`max(FLOPs / peak, bytes that must be read / bandwidth)` over the whole stage. Adding up the same maximum op by op gives
a larger number that is no bound: ops may overlap, and what one op wrote another may find in a cache. So only bytes that
existed before the stage and are read in it count, each once, less what a cache may still hold of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.device import PEAKS_OF_DTYPE
from llm_perf_opt.costs.necessary.stage_needs import NecessaryWork

# Where a device has no rate for a dtype, work in it is at least as slow as in the next of these that it has.
_NARROWER = ("float64", "float32", "tf32", "bfloat16", "float16", "float8_e4m3fn", "float4_e2m1fn_x2")
_SHORTCUTS = {
    "float64": ("fp64", "fp64_tensor"),
    "float32": ("fp32", "tf32"),
    "float16": ("fp16", "fp16_acc16"),
    "float8_e4m3fn": ("fp8", "fp8_acc16"),
    "float8_e5m2": ("fp8", "fp8_acc16"),
}
# Stored types that an older device turns into these before it multiplies.
_WIDENED = {
    "float4_e2m1fn_x2": "float8_e4m3fn",
    "float8_e4m3fn": "float16",
    "float8_e5m2": "float16",
    "int8": "float16",
}


class BoundBy(StrEnum):
    """The bottleneck of a stage. In captured graphs the host launches nothing: `kernel starts` are the device's own."""

    COMPUTE = "compute"
    BANDWIDTH = "bandwidth"
    LAUNCHES = "kernel launches"
    COMMUNICATION = "communication"
    KERNEL_STARTS = "kernel starts"


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBound:
    """The times that a stage cannot go below, and with them the largest.

    `communication_s` is the time of the collectives that the rank of a plan must run, at the full rate of the links;
    0 where it runs none, or where no link is known.
    """

    compute_s: float
    bandwidth_s: float
    communication_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The bound itself."""
        return max(self.compute_s, self.bandwidth_s, self.communication_s)


def lower_bound(
    flops_by_dtype: Mapping[str, int], must_read_bytes: int, device: Device, *, forwards: int = 1
) -> LowerBound:
    """The bound of FLOPs that cannot be skipped and bytes that must be read at least once in each forward."""
    compute_s = sum(flops / fastest_peak(dtype, device) for dtype, flops in flops_by_dtype.items() if flops)
    return LowerBound(
        compute_s=compute_s,
        bandwidth_s=bytes_from_memory(must_read_bytes, device, forwards=forwards) / device.bandwidth_bytes_per_s,
    )


def fastest_peak(dtype: str, device: Device) -> int:
    """The highest rate at which work in `dtype` may run, if a program allows every shortcut there is.

    float32 may run as tf32, and float16 and float8 may accumulate in 16 bits. A device without engines for float8 or
    float4 multiplies them in the next wider type that it has.
    """
    known = [device.peak_flops_per_s[name] for name in _SHORTCUTS.get(dtype, ()) if name in device.peak_flops_per_s]
    if known:
        return max(known)
    if dtype in _WIDENED and not is_known(dtype, device):
        return fastest_peak(_WIDENED[dtype], device)
    for narrower in _NARROWER[_NARROWER.index(dtype) :] if dtype in _NARROWER else ():
        if is_known(narrower, device):
            return device.peak(narrower)
    return device.peak(dtype)


def is_known(dtype: str, device: Device) -> bool:
    """Whether the device has a rate of its own for `dtype`."""
    return any(name in device.peak_flops_per_s for name in PEAKS_OF_DTYPE.get(dtype, (dtype,)))


def bytes_from_memory(must_read_bytes: int, device: Device, *, forwards: int = 1) -> int:
    """What is left to read when, in each forward, the largest cache already holds as much of it as fits."""
    return max(0, must_read_bytes - forwards * (device.cache_bytes or 0))


def bounds_of(necessary: NecessaryWork | None, device: Device | None) -> tuple[LowerBound | None, LowerBound | None]:
    """The lower bound of necessary work, and the one with the fewest experts that any routing can touch."""
    if necessary is None or device is None:
        return None, None
    expected, fewest = (
        lower_bound(necessary.flops_by_dtype, must_read or 0, device, forwards=necessary.forwards)
        for must_read in (necessary.bytes, necessary.fewest_bytes)
    )
    return expected, fewest
