"""Which measured system stands for a device, and by what its times are scaled where it is another device.

A device whose own chip was measured takes the table as it is. Any other NVIDIA GPU takes the nearest measured system:
the same architecture first, then the closest ratio of compute to bandwidth, scaled by peaks and bandwidth. Devices of
vendors without a table get none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device, load_devices

# Table system -> the device it was measured on.
MEASURED_ON = {
    "a100_sxm": "a100-sxm-80g",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-bw-server",
    "b60": "arc-pro-b60",
}
_SYSTEM_OF = {device: system for system, device in MEASURED_ON.items()}
# What a peak ratio is taken from: the first that both devices know.
_PEAKS = ("bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemForDevice:
    """A measured system, and how many times as fast the device is at FLOPs and at bytes."""

    system: str
    device: str
    compute: float
    bandwidth: float
    has_same_links: bool = True  # between the GPUs of a node: exchanges hold for this device too

    @property
    def is_own(self) -> bool:
        """Whether the table was measured on this very device."""
        return MEASURED_ON[self.system] == self.device

    @property
    def difference(self) -> str | None:
        """What differs from the measured device, in a sentence; None: nothing."""
        if self.is_own:
            return None
        return (
            f"measured on {MEASURED_ON[self.system]}; {self.device} has {self.compute:.2f} times its matrix rate and "
            f"{self.bandwidth:.2f} times its memory bandwidth, and times are scaled by these"
        )


def system_of(device: Device) -> SystemForDevice | None:
    """The measured system that stands for a device; None: no table comes near it."""
    if device.id in _SYSTEM_OF:
        return SystemForDevice(system=_SYSTEM_OF[device.id], device=device.id, compute=1.0, bandwidth=1.0)
    known = load_devices().devices
    candidates = []
    for system, name in MEASURED_ON.items():
        measured = known[name]
        ratio = _peak_ratio(device, measured)
        if measured.vendor == device.vendor == "NVIDIA" and ratio is not None:
            bandwidth = device.bandwidth_bytes_per_s / measured.bandwidth_bytes_per_s
            far = (_architecture_distance(device, measured), abs(math.log(ratio / bandwidth)), abs(math.log(ratio)))
            found = SystemForDevice(
                system=system,
                device=device.id,
                compute=ratio,
                bandwidth=bandwidth,
                has_same_links=_links(device) == _links(measured) and None not in _links(device),
            )
            candidates.append((far, found))
    return min(candidates, key=lambda entry: entry[0])[1] if candidates else None


def system_named(name: str) -> SystemForDevice:
    """The system of a table name or of a device id; a device without one raises."""
    if name in MEASURED_ON:
        return SystemForDevice(system=name, device=MEASURED_ON[name], compute=1.0, bandwidth=1.0)
    device = load_devices().find(name)
    found = system_of(device)
    if found is None:
        raise PerfOptError(
            f"No measured kernels describe {device.name}.",
            why=f"tables exist for {', '.join(sorted(MEASURED_ON.values()))}, and NVIDIA GPUs are scaled from those",
            fix="its times come from the roofline of its data sheet",
        )
    return found


def _peak_ratio(device: Device, measured: Device) -> float | None:
    for name in _PEAKS:
        if name in device.peak_flops_per_s and name in measured.peak_flops_per_s:
            return device.peak_flops_per_s[name] / measured.peak_flops_per_s[name]
    return None


def _links(device: Device) -> tuple[object, object]:
    return device.facts.get("nvlink_gb_per_s_both_ways"), device.facts.get("form_factor")


def _architecture_distance(device: Device, measured: Device) -> float:
    """0: the same chip family; then by how far the compute capabilities lie apart."""
    if device.arch.split()[:2] == measured.arch.split()[:2]:
        return 0.0
    mine, theirs = device.facts.get("compute_capability"), measured.facts.get("compute_capability")
    if mine is None or theirs is None:
        return 100.0
    return abs(float(mine) - float(theirs))
