"""Reading through indices and masks. Real indices are checked against the ghost's size: their values are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.weightless.ghost import Ghost, new_ghost
from llm_perf_opt.weightless.real_indices import check_range, resolve_masks
from llm_perf_opt.weightless.rules.registry import argument, value_rule
from llm_perf_opt.weightless.spec import contiguous_spec


@value_rule("embedding.default")
def embedding(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if type(args[0]) is Ghost:
        check_range(args[1], args[0].shape[0], may_be_negative=False)
    return NotImplemented


@value_rule("index_select.default", "gather.default")
def index_select(engine: Any, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    source = args[0]
    if type(source) is Ghost and source.ndim:
        dim, index = argument(args, kwargs, 1, "dim", 0), argument(args, kwargs, 2, "index", None)
        check_range(index, source.shape[dim], may_be_negative=False)
    return NotImplemented


@value_rule("index.Tensor", "_unsafe_index.Tensor")
def index(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    source, indices = args[0], args[1]
    if type(source) is not Ghost:
        if any(type(i) is Ghost and i.numel() > engine.limits.real_integer for i in indices if i is not None):
            return NotImplemented
        return func(source, [engine.materialise(i, "index") if i is not None else None for i in indices])
    spec = source.spec
    resolved = resolve_masks(engine, indices)
    if len(resolved) > spec.ndim:
        raise IndexError(f"too many indices for tensor of dimension {spec.ndim}")
    for size, position in zip(spec.shape, resolved, strict=False):
        if position is not None and not position.is_meta:
            check_range(position, size, may_be_negative=True)
    return new_ghost(contiguous_spec(_indexed_shape(spec.shape, resolved), spec.dtype))


def _indexed_shape(shape: torch.Size, indices: Sequence[torch.Tensor | None]) -> list[int]:
    """Advanced indexing: the broadcast of the indices replaces the indexed dimensions, in front if they are apart."""
    indexed = [axis for axis, position in enumerate(indices) if position is not None]
    if not indexed:
        return list(shape)
    chosen = list(torch.broadcast_shapes(*[position.shape for position in indices if position is not None]))
    if indexed == list(range(indexed[0], indexed[-1] + 1)):
        return [*shape[: indexed[0]], *chosen, *shape[indexed[-1] + 1 :]]
    return chosen + [size for axis, size in enumerate(shape) if axis not in indexed]


@value_rule("masked_select.default")
def masked_select(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    source, mask = args[0], engine.materialise(args[1], "masked_select")
    if type(source) is not Ghost:
        return func(source, mask)
    shape = torch.broadcast_shapes(source.shape, mask.shape)
    repeats = math.prod(shape) // max(mask.numel(), 1)
    return new_ghost(contiguous_spec((int(mask.sum()) * repeats,), source.dtype))
