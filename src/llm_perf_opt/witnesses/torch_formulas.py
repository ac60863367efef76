"""Formulas for fused ops that torch's counter has none for, so that what a model does in one kernel has a second count.

Attention gets torch's own formula, which it keeps for the CUDA kernels alone. A grouped product is counted group by
group, from where the offsets say that each ends: the price list of the trace goes by shapes, and knows no group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from llm_perf_opt.weightless import Ghost
from llm_perf_opt.witnesses.moved_bytes import plain_values

Shape = Sequence[int]
_ATTENTION = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
)
_GROUPED = ("aten._grouped_mm", "transformers.grouped_mm_fallback")


def attention_flops(query: Shape, key: Shape, value: Shape, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Torch's formula on four dimensions: whatever precedes the heads is the batch, and shared heads work for each."""
    result = out_shape[0] if isinstance(out_shape[0], (tuple, list, torch.Size)) else out_shape
    batch, heads = math.prod(result[:-3]), (1, *result)[-3]
    shapes = [(batch, heads, *shape[-2:]) for shape in (query, key, value)]
    return int(sdpa_flop_count(*shapes))


def grouped_flops(
    left: torch.Tensor, right: torch.Tensor, offs: torch.Tensor | None = None, *_: Any, out_val: Any = None, **__: Any
) -> int:
    """Two per multiply-add of each group's own product; without values in the offsets, as if no row were left over."""
    sizes = _group_sizes(offs)
    if left.ndim == right.ndim == 3:
        return 2 * left.numel() * right.shape[-1]
    split = left.shape[-1] if left.ndim == right.ndim else left.shape[0] if left.ndim == 2 else right.shape[-1]
    taken = split if sizes is None else sum(sizes)
    if left.ndim == right.ndim:  # the summed dimension is split
        return 2 * left.shape[0] * right.shape[1] * taken
    return 2 * left.shape[-1] * taken * (right.shape[-1] if left.ndim == 2 else left.shape[-2])


grouped_flops._get_raw = True  # type: ignore[attr-defined]  # it wants tensors, since shapes do not tell the groups


def _group_sizes(offsets: torch.Tensor | None) -> list[int] | None:
    if offsets is None or type(offsets) is Ghost:
        return None
    ends = plain_values(offsets)
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def extra_formulas() -> dict[Any, Callable[..., int]]:
    """Op -> formula, of those that this torch has no formula for and that exist by now."""
    wanted: dict[str, Callable[..., int]] = {f"aten.{name}": attention_flops for name in _ATTENTION}
    wanted |= dict.fromkeys(_GROUPED, grouped_flops)
    found = {_packet(name): formula for name, formula in wanted.items()}
    return {packet: formula for packet, formula in found.items() if packet is not None and packet not in flop_registry}


def _packet(name: str) -> Any:
    """The op of that name, or None: a library registers its own when it is first imported."""
    namespace, _, bare = name.partition(".")
    return getattr(getattr(torch.ops, namespace), bare, None)
