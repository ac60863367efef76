"""Conversions of dtype and device, and ops that change nothing. A device is only ever shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.weightless.dispatcher import Dispatcher
from llm_perf_opt.weightless.ghost import Ghost, choice_counts
from llm_perf_opt.weightless.recipes import Answered, CopyOf, Fresh, GhostView, Recipe, SameAs, Several, UniformMask
from llm_perf_opt.weightless.rules.registry import argument, real_rule, shape_rule, value_rule
from llm_perf_opt.weightless.spec import Spec, contiguous_spec, preserved_layout, spec_of_tensor

_CPU = torch.device("cpu")


def _cast(
    engine: Dispatcher,
    func: Any,
    ghost: Ghost,
    dtype: torch.dtype | None,
    copy: Any,
    memory_format: torch.memory_format | None,
) -> Recipe:
    spec = ghost.spec
    target = _target_spec(spec, dtype or spec.dtype, memory_format)
    if target is spec and not copy:
        return SameAs((0,))
    if spec.is_float and not target.is_float:
        if target.numel <= engine.limits.eager_mask:
            return Answered(target, func)
        return UniformMask(target, None)
    return CopyOf(target, (0,))


def _target_spec(spec: Spec, dtype: torch.dtype, memory_format: torch.memory_format | None) -> Spec:
    if memory_format in (None, torch.preserve_format):
        return spec if dtype is spec.dtype else preserved_layout(spec, dtype)
    twin = torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device="meta")
    return spec_of_tensor(twin.contiguous(memory_format=memory_format))


@value_rule("_to_copy", "to.dtype")
def copy_of_choice(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A choice of experts in another type is the same choice."""
    counts = choice_counts(args[0])
    if counts is None:
        return NotImplemented
    copied = engine.propagate_unrecorded(func, args, kwargs)
    copied.memory.chosen = counts
    return copied


@shape_rule("_to_copy")
def to_copy(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return _cast(engine, func, args[0], kwargs.get("dtype"), True, kwargs.get("memory_format"))


@shape_rule("to.dtype")
def to_dtype(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    _, dtype, _, copy, memory_format = _with_names(args, kwargs, "dtype", "non_blocking", "copy", "memory_format")
    return _cast(engine, func, args[0], dtype, copy, memory_format)


@shape_rule("to.device")
def to_device(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    _, _, dtype, _, copy, memory_format = _with_names(
        args, kwargs, "device", "dtype", "non_blocking", "copy", "memory_format"
    )
    return _cast(engine, func, args[0], dtype, copy, memory_format)


@shape_rule("to.dtype_layout")
def to_dtype_layout(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return _cast(engine, func, args[0], kwargs.get("dtype"), kwargs.get("copy"), kwargs.get("memory_format"))


@shape_rule("to.other")
def to_other(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    _, other, _, copy, memory_format = _with_names(args, kwargs, "other", "non_blocking", "copy", "memory_format")
    return _cast(engine, func, args[0], other.dtype, copy, memory_format)


@shape_rule("type_as")
def type_as(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return _cast(engine, func, args[0], args[1].dtype, False, None)


@value_rule("to.other", "type_as")
def real_tensor_like_ghost(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A real tensor cast to the dtype of a ghost stays real."""
    if type(args[0]) is Ghost:
        return NotImplemented
    return args[0].to(args[1].dtype, copy=bool(kwargs.get("copy")))


def _with_names(args: Sequence[Any], kwargs: Mapping[str, Any], *names: str) -> list[Any]:
    return [*args, *(kwargs.get(name) for name in names[len(args) - 1 :])]


@real_rule("to.device")
def real_to_device(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(args[0], _CPU, *args[2:], **kwargs)


@real_rule("is_pinned")
def real_is_pinned(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return False


@real_rule("_pin_memory", "pin_memory")
def real_pin_memory(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return args[0]


@shape_rule("detach", "alias", "lift_fresh", "detach_", "lift")
def alias(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return GhostView(args[0].spec, (0,)) if type(args[0]) is Ghost else NotImplemented


@shape_rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Outside training, and with probability 0, the input itself."""
    is_active = argument(args, kwargs, 2, "train", False) and argument(args, kwargs, 1, "p", 0.5) > 0
    return Fresh(args[0].spec) if is_active else SameAs((0,))


@shape_rule("native_dropout")
def native_dropout(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    mask = contiguous_spec(args[0].shape, torch.bool)
    return Several((Fresh(args[0].spec), Fresh(mask)), tuple)


@shape_rule("bernoulli.default", "bernoulli.p")
def bernoulli(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return Fresh(args[0].spec)
