"""FSDP2 without memory to take away and without streams: what must differ in torch's own code while a run lasts.

FSDP2 keeps the tensor of a weight and resizes its storage to 0, and a ghost has none: memory that is taken away is told
to the record, memory that comes back is a new block under a new number, which every view of the tensor shares. It asks
the mesh for its device, which in a fake world is the CPU, and compares it with that of the weights: it is told the
device that model code sees. Streams of that device do not exist here: those of the CPU, which do nothing, serve.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from llm_perf_opt.core.thread_patches import ThreadPatches
from llm_perf_opt.weightless.ghost import Ghost, active_engine
from llm_perf_opt.weightless.storage import Storage, next_number

_FSDP = "torch.distributed.fsdp._fully_shard."
_FILES = ("_fully_shard", "_fsdp_collectives", "_fsdp_init", "_fsdp_param", "_fsdp_param_group", "_fsdp_state")


def run_fully_sharded(patches: ThreadPatches, shown: torch.device) -> None:
    """Only where FSDP2 is loaded: who spreads a model so has imported it before it runs."""
    files = [module for name in _FILES if (module := sys.modules.get(_FSDP + name)) is not None]
    if not files:
        return
    memory = _Memory(sys.modules[_FSDP + "_fsdp_param"])
    _replace(patches, files, "free_storage", memory.free)
    _replace(patches, files, "alloc_storage", memory.allocate)
    _replace(patches, files, "_get_device_from_mesh", lambda mesh: shown)
    _replace(patches, files, "_get_device_handle", lambda *device_type: torch.cpu)


def _replace(patches: ThreadPatches, files: list[ModuleType], name: str, function: Callable[..., Any]) -> None:
    for module in files:
        if name in vars(module):
            patches.replace(module, name, function)


class _Memory:
    """The two helpers that take the memory of a tensor away and give it back."""

    def __init__(self, real: Any) -> None:
        self._free_real, self._allocate_real = real.free_storage, real.alloc_storage
        self._freed: set[int] = set()  # numbers of blocks that are gone while their tensors live

    def free(self, tensor: torch.Tensor) -> None:
        if type(tensor) is not Ghost:
            self._free_real(tensor)
        elif tensor.memory.number not in self._freed:
            self._freed.add(tensor.memory.number)
            if Storage.on_free is not None:
                Storage.on_free(tensor.memory.number)

    def allocate(self, tensor: torch.Tensor) -> None:
        if type(tensor) is not Ghost:
            self._allocate_real(tensor)
        elif tensor.memory.number in self._freed:
            self._freed.discard(tensor.memory.number)
            tensor.memory.number = next_number()
            active_engine().new_block(tensor)
