"""What a measured stage achieved, held against the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.roofline.bound import Bound, bytes_from_memory, speed_of_light
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.priors import efficiency_priors

MEMORY_SHARE = 0.9  # of the bytes must come from memory, whatever a cache holds, for MBU to mean anything


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEfficiency:
    """One measured stage. None is unknown.

    `mfu` is FLOPs / time / dense peak. `mbu` is weights and caches read once / time / bandwidth, and None where the
    device's cache may hold more than a tenth of them: memory may then not have been asked. `attainable_flops_per_s` is
    the roof above the stage's arithmetic intensity, which counts the bytes of every op; caches save some of them, so
    `of_attainable` may exceed 1. `lower_bound_s` may not be beaten: see `bound`.
    """

    name: str
    flops: int | None
    bytes_moved: int | None
    weight_bytes: int | None
    seconds: float
    launches: int | None
    skippable_flops: int
    forwards: int
    mfu: float | None
    mbu: float | None
    intensity: float | None  # FLOPs per byte moved
    achieved_flops_per_s: float | None
    attainable_flops_per_s: float | None
    lower_bound_s: float | None
    bound_by: Bound | None

    @property
    def of_attainable(self) -> float | None:
        """The achieved rate as a share of the attainable one."""
        if self.achieved_flops_per_s is None or not self.attainable_flops_per_s:
            return None
        return self.achieved_flops_per_s / self.attainable_flops_per_s


def stage_efficiency(
    name: str,
    *,
    flops: int | None,
    bytes_moved: int | None,
    weight_bytes: int | None,
    seconds: float,
    device: Device,
    dtype: str,
    launches: int | None = None,
    required_by_dtype: Mapping[str, int] | None = None,
    forwards: int = 1,
) -> StageEfficiency:
    """Hold one measured stage against `device`; `flops` and `bytes_moved` are those that a trace counted.

    `weight_bytes` are the weights and caches that each of the stage's `forwards` must read, added up over them, and
    `required_by_dtype` the FLOPs without those that a causal mask hides; left out, all of `flops` in `dtype`.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"stage {name!r} took {seconds!r} s: a measured time is finite and above zero")
    intensity = None if flops is None or not bytes_moved else flops / bytes_moved
    attainable = None if intensity is None else min(device.peak(dtype), intensity * device.bandwidth_bytes_per_s)
    required = {dtype: flops or 0} if required_by_dtype is None else required_by_dtype
    light = None
    if flops is not None and weight_bytes is not None:
        light = speed_of_light(required, weight_bytes, device, forwards=forwards)
    return StageEfficiency(
        name=name,
        flops=flops,
        bytes_moved=bytes_moved,
        weight_bytes=weight_bytes,
        seconds=seconds,
        launches=launches,
        mfu=None if flops is None else flops / seconds / device.peak(dtype),
        skippable_flops=(flops or 0) - sum(required.values()),
        forwards=forwards,
        mbu=_mbu(weight_bytes, seconds, device, forwards),
        intensity=intensity,
        achieved_flops_per_s=None if flops is None else flops / seconds,
        attainable_flops_per_s=attainable,
        lower_bound_s=None if light is None else light.seconds,
        bound_by=_bound_by(flops, bytes_moved, launches, device, dtype),
    )


def _mbu(weight_bytes: int | None, seconds: float, device: Device, forwards: int) -> float | None:
    if not weight_bytes or bytes_from_memory(weight_bytes, device, forwards=forwards) < MEMORY_SHARE * weight_bytes:
        return None
    return weight_bytes / seconds / device.bandwidth_bytes_per_s


def _bound_by(
    flops: int | None, bytes_moved: int | None, launches: int | None, device: Device, dtype: str
) -> Bound | None:
    """The slowest of three clocks at full speed: FLOPs at the peak, bytes at the bandwidth, launches one by one."""
    if flops is None or bytes_moved is None:
        return None
    times = {
        Bound.COMPUTE: flops / device.peak(dtype),
        Bound.BANDWIDTH: bytes_moved / device.bandwidth_bytes_per_s,
        Bound.LAUNCHES: (launches or 0) * launch_overhead_s(device),
    }
    return max(times, key=lambda bound: times[bound])


def launch_overhead_s(device: Device) -> float:
    """What one launch costs at least: the device's own figure, or the low edge of the prior for eager PyTorch."""
    if device.launch_overhead_ns is not None:
        return device.launch_overhead_ns * 1e-9
    return efficiency_priors().eager_launch_us.low * 1e-6


def model_mfu(stages: Sequence[StageEfficiency], device: Device, dtype: str) -> float | None:
    """FLOPs of all stages over all their time: given prefill and decode, the figure of the model."""
    flops = [stage.flops for stage in stages]
    if not stages or None in flops:
        return None
    return sum(count for count in flops if count) / sum(stage.seconds for stage in stages) / device.peak(dtype)
