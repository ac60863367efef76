"""GPUs that vLLM believes in: its own CUDA platform, with the driver's answers taken from a record.

vLLM asks the entry points of installed packages for platforms. This process has such a package in memory only: nothing
is installed. The process in which vLLM inspects a model class does not see it: CUDA-only imports would fail there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from llm_perf_opt.serving.engine_settings import SeenDevice

_ENTRY_POINTS = f"[vllm.platform_plugins]\nllm_perf_opt = {__name__}:platform_name\n"
_METADATA = "Metadata-Version: 2.1\nName: llm-perf-opt-platform\nVersion: 0\n"
_CUDA_EXTENSIONS = (
    "vllm._C_stable_libtorch",
    "vllm._C",
    "vllm._moe_C",
)  # a CPU build has none; nothing in them is called
_seen: dict[str, SeenDevice] = {}


class _Package(Distribution):
    """A package of two files, which `importlib.metadata` reads like any other."""

    def read_text(self, filename: str) -> str | None:
        return {"entry_points.txt": _ENTRY_POINTS, "METADATA": _METADATA}.get(filename)

    def locate_file(self, path: str | PathLike[str]) -> Path:
        return Path(path)


class _PackageFinder(DistributionFinder):
    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008 - as in the base class
    ) -> Iterator[Distribution]:
        if context.name in (None, "llm-perf-opt-platform"):
            yield _Package()

    def find_spec(self, *_: object) -> None:  # it holds no modules
        return None


def believe_in(device: SeenDevice) -> None:
    """From now on vLLM runs on this device. Once per process, before vllm is imported."""
    if not _seen:
        assert "vllm" not in sys.modules, "vLLM may have found its platform already"
        sys.meta_path.append(_PackageFinder())
    assert _seen.setdefault("device", device) == device, "vLLM keeps what it learnt of its device: one per process"


def platform_name() -> str:
    """What the entry point answers: where the class of the platform is."""
    return f"{__name__}.SeenPlatform"


def __getattr__(name: str) -> Any:
    """The class is made when vLLM asks for it: its base is not to be imported before."""
    if name != "SeenPlatform":
        raise AttributeError(name)
    for extension in _CUDA_EXTENSIONS:
        sys.modules.setdefault(extension, ModuleType(extension))
    globals()[name] = platform = _platform(_seen["device"])
    return platform


def _platform(device: SeenDevice) -> type:
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    major, minor = device.capability
    answers: dict[str, object] = {
        "get_device_name": device.name,
        "get_device_total_memory": device.memory_bytes,
        "get_device_capability": DeviceCapability(major, minor),
        "num_compute_units": device.compute_units,
        "device_count": 4096,  # vLLM only asks whether there are enough
        "is_fully_connected": True,
        "is_pin_memory_available": False,
        "is_integrated_gpu": False,
        "import_kernels": None,
        "get_all_device_numa_nodes": None,
        "get_device_numa_node": None,
        "check_if_supports_dtype": None,
        "get_cuda_runtime_major": 12,
        "log_warnings": None,
    }

    def has_capability(_: object, capability: int | tuple[int, int], device_id: int = 0) -> bool:
        wanted = capability if isinstance(capability, int) else capability[0] * 10 + capability[1]
        return major * 10 + minor >= wanted

    methods: dict[str, object] = {name: classmethod(_answering(value)) for name, value in answers.items()}
    return type("SeenPlatform", (CudaPlatformBase,), {**methods, "has_device_capability": classmethod(has_capability)})


def _answering(value: object) -> Any:
    return lambda *_, **__: value
