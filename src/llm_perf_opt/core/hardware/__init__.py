"""Devices and what they can do at most: peaks, bandwidth, memory, and the sources that say so."""

from llm_perf_opt.core.hardware.device import Device
from llm_perf_opt.core.hardware.device_file import device_template, device_text, read_devices
from llm_perf_opt.core.hardware.table import DeviceTable, find_device, load_devices

__all__ = [
    "Device",
    "DeviceTable",
    "device_template",
    "device_text",
    "find_device",
    "load_devices",
    "read_devices",
]
