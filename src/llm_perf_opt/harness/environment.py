"""Where a run happened: versions, device, threads and whatever else a time depends on besides the model."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from llm_perf_opt import __version__

_LIBRARIES = ("torch", "transformers", "numpy")
_version = functools.cache(version)  # reading the metadata of a package takes a millisecond or two


def library_versions() -> dict[str, str]:
    """Installed versions; a library that is absent is left out."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = _version(name)
        except PackageNotFoundError:
            continue
    return versions


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Threads for torch's own work while the block runs; None leaves their number as it is."""
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)


_GROUP_FILES = ("memory.max", "memory.current")
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF")


def environment(device: str) -> dict[str, Any]:
    """Plain values; a variable that is not set is None. No path, user or host name is in it."""
    return {
        "tool": {"name": "llm-perf-opt", "version": __version__},
        "libraries": library_versions(),
        "system": {"name": platform.system(), "release": platform.release(), "machine": platform.machine()},
        "processor": {
            "name": processor_name(),
            "logical_cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        },
        "memory_bytes": _memory_bytes(),
        "torch": {
            "threads": torch.get_num_threads(),
            "interop_threads": torch.get_num_interop_threads(),
            "cuda": torch.version.cuda,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        },
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
        "device": _device(device),
    }


def processor_name() -> str | None:
    """As the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def free_memory_bytes() -> int | None:
    """What a process may still take without swapping, within the limit of its control group; None: unknown."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    if words is None:
        return None
    free, left = int(words[1]) * 1024, _left_in_control_group()
    return free if left is None else min(free, left)


def _left_in_control_group() -> int | None:
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text("utf-8").strip() for name in _GROUP_FILES)
    except OSError:
        return None
    return int(limit) - int(used) + _idle_file_cache() if limit.isdigit() and used.isdigit() else None


def _idle_file_cache() -> int:
    """What the control group holds of files that the system drops first: memory that counts as used and is free."""
    try:
        lines = Path("/sys/fs/cgroup/memory.stat").read_text("utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def free_device_bytes(device: str) -> int | None:
    """What is free on a CUDA device; None where the device does not tell."""
    return torch.cuda.mem_get_info(device)[0] if torch.device(device).type == "cuda" else None


def _device(device: str) -> dict[str, Any]:
    if torch.device(device).type != "cuda":
        return {"type": "cpu", "reported_name": processor_name()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "type": "cuda",
        "reported_name": properties.name,
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
    }
