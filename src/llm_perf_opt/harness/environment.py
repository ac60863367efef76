"""Where a run happened: versions, device, threads and whatever else a time depends on besides the model."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from llm_perf_opt import __version__

_LIBRARIES = ("torch", "transformers", "numpy")


def library_versions() -> dict[str, str]:
    """Installed versions; a library that is absent is left out."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


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
