"""Reading and writing through indices and masks. Real indices are checked: their values are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.weightless.dispatcher import Dispatcher
from llm_perf_opt.weightless.ghost import Ghost, choice_counts, new_ghost
from llm_perf_opt.weightless.recipes import Fresh, SameAs
from llm_perf_opt.weightless.rules.registry import argument, shape_rule, value_rule
from llm_perf_opt.weightless.spec import FLOAT_DTYPES, contiguous_spec, preserved_layout, spec_of_tensor

_MASKS = (torch.bool, torch.uint8)


def check_range(index: torch.Tensor, size: int, *, may_be_negative: bool) -> None:
    """Raise as torch would when a real index does not fit; a ghost or a mask always fits."""
    if type(index) is Ghost or index.dtype in _MASKS or not index.numel():
        return
    low, high = (int(bound) for bound in torch.aminmax(index))
    if high >= size or low < (-size if may_be_negative else 0):
        raise IndexError(f"index {high if high >= size else low} is out of bounds for dimension with size {size}")


def resolve_masks(engine: Dispatcher, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
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


_WRITES = (
    "index_put_", "_index_put_impl_", "masked_scatter_", "masked_fill_", "scatter_", "scatter_add_", "scatter_reduce_",
    "index_add_", "index_copy_", "index_fill_", "put_", "copy_", "fill_", "zero_", "normal_", "uniform_", "random_",
    "bernoulli_", "clamp_", "clamp_min_", "clamp_max_", "exponential_", "cauchy_", "log_normal_", "geometric_",
    "erfinv_",
)  # fmt: skip


@value_rule(*_WRITES)
def write_integers(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A real integer or boolean target gets the oracle's values for every ghost among the sources."""
    if type(args[0]) is Ghost:
        return _one_hot_table(engine, func, args, kwargs)
    if args[0].dtype in FLOAT_DTYPES:
        return NotImplemented
    real = [_real(engine, value) for value in args]
    func(*real, **{name: _real(engine, value) for name, value in kwargs.items()})
    return args[0]


def _one_hot_table(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`zeros(tokens, experts).scatter_(1, chosen, 1)` where the table is too large to hold: its columns are counted."""
    if func is not torch.ops.aten.scatter_.value or args[0].memory.uniform != 0 or args[0].ndim != 2:
        return NotImplemented
    table, dim, chosen, value = args
    if dim not in (1, -1) or value != 1:
        return NotImplemented
    # Code that follows sums the columns to learn how many tokens each expert gets; that needs the counts alone.
    counts = choice_counts(chosen)
    if type(chosen) is not Ghost:
        counts = torch.bincount(chosen.flatten(), minlength=table.shape[1])
    output = engine.propagate_unrecorded(func, args, kwargs)
    if counts is not None:
        table.memory.counts = table.spec, counts
    return output


def _real(engine: Dispatcher, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return engine.materialise(value, "write")
    if isinstance(value, (list, tuple)):
        return [_real(engine, item) for item in value]
    return value


@shape_rule(*_WRITES)
def write_floats(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The target itself. The engine marks a real float target as holding stale values."""
    return SameAs((0,))


@shape_rule("index_put", "_unsafe_index_put", "index_add", "index_copy", "index_fill")
def write_copy(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    spec = args[0].spec if type(args[0]) is Ghost else spec_of_tensor(args[0])
    if not spec.is_float:
        return NotImplemented
    return Fresh(preserved_layout(spec, spec.dtype))


@shape_rule("masked_scatter")
def masked_scatter(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return Fresh(contiguous_spec(torch.broadcast_shapes(args[0].shape, args[1].shape), args[0].dtype))


@value_rule("embedding.default")
def embedding(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if type(args[0]) is Ghost:
        check_range(args[1], args[0].shape[0], may_be_negative=False)
    return NotImplemented


@value_rule("index_select.default", "gather.default")
def index_select(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    source = args[0]
    if type(source) is Ghost and source.ndim:
        dim, index = argument(args, kwargs, 1, "dim", 0), argument(args, kwargs, 2, "index", None)
        check_range(index, source.shape[dim], may_be_negative=False)
    return NotImplemented


@value_rule("index.Tensor", "_unsafe_index.Tensor")
def index(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    source, indices = args[0], args[1]
    if type(source) is not Ghost:
        if any(type(i) is Ghost and i.numel() > engine.limits.real_integer for i in indices if i is not None):
            return NotImplemented
        return func(source, [engine.materialise(i, "index") if i is not None else None for i in indices])
    # A mask becomes positions first: how many rows it picks is the shape of the result.
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
def masked_select(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    source, mask = args[0], engine.materialise(args[1], "masked_select")
    if type(source) is not Ghost:
        return func(source, mask)
    shape = torch.broadcast_shapes(source.shape, mask.shape)
    repeats = math.prod(shape) // max(mask.numel(), 1)
    return new_ghost(contiguous_spec((int(mask.sum()) * repeats,), source.dtype))
