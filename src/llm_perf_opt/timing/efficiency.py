"""What a measured stage achieved compared with the device; a measurement that no device could produce is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.priors import efficiency_priors
from llm_perf_opt.core.units import format_bytes, format_seconds
from llm_perf_opt.timing.lower_bound import BoundBy, bytes_from_memory, lower_bound

MEMORY_SHARE = 0.9  # of the bytes must come from memory, whatever a cache holds, for MBU to mean anything


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEfficiency:
    """One measured stage. None is unknown.

    `mfu` is FLOPs / time / dense peak. `mbu` is weights and caches read once / time / bandwidth, and None where the
    device's cache may hold more than a tenth of them: they may then not have come from memory.
    `attainable_flops_per_s` is the roof above the stage's arithmetic intensity, which counts the bytes of every op;
    caches save some of them, so `of_attainable` may exceed 1. Nothing is faster than `lower_bound_s`.
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
    bound_by: BoundBy | None

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
    """Compare one measured stage with `device`; `flops` and `bytes_moved` are those that a trace counted.

    `weight_bytes` are the weights and caches that each of the stage's `forwards` must read, added up over them, and
    `required_by_dtype` the FLOPs without those that a causal mask hides; left out, all of `flops` in `dtype`.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"stage {name!r} took {seconds!r} s: a measured time is finite and above zero")
    intensity = None if flops is None or not bytes_moved else flops / bytes_moved
    attainable = None if intensity is None else min(device.peak(dtype), intensity * device.bandwidth_bytes_per_s)
    required = {dtype: flops or 0} if required_by_dtype is None else required_by_dtype
    bound = None
    if flops is not None and weight_bytes is not None:
        bound = lower_bound(required, weight_bytes, device, forwards=forwards)
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
        lower_bound_s=None if bound is None else bound.seconds,
        bound_by=_bound_by(flops, bytes_moved, launches, device, dtype),
    )


def _mbu(weight_bytes: int | None, seconds: float, device: Device, forwards: int) -> float | None:
    if not weight_bytes or bytes_from_memory(weight_bytes, device, forwards=forwards) < MEMORY_SHARE * weight_bytes:
        return None
    return weight_bytes / seconds / device.bandwidth_bytes_per_s


def _bound_by(
    flops: int | None, bytes_moved: int | None, launches: int | None, device: Device, dtype: str
) -> BoundBy | None:
    """The slowest of three clocks at full speed: FLOPs at the peak, bytes at the bandwidth, launches one by one."""
    if flops is None or bytes_moved is None:
        return None
    times = {
        BoundBy.COMPUTE: flops / device.peak(dtype),
        BoundBy.BANDWIDTH: bytes_moved / device.bandwidth_bytes_per_s,
        BoundBy.LAUNCHES: (launches or 0) * launch_overhead_s(device),
    }
    return max(times, key=lambda bound: times[bound])


def launch_overhead_s(device: Device) -> float:
    """What one launch costs at least: the device's own figure, or the low edge of the prior for eager PyTorch."""
    if device.launch_overhead_ns is not None:
        return device.launch_overhead_ns * 1e-9
    return efficiency_priors().eager_launch_us.low * 1e-6


MEASURED_SLACK = 0.05  # by which a run may beat a peak that was itself measured


def check_physics(stages: Sequence[StageEfficiency], device: Device) -> None:
    """Raise on MFU or MBU above 1, and on bytes read faster than memory gives them."""
    for stage in stages:
        _check_stage(stage, device)


def _check_stage(stage: StageEfficiency, device: Device) -> None:
    ceiling = 1 + MEASURED_SLACK if device.is_measured else 1.0
    if stage.mfu is not None and stage.mfu * _required_share(stage) > ceiling:
        raise _impossible(
            f"Stage {stage.name!r} has an MFU of {stage.mfu:.2f} on {device.name}.",
            f"it would have done its FLOPs in {format_seconds(stage.seconds)}, faster than the dense peak",
        )
    from_memory = bytes_from_memory(stage.weight_bytes or 0, device, forwards=stage.forwards)
    least_s = from_memory / device.bandwidth_bytes_per_s
    if stage.seconds * ceiling < least_s:
        raise _impossible(
            f"Stage {stage.name!r} took {format_seconds(stage.seconds)} on {device.name}.",
            f"reading {format_bytes(stage.weight_bytes or 0)} of weights and caches takes at least "
            f"{format_seconds(least_s)}",
        )
    if stage.mbu is not None and stage.mbu > ceiling:
        raise _impossible(
            f"Stage {stage.name!r} has an MBU of {stage.mbu:.2f} on {device.name}.",
            "weights and caches would have arrived faster than the memory's bandwidth",
        )


def _required_share(stage: StageEfficiency) -> float:
    """MFU counts pairs that a causal mask hides, by convention; a kernel that skips them may exceed 1."""
    return 1 - stage.skippable_flops / stage.flops if stage.flops else 1.0


def _impossible(what: str, why: str) -> PerfOptError:
    return PerfOptError(
        what,
        why=why,
        fix="check that the device was waited for before the clock was read, that the trace is of this workload, "
        "that the figures are those of this device, and that float32 work which may run as tf32 is compared with tf32",
    )
