"""Which one, in which order, how many: indices and sizes chosen from values that are not there, by the oracle.

Masks and counts are usually real; a ghost's values are invented by the oracle first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.weightless.dispatcher import Dispatcher
from llm_perf_opt.weightless.fallbacks import Done, ghosts_for_floats
from llm_perf_opt.weightless.ghost import Ghost, choice_counts, new_ghost
from llm_perf_opt.weightless.rules.registry import argument, value_rule
from llm_perf_opt.weightless.spec import Spec, contiguous_spec


@value_rule("nonzero.default")
def nonzero(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return engine.materialise(args[0], "nonzero").nonzero()


@value_rule("nonzero_numpy.default", "where.default")
def nonzero_per_dimension(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return list(engine.materialise(args[0], "nonzero").nonzero().unbind(1))


@value_rule("count_nonzero.dim_IntList")
def count_nonzero(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(engine.materialise(args[0], "count_nonzero"), *args[1:], **kwargs)


@value_rule(
    "unique_dim", "_unique2", "_unique", "unique_consecutive", "unique_dim_consecutive", "_pack_padded_sequence",
    "_pad_packed_sequence",
)  # fmt: skip
def on_invented_values(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run the CPU kernel on oracle values; float results are ghosts again."""
    name = func._overloadpacket.__name__
    real = [engine.materialise(value, name) if isinstance(value, torch.Tensor) else value for value in args]
    return ghosts_for_floats(func(*real, **kwargs))


