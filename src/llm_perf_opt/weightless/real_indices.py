"""What is known of an index: the count of a mask, the range of integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from llm_perf_opt.weightless.ghost import Ghost

_MASKS = (torch.bool, torch.uint8)


def check_range(index: torch.Tensor, size: int, *, may_be_negative: bool) -> None:
    """Raise as torch would when a real index does not fit; a ghost or a mask always fits."""
    if type(index) is Ghost or index.dtype in _MASKS or not index.numel():
        return
    low, high = (int(bound) for bound in torch.aminmax(index))
    if high >= size or low < (-size if may_be_negative else 0):
        raise IndexError(f"index {high if high >= size else low} is out of bounds for dimension with size {size}")


def resolve_masks(engine: Any, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Indices with every mask replaced by meta integers of the right count, one per dimension of the mask."""
    resolved: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            resolved.append(index)
            continue
        mask = engine.materialise(index, "mask index")
        if mask.ndim == 0:
            resolved.append(mask.reshape(1).nonzero()[:, 0])
            continue
        count = int(torch.count_nonzero(mask))
        resolved += [torch.empty(count, dtype=torch.long, device="meta") for _ in range(mask.ndim)]
    return resolved
