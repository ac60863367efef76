"""Ops without a ghost among their arguments: they run for real, because what only constants and inputs decide is known.

Masks, position grids, rotary tables and loop counters stay exact this way. Four things differ from plain execution: a
device argument means the CPU, results above the limits become ghosts, a buffer that received ghost values reads as a
ghost, and a kernel the CPU lacks for a dtype runs in a wider one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.core.collectives import NAMESPACES
from llm_perf_opt.core.plain_text import error_text
from llm_perf_opt.weightless.dispatcher import Dispatcher
from llm_perf_opt.weightless.ghost import Ghost, new_ghost
from llm_perf_opt.weightless.propagation import meta_arguments, overloads
from llm_perf_opt.weightless.recording import flat_tensors, is_mutating, is_view
from llm_perf_opt.weightless.rules import REAL_RULES
from llm_perf_opt.weightless.spec import FLOAT_DTYPES, spec_of_tensor

_CPU = torch.device("cpu")
# Where the sizes of all operands multiply out to more than this, the result may be huge though each operand is small.
_LARGE_MATMUL = 1 << 30

# Their result is small, or its size is the question: measuring it on meta is impossible or pointless.
_RESULT_IS_SMALL = overloads(
    "nonzero", "index", "masked_select", "_local_scalar_dense", "item", "sum", "any", "all", "max", "min", "argmax",
    "equal", "unique", "_unique2", "unique_consecutive", "bincount", "histc", "repeat_interleave", "nonzero_numpy",
    "where.default", "is_nonzero",
)  # fmt: skip
# Names of ranges for a profiler: no work.
_MARKS = frozenset(
    getattr(torch.ops.profiler, name).default for name in ("_record_function_enter", "_record_function_enter_new")
)
_MAY_VIEW = overloads("reshape", "contiguous", "flatten", "unflatten", "movedim", "_unsafe_view", "lift_fresh", "to")


def run_real(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an op on real tensors and record it."""
    if engine.real_storages.any_tainted and _reads_tainted(engine, func, args):
        return engine.propagate(func, [_ghost_if_tainted(engine, value) for value in args], kwargs)
    tensors = [tensor for value in args for tensor in flat_tensors(value)]
    if any(tensor.is_meta for tensor in tensors):
        return _run_with_meta(engine, func, args, kwargs)
    if engine.other_ranks is not None and func.namespace in NAMESPACES and tensors[0].is_floating_point():
        return engine.propagate(func, args, kwargs)  # what another rank sends is not known, though this one's is
    kwargs = _on_cpu(kwargs)
    rule = REAL_RULES.get(id(func))
    output = rule(engine, func, args, kwargs) if rule is not None else NotImplemented
    if output is NotImplemented:
        if _exceeds_limits(engine, func, args, kwargs, tensors):
            engine.oracle.note(str(func), "too large to hold")
            return engine.propagate(func, args, kwargs)
        output = _run_kernel(func, args, kwargs)
    if engine.recorder is not None and func not in _MARKS:
        engine.recorder.observe(func, args, kwargs, output)
    return output


def _on_cpu(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    if "device" not in kwargs and "pin_memory" not in kwargs:
        return kwargs
    return {
        **kwargs,
        **({"device": _CPU} if "device" in kwargs else {}),
        **({"pin_memory": False} if "pin_memory" in kwargs else {}),
    }


def _run_kernel(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return func(*args, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        if "not implemented for" not in error_text(error) or is_mutating(func):
            raise
        return _run_wider(func, args, kwargs)


def _run_wider(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Code that believes it is on a GPU calls kernels the CPU lacks for a dtype (`histc` of integers)."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]

    def widen(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.float() if value.dtype in FLOAT_DTYPES else value.double()

    def narrow(value: Any) -> Any:
        is_wide = isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.float64)
        return value.to(tensors[0].dtype) if is_wide and tensors else value

    output = func(*map(widen, args), **{name: widen(value) for name, value in kwargs.items()})
    return tuple(map(narrow, output)) if isinstance(output, (list, tuple)) else narrow(output)


def _run_with_meta(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A plain meta tensor leaked in, from a model that was built on the meta device: take it for a ghost."""

    def adopt(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_meta:
            return new_ghost(spec_of_tensor(value))
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            return [adopt(item) for item in value]
        return value

    named = {name: adopt(value) for name, value in kwargs.items()}
    return engine.dispatch(func, (Ghost,), [adopt(value) for value in args], named)


def _exceeds_limits(
    engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> bool:
    sizes = [tensor.numel() for tensor in tensors]
    if sum(sizes) <= engine.limits.real_float and math.prod(n or 1 for n in sizes) <= _LARGE_MATMUL:
        return False
    if is_mutating(func) or is_view(func) or func in _RESULT_IS_SMALL or func in _MAY_VIEW:
        return False
    twins = meta_arguments(args, kwargs)
    try:
        outputs = flat_tensors(func(*twins.args, **twins.kwargs))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return False  # not propagable: only running it can tell
    limits = engine.limits
    return any(
        out.numel() > (limits.real_float if out.dtype in FLOAT_DTYPES else limits.real_integer) for out in outputs
    )


def _reads_tainted(engine: Dispatcher, func: Any, args: Sequence[Any]) -> bool:
    if is_mutating(func) or is_view(func) or func in _MAY_VIEW:
        return False  # the result keeps the storage, and the taint with it
    return any(_is_tainted(engine, tensor) for value in args for tensor in flat_tensors(value))


def _is_tainted(engine: Dispatcher, tensor: torch.Tensor) -> bool:
    return tensor.dtype in FLOAT_DTYPES and engine.real_storages.is_tainted(tensor)


def _ghost_if_tainted(engine: Dispatcher, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if _is_tainted(engine, value):
            return new_ghost(spec_of_tensor(value), engine.real_storages.token(value))
        return value
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return [_ghost_if_tainted(engine, item) for item in value]
    return value