@value_rule("repeat_interleave.Tensor")
def repeat_interleave_counts(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(engine.materialise(args[0], "repeat_interleave"), **kwargs)


@value_rule("repeat_interleave.self_Tensor")
def repeat_interleave(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    source, repeats = args[0], engine.materialise(args[1], "repeat_interleave")
    if type(source) is not Ghost:
        return func(source, repeats, *args[2:], **kwargs)
    dim = argument(args, kwargs, 2, "dim", None)
    shape = list(source.shape) if dim is not None else [source.numel()]
    axis = dim if dim is not None else 0
    total = int(repeats.sum())
    shape[axis] = total if repeats.numel() > 1 else shape[axis] * total
    return new_ghost(contiguous_spec(shape, source.dtype))


@value_rule("one_hot.default")
def one_hot(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    classes = argument(args, kwargs, 1, "num_classes", -1)
    if classes > 0:
        return new_ghost(contiguous_spec((*args[0].shape, classes), torch.long))
    return func(engine.materialise(args[0], "one_hot"), classes)


@value_rule("tensor_split.tensor_indices_or_sections")
def tensor_split(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    places = engine.materialise(args[1], "tensor_split").tolist()
    with engine:
        return Done(list(torch.tensor_split(args[0], places, argument(args, kwargs, 2, "dim", 0))))


def _index_ghost(shape: Sequence[int]) -> Ghost:
    return new_ghost(contiguous_spec(shape, torch.long))


@value_rule("topk.default")
def topk(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    if type(args[0]) is not Ghost:
        return NotImplemented
    spec, k, dim = args[0].spec, args[1], argument(args, kwargs, 2, "dim", -1)
    shape = list(spec.shape)
    if shape:
        if k > shape[dim]:
            raise RuntimeError("selected index k out of range")
        shape[dim] = k
    values = new_ghost(contiguous_spec(shape, spec.dtype))
    if math.prod(shape) <= engine.limits.routing:
        return torch.return_types.topk((values, engine.oracle.topk(spec.shape, dim, k)))
    indices = _index_ghost(shape)
    if spec.shape[dim] <= engine.limits.routed_counts:
        indices.memory.chosen = engine.oracle.topk_counts(spec.shape, dim, k)
    return torch.return_types.topk((values, indices))


@value_rule("sort.default", "sort.stable", "argsort.default", "argsort.stable")
def sort(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    if type(args[0]) is not Ghost:
        return NotImplemented
    spec = args[0].spec
    positional_dim = next((value for value in args[1:] if type(value) is int), -1)
    dim = kwargs.get("dim", positional_dim)
    name = func._overloadpacket.__name__
    counts = choice_counts(args[0])
    is_large = spec.numel > engine.limits.real_integer or counts is not None
    order = _index_ghost(spec.shape) if is_large else engine.oracle.identity_order(name, spec.shape, dim)
    if name == "argsort":
        return order
    if not spec.is_float and not is_large:
        return torch.return_types.sort((engine.oracle.values(spec), order))
    values = new_ghost(spec)
    values.memory.chosen = counts  # of a choice the same experts in another order
    return torch.return_types.sort((values, order))


@value_rule("histc.default", "bincount.default")
def rows_of_experts(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Of a choice too large to be held, where the bins are the experts; anything else is counted in invented values."""
    counts = choice_counts(args[0])
    if func._overloadpacket.__name__ == "bincount":
        is_whole = counts is not None and argument(args, kwargs, 2, "minlength", 0) == len(counts)
        has_weights = argument(args, kwargs, 1, "weights", None) is not None
        if counts is None or not is_whole or has_weights:
            return on_invented_values(engine, func, args, kwargs)
        return counts.clone()  # a block of its own, as any result has
    bins = argument(args, kwargs, 1, "bins", 100)
    ends = argument(args, kwargs, 2, "min", 0), argument(args, kwargs, 3, "max", 0)
    if counts is None or len(counts) != bins or ends != (0, bins - 1):
        return NotImplemented
    return counts.to(args[0].dtype, copy=True)


@value_rule("argmax.default", "argmin.default")
def argmax(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    spec, dim = args[0].spec, argument(args, kwargs, 1, "dim", None)
    keep = argument(args, kwargs, 2, "keepdim", False)
    shape = _reduced(spec, dim, keep)
    if dim is not None and _may_route(engine, spec, shape):
        return engine.oracle.topk(spec.shape, dim, 1).reshape(shape)
    return _winners(engine, func, shape, spec.numel if dim is None else _length(spec, dim))


@value_rule("max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode.default", "kthvalue.default")
def best_along(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    name = func._overloadpacket.__name__
    first = 2 if name == "kthvalue" else 1
    spec, dim = args[0].spec, argument(args, kwargs, first, "dim", -1)
    shape = _reduced(spec, dim, argument(args, kwargs, first + 1, "keepdim", False))
    if name == "max" and _may_route(engine, spec, shape):
        indices = engine.oracle.topk(spec.shape, dim, 1).reshape(shape)
    else:
        indices = _winners(engine, func, shape, _length(spec, dim))
    value_spec = contiguous_spec(shape, spec.dtype)
    is_real = not spec.is_float and type(indices) is not Ghost
    values = engine.oracle.values(value_spec) if is_real else new_ghost(value_spec)
    return getattr(torch.return_types, name)((values, indices))


def _may_route(engine: Dispatcher, spec: Spec, shape: tuple[int, ...]) -> bool:
    """The best of floats along a dimension may be a router that takes one expert: then the routing policy answers."""
    return bool(spec.is_float and spec.ndim and math.prod(shape) <= engine.limits.routing)


def _winners(engine: Dispatcher, func: Any, shape: tuple[int, ...], candidates: int) -> torch.Tensor:
    if math.prod(shape) > engine.limits.real_integer:
        return _index_ghost(shape)
    winners: torch.Tensor = engine.oracle.one_of(func._overloadpacket.__name__, shape, candidates)
    return winners


@value_rule("cummax.default", "cummin.default")
def running_best(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    spec, name = args[0].spec, func._overloadpacket.__name__
    order = engine.oracle.identity_order(name, spec.shape, argument(args, kwargs, 1, "dim", -1))
    return getattr(torch.return_types, name)((new_ghost(spec), order))


@value_rule("multinomial.default")
def multinomial(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    shape = args[0].spec.shape
    count = argument(args, kwargs, 1, "num_samples", 1)
    return engine.oracle.one_of("multinomial", (*shape[:-1], count), shape[-1])


@value_rule("bucketize.Tensor", "searchsorted.Tensor")
def bucketize(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    name = func._overloadpacket.__name__
    values, boundaries = (args[0], args[1]) if name == "bucketize" else (args[1], args[0])
    return engine.oracle.one_of(name, tuple(values.shape), max(boundaries.shape[-1], 1))


@value_rule("bucketize.Scalar", "searchsorted.Scalar")
def bucketize_scalar(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    return engine.oracle.one_of(func._overloadpacket.__name__, (), 1)


def _length(spec: Spec, dim: int) -> int:
    return spec.shape[dim] if spec.ndim else 1


def _reduced(spec: Spec, dim: int | None, keep: bool) -> tuple[int, ...]:
    shape = list(spec.shape)
    if dim is None:
        return (1,) * len(shape) if keep else ()
    if shape:
        shape[dim : (dim % len(shape)) + 1] = [1] if keep else []
    return tuple(shape)
