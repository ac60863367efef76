"""Random weights of the right size, made at the speed of memory: which values they are matters to no shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import init
from torch.overrides import TorchFunctionMode

_STANDARD_DEVIATION = 0.02
_NOISE_VALUES = 1_048_583  # a prime, so that no row of a matrix meets the same noise as the row before it
_LARGE = 1 << 16
_RANDOM_FILLS = frozenset(
    {
        torch.Tensor.uniform_,
        torch.Tensor.normal_,
        torch.Tensor.erfinv_,
        torch.Tensor.bernoulli_,
        torch.Tensor.random_,
        torch.Tensor.exponential_,
        init.uniform_,
        init.normal_,
        init.trunc_normal_,
        init.kaiming_uniform_,
        init.kaiming_normal_,
        init.xavier_uniform_,
        init.xavier_normal_,
        init.orthogonal_,
    }
)


class _WithoutRandomFills(TorchFunctionMode):
    """Lets random in-place fills of large tensors pass without doing anything; small ones are done."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RANDOM_FILLS:
            # torch.nn.init asks a mode before it does anything, and hands its tensor over by name
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.numel() >= _LARGE and tensor.is_floating_point():
                return tensor
        return func(*args, **kwargs)


@contextmanager
def skip_random_fills() -> Iterator[None]:
    """Build a model without drawing billions of random numbers; buffers and constant fills are as ever."""
    with _WithoutRandomFills():
        yield


@torch.no_grad()
def fill_with_noise(model: torch.nn.Module) -> None:
    """Give every matrix the same kind of noise, whatever its constructor did; the same model gets the same values.

    Vectors (biases, scales of norms) keep what the constructor gave them, unless that was no finite number.
    """
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(_NOISE_VALUES, generator=generator) * _STANDARD_DEVIATION
    by_dtype: dict[torch.dtype, torch.Tensor] = {}
    start = 0
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        if parameter.ndim < 2:
            torch.nan_to_num_(parameter, nan=0.0, posinf=0.0, neginf=0.0)
            continue
        if parameter.dtype not in by_dtype:
            by_dtype[parameter.dtype] = noise.to(parameter.dtype)
        _tile(parameter, by_dtype[parameter.dtype], start)
        start = (start + parameter.numel()) % _NOISE_VALUES


def _tile(parameter: torch.Tensor, noise: torch.Tensor, start: int) -> None:
    """Copy `noise` over and over, beginning at `start`."""
    if not parameter.is_contiguous():
        repeats = math.ceil((start + parameter.numel()) / len(noise))
        parameter.copy_(noise.repeat(repeats)[start : start + parameter.numel()].view(parameter.shape))
        return
    flat = parameter.view(-1)
    done = 0
    while done < len(flat):
        piece = noise[start : start + len(flat) - done]
        flat[done : done + len(piece)].copy_(piece)
        done, start = done + len(piece), 0
