"""Operands of probes: their values are noise, since no time here depends on them."""

from __future__ import annotations

import torch
from torch import Tensor

_NOISE_VALUES = 1_048_583  # a prime, so that rows of a matrix do not repeat


def torch_dtype(name: str) -> torch.dtype:
    """`bfloat16` as torch knows it."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def noise(shape: tuple[int, ...], dtype: str, device: str) -> Tensor:
    """Normal values, repeated where many are wanted: drawing a billion of them would take longer than all probes."""
    values = torch.Size(shape).numel()
    few = torch.randn(min(values, _NOISE_VALUES), generator=torch.Generator().manual_seed(0)).to(torch_dtype(dtype))
    if values <= len(few):
        return few.view(shape).to(device)
    tensor = torch.empty(values, dtype=few.dtype, device=device)
    for start in range(0, values, len(few)):
        piece = tensor[start : start + len(few)]
        piece.copy_(few[: len(piece)])
    return tensor.view(shape)
