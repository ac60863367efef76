"""Ops whose result is as long as values decide: `nonzero`, `unique`, `repeat_interleave`.

Masks and counts are usually real; a ghost's values are invented by the oracle first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.weightless.fallbacks import Done, ghosts_for_floats
from llm_perf_opt.weightless.ghost import Ghost, new_ghost
from llm_perf_opt.weightless.rules.registry import argument, value_rule
from llm_perf_opt.weightless.spec import contiguous_spec


@value_rule("nonzero.default")
def nonzero(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return engine.materialise(args[0], "nonzero").nonzero()


@value_rule("nonzero_numpy.default", "where.default")
def nonzero_per_dimension(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return list(engine.materialise(args[0], "nonzero").nonzero().unbind(1))


@value_rule("count_nonzero.dim_IntList")
def count_nonzero(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(engine.materialise(args[0], "count_nonzero"), *args[1:], **kwargs)


@value_rule(
    "unique_dim", "_unique2", "_unique", "unique_consecutive", "unique_dim_consecutive", "bincount",
    "_pack_padded_sequence", "_pad_packed_sequence",
)  # fmt: skip
def on_invented_values(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run the CPU kernel on oracle values; float results are ghosts again."""
    name = func._overloadpacket.__name__
    real = [engine.materialise(value, name) if isinstance(value, torch.Tensor) else value for value in args]
    return ghosts_for_floats(func(*real, **kwargs))


@value_rule("repeat_interleave.Tensor")
def repeat_interleave_counts(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(engine.materialise(args[0], "repeat_interleave"), **kwargs)


@value_rule("repeat_interleave.self_Tensor")
def repeat_interleave(engine: Any, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
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
def one_hot(engine: Any, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    classes = argument(args, kwargs, 1, "num_classes", -1)
    if classes > 0:
        return new_ghost(contiguous_spec((*args[0].shape, classes), torch.long))
    return func(engine.materialise(args[0], "one_hot"), classes)


@value_rule("tensor_split.tensor_indices_or_sections")
def tensor_split(engine: Any, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    places = engine.materialise(args[1], "tensor_split").tolist()
    with engine:
        return Done(list(torch.tensor_split(args[0], places, argument(args, kwargs, 2, "dim", 0))))
