"""Devices and what they can do at most: peaks, bandwidth, memory, the links between them, and their sources."""

from llm_perf_opt.core.hardware.device import (
    Device,
    DeviceTable,
    device_template,
    device_text,
    find_device,
    load_devices,
    read_devices,
    reported_elsewhere,
)
from llm_perf_opt.core.hardware.links import Link, LinkTable, Node, load_links

__all__ = [
    "Device",
    "DeviceTable",
    "Link",
    "LinkTable",
    "Node",
    "device_template",
    "device_text",
    "find_device",
    "load_devices",
    "load_links",
    "read_devices",
    "reported_elsewhere",
]
