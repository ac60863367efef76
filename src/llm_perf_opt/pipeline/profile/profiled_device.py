"""The device that a run is held against: the one that was named, or the one that the machine reports."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import PerfOptError, UsageError
from llm_perf_opt.hardware import Device, find_device
from llm_perf_opt.pipeline.profile.profile_request import DeviceChoice

log = logging.getLogger(__name__)


def find_profiled_device(choice: DeviceChoice, environment: Mapping[str, Any], dtype: str) -> Device | None:
    """A named device must be known, with a peak for `dtype`; one that is only reported may be unknown, and is None.

    A processor that was calibrated with another number of threads than the run has is refused, found by either way.
    """
    device = _find(choice, environment, dtype)
    if device is not None and device.threads is not None:
        _check_threads(device, device.threads, environment["torch"]["threads"])
    return device


def _find(choice: DeviceChoice, environment: Mapping[str, Any], dtype: str) -> Device | None:
    devices = None if choice.devices is None else Path(choice.devices)
    if choice.name is not None:
        return _with_peak(find_device(choice.name, devices), dtype)
    reported = environment["device"]["reported_name"]
    if reported is None:
        return None
    try:
        return _with_peak(find_device(reported, devices), dtype)
    except PerfOptError as error:
        log.info("%s MFU and MBU will not be known: llm-perf-opt devices calibrate measures the peaks.", error.what)
        return None


def _check_threads(device: Device, calibrated: int, running: int) -> None:
    if calibrated != running:
        raise UsageError(
            f"The number of threads is {running} in the run and {calibrated} in the calibration of {device.id}.",
            why="the rates of so many threads are no peaks of another number: MFU and MBU would be wrong",
            fix=f"set run.threads={calibrated}, or measure again: llm-perf-opt devices calibrate --threads {running}",
        )


def _with_peak(device: Device, dtype: str) -> Device:
    device.peak(dtype)  # refused now, and not after the run
    return device
