"""Gates: a measurement that no device could have produced is refused, whatever made it look so."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.analyses.roofline.bound import bytes_from_memory
from llm_perf_opt.analyses.roofline.efficiency import StageEfficiency
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.units import format_bytes, format_seconds

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
    """MFU counts pairs that a causal mask hides, by convention; a kernel that skips them may pass 1 honestly."""
    return 1 - stage.skippable_flops / stage.flops if stage.flops else 1.0


def _impossible(what: str, why: str) -> PerfOptError:
    return PerfOptError(
        what,
        why=why,
        fix="check that the device was waited for before the clock was read, that the trace is of this workload, "
        "that the figures are those of this device, and that float32 work which may run as tf32 is held against tf32",
    )
