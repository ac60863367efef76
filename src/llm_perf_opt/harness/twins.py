"""The same module and arguments on other tensors: ghosts, the meta device, or real ones with random values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from llm_perf_opt.harness.tensors import tensors_in
from llm_perf_opt.weightless import Ghost
from llm_perf_opt.weightless.ghost import new_ghost
from llm_perf_opt.weightless.spec import spec_of_tensor

T = TypeVar("T")
_STANDARD_DEVIATION = 0.02


def meta_twin(value: T) -> T:
    """A copy with every tensor on the meta device: shapes and nothing else."""
    return _twin(
        value, lambda tensor: torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    )


def ghost_twin(value: T) -> T:
    """A copy with a ghost in place of every float tensor; integer and bool tensors stay as they are."""
    return _twin(value, lambda tensor: new_ghost(spec_of_tensor(tensor)) if tensor.is_floating_point() else tensor)


def twin(value: T) -> T:
    """A copy on tensors of the same kind: new ghosts for ghosts, the same values where there are any."""
    return _twin(value, _same_kind)


def _same_kind(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor.data, Ghost):
        return copy.deepcopy(tensor)
    with _disable_current_modes():  # an open engine would make a ghost of it
        return tensor.detach().clone()


def real_twin(value: T, seed: int = 0) -> T:
    """A copy with small random values in place of every ghost; what was real stays as it is."""
    generator = torch.Generator().manual_seed(seed)

    def made(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor.data, Ghost):
            return tensor.detach().clone()
        noise = torch.randn(tensor.shape, generator=generator) * _STANDARD_DEVIATION
        return noise.to(tensor.dtype)

    return _twin(value, made)


def _twin(value: T, make: Callable[[torch.Tensor], torch.Tensor]) -> T:
    """A deep copy in which `make` replaces every tensor; one tensor in two places stays one."""
    memo: dict[int, Any] = {}
    for tensor in _tensors_of(value):
        if id(tensor) not in memo:
            made = make(tensor)
            memo[id(tensor)] = torch.nn.Parameter(made, requires_grad=False) if _is_parameter(tensor) else made
    return copy.deepcopy(value, memo)


def _tensors_of(value: Any) -> list[torch.Tensor]:
    if not isinstance(value, torch.nn.Module):
        return tensors_in(value)
    found: list[torch.Tensor] = [*value.parameters(), *value.buffers()]
    for module in value.modules():
        found += tensors_in({name: item for name, item in vars(module).items() if not name.startswith("_")})
    return found


def _is_parameter(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter) or getattr(tensor, "_is_param", False)
