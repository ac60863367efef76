"""How long one kernel keeps a device busy: a fixed cost, and then its FLOPs or its bytes, whichever takes longer.

Held against measured kernel tables, `floor + max(FLOPs / rate, bytes / bandwidth)` follows products from one row to
8,192 within about a fifth on the devices whose small products do not run from their caches.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.analyses.prediction.band import Band
from llm_perf_opt.analyses.prediction.kernels import Kernel, Work
from llm_perf_opt.analyses.roofline.bound import Bound, fastest_peak, is_known
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.device import PEAKS_OF_DTYPE
from llm_perf_opt.core.hardware.priors import EfficiencyPriors, Prior, applying

SMALL_WEIGHTS = 4_000_000  # up to here a product is priced as the sources' small ones
LARGE_WEIGHTS = 60_000_000  # and from here as their large ones; between, the band spans both
_MICRO = 1e-6
_SIXTEEN_BITS = ("bf16", "fp16")
_NARROW = frozenset({"float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """The band of one kernel, and what takes most of it: its FLOPs, its bytes, or the fact that it is a kernel."""

    band: Band
    bound_by: Bound


def kernel_time(kernel: Kernel, device: Device, priors: EfficiencyPriors) -> KernelTime:
    """The device time of one launch, without the host that asks for it.

    At the low edge bytes that fit in the device's cache are found there, at the high edge every byte comes from memory.
    """
    floor, fraction, bandwidth = _priors_of(kernel, device, priors)
    compute = _compute_band(kernel, fraction, device)
    needed = max(0, kernel.bytes_moved - kernel.avoidable_bytes - (device.cache_bytes or 0))
    traffic = Band(
        needed / (device.bandwidth_bytes_per_s * bandwidth.high),
        kernel.bytes_moved / (device.bandwidth_bytes_per_s * bandwidth.low),
    )
    fixed = Band(floor.low * _MICRO, floor.high * _MICRO)
    return KernelTime(band=fixed + compute.slower(traffic), bound_by=_largest(compute, traffic, fixed))


def _largest(compute: Band, traffic: Band, fixed: Band) -> Bound:
    """By the high edges: the low edge of traffic is nothing where a cache may hold it."""
    high = {Bound.COMPUTE: compute.high, Bound.BANDWIDTH: traffic.high, Bound.LAUNCHES: fixed.high}
    return max(high, key=lambda bound: high[bound])


def _compute_band(kernel: Kernel, fraction: Prior, device: Device) -> Band:
    if not kernel.flops:
        return Band(0.0, 0.0)
    required = kernel.flops - kernel.skippable_flops
    best = fastest_peak(kernel.dtype, device)
    usual = _usual_peak(kernel.dtype, device, best)
    return Band(
        required / (best * _ceiling(kernel.dtype, fraction.high, device)),
        required / (usual * min(fraction.low, _ceiling(kernel.dtype, fraction.high, device))),
    )


def _usual_peak(dtype: str, device: Device, best: int) -> int:
    """The device's own rate; 8 and 4 bits that it has no engines for are multiplied as 16 bits."""
    if is_known(dtype, device):
        return device.peak(dtype)
    wide = [device.peak(name) for name in ("bfloat16", "float16") if is_known(name, device)]
    return max(wide) if wide and dtype in _NARROW else best


def _ceiling(dtype: str, fraction: float, device: Device) -> float:
    """Nothing exceeds the best product that anybody measured on this very device, where that is known.

    What was measured in one 16-bit type holds for the other: they share their matrix engines.
    """
    names = _SIXTEEN_BITS if dtype in ("bfloat16", "float16") else PEAKS_OF_DTYPE.get(dtype, (dtype,))
    for name in names:
        if name in device.achieved_flops_per_s:
            return min(fraction, device.achieved_flops_per_s[name] / device.peak_flops_per_s[name])
    return fraction


def _priors_of(kernel: Kernel, device: Device, priors: EfficiencyPriors) -> tuple[Prior, Prior, Prior]:
    """Floor in microseconds, share of the peak, share of the bandwidth."""
    if kernel.work is Work.ATTENTION:
        bandwidth = (
            applying(priors.attention_bandwidth, kernel.sequences) if kernel.queries == 1 else priors.vector_bandwidth
        )
        return priors.attention_floor_us, priors.attention_fraction, bandwidth
    if kernel.work is Work.MATMUL:
        return priors.matmul_floor_us, _matmul_fraction(kernel, priors), priors.weight_bandwidth
    return priors.vector_floor_us, priors.attention_fraction, priors.vector_bandwidth


def _matmul_fraction(kernel: Kernel, priors: EfficiencyPriors) -> Prior:
    small = applying(priors.small_matmul_fraction, kernel.rows)
    large = applying(priors.large_matmul_fraction, kernel.rows)
    if kernel.weights <= SMALL_WEIGHTS:
        return small
    if kernel.weights >= LARGE_WEIGHTS:
        return large
    return Prior(
        low=min(small.low, large.low), high=max(small.high, large.high), source=f"{small.source}; {large.source}"
    )
