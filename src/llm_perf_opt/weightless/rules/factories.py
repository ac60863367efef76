"""New tensors. Small constants are real, because code computes with them; `empty` and large floats are ghosts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.weightless.dispatcher import Dispatcher
from llm_perf_opt.weightless.ghost import Ghost, new_ghost, uniform_ghost
from llm_perf_opt.weightless.rules.registry import argument, real_rule, value_rule
from llm_perf_opt.weightless.spec import FLOAT_DTYPES, contiguous_spec, preserved_layout, spec_of_tensor

# A float template result this small is usually a scalar or a pair of bounds that code goes on to compute with.
_SMALL = 16


def _is_large(engine: Dispatcher, count: int, dtype: torch.dtype) -> bool:
    return bool(count > (engine.limits.real_float if dtype in FLOAT_DTYPES else engine.limits.real_integer))


@real_rule("empty.memory_format", "empty_strided", "empty_permuted")
def empty(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Uninitialised floats are what weights are made of: ghosts. Integers are zeros, not whatever memory held."""
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    size = tuple(argument(args, kwargs, 0, "size", ()))
    count = math.prod(size)
    is_ghost = count > 1 if dtype in FLOAT_DTYPES else _is_large(engine, count, dtype)
    return new_ghost(contiguous_spec(size, dtype)) if is_ghost else torch.zeros(size, dtype=dtype)


@real_rule("rand.default", "randn.default")
def random(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    size = tuple(argument(args, kwargs, 0, "size", ()))
    return new_ghost(contiguous_spec(size, dtype)) if _is_large(engine, math.prod(size), dtype) else NotImplemented


@real_rule("zeros.default", "ones.default", "full.default")
def constant(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    name = func._overloadpacket.__name__
    value = argument(args, kwargs, 1, "fill_value", 0) if name == "full" else int(name == "ones")
    dtype = kwargs.get("dtype") or (_dtype_of(value) if name == "full" else torch.get_default_dtype())
    size = tuple(argument(args, kwargs, 0, "size", ()))
    if not _is_large(engine, math.prod(size), dtype):
        return NotImplemented
    return uniform_ghost(contiguous_spec(size, dtype), _cast_value(value, dtype))


def _dtype_of(value: Any) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    return torch.long if isinstance(value, int) else torch.get_default_dtype()


def _cast_value(value: Any, dtype: torch.dtype) -> bool | int | float | None:
    if isinstance(value, complex):
        return None
    if dtype is torch.bool:
        return bool(value)
    return float(value) if dtype in FLOAT_DTYPES else int(value)


@value_rule("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
def constant_like(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """A constant with a ghost as template: integers are real, and so are floats that code may compute with."""
    name = func._overloadpacket.__name__
    template, dtype = args[0], kwargs.get("dtype") or args[0].dtype
    size = tuple(args[1]) if name.startswith("new_") else tuple(template.shape)
    value = _fill_value(engine, name, args, kwargs)
    count = math.prod(size)
    # Small floats stay real: models fill a table of constants and then branch on one of its values.
    if (dtype in FLOAT_DTYPES and count > _SMALL) or _is_large(engine, count, dtype):
        spec = contiguous_spec(size, dtype)
        if name.endswith("_like"):
            layout = template.spec if type(template) is Ghost else spec_of_tensor(template)
            spec = preserved_layout(layout, dtype)
        return uniform_ghost(spec, None if value is None else _cast_value(value, dtype))
    if value is None:
        return (torch.randn if name == "randn_like" else torch.rand)(size, dtype=dtype)
    return torch.full(size, value, dtype=dtype)


def _fill_value(engine: Dispatcher, name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """The constant, or `None` where every element is its own (random)."""
    if "rand" in name:
        return None
    if "full" not in name:
        return int("ones" in name)
    value = argument(args, kwargs, 2 if name == "new_full" else 1, "fill_value", 0)
    return engine.materialise(value, "full").item() if isinstance(value, torch.Tensor) else value


@value_rule("new_empty", "new_empty_strided", "empty_like")
def empty_like(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    name = func._overloadpacket.__name__
    template, dtype = args[0], kwargs.get("dtype") or args[0].dtype
    size: Sequence[int] = tuple(args[1]) if name.startswith("new_") else tuple(template.shape)
    if dtype not in FLOAT_DTYPES and not _is_large(engine, math.prod(size), dtype):
        return torch.zeros(size, dtype=dtype)
    if name == "empty_like" and type(template) is Ghost:
        return new_ghost(preserved_layout(template.spec, dtype))
    return new_ghost(contiguous_spec(size, dtype))
