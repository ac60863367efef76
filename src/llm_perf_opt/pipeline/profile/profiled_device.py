"""The device that a run is held against: the one that was named, or the one that the machine reports."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import PerfOptError
from llm_perf_opt.hardware import Device, find_device
from llm_perf_opt.pipeline.profile.profile_request import DeviceChoice

log = logging.getLogger(__name__)


def find_profiled_device(choice: DeviceChoice, environment: Mapping[str, Any], dtype: str) -> Device | None:
    """A named device must be known, with a peak for `dtype`; one that is only reported may be unknown, and is None."""
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


def _with_peak(device: Device, dtype: str) -> Device:
    device.peak(dtype)  # refused now, and not after the run
    return device
