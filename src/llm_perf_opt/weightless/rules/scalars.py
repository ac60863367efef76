"""One value out of a ghost: `.item()`, `bool()`, and the reductions of a tensor that is known to be uniform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.weightless.dispatcher import Dispatcher
from llm_perf_opt.weightless.ghost import Ghost, known_counts
from llm_perf_opt.weightless.rules.registry import argument, value_rule
from llm_perf_opt.weightless.spec import FLOAT_DTYPES


@value_rule("_local_scalar_dense", "item")
def item(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    ghost = args[0]
    uniform = ghost.memory.uniform
    return uniform if uniform is not None else engine.oracle.item(ghost.spec)


@value_rule("is_nonzero")
def is_nonzero(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return bool(item(engine, func, args, kwargs))


@value_rule("equal")
def equal(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    engine.oracle.note("equal", "identity")
    return args[0] is args[1]


@value_rule("_assert_async", "_assert_tensor_metadata", "_assert_scalar")
def assertion(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Assertions on values hold: the model is assumed to be used as it should be."""
    return None


@value_rule(
    "sum.default", "mean.default", "max.default", "min.default", "any.default", "all.default", "count_nonzero.default"
)
def reduce_all(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Reductions to one element: exact when every element is known; a mixed mask has `any` but not `all`."""
    ghost = args[0]
    if type(ghost) is not Ghost or not ghost.spec.numel:
        return NotImplemented
    name, uniform, count = func._overloadpacket.__name__, ghost.memory.uniform, ghost.spec.numel
    if uniform is None:
        # Models drop a mask where `all()` holds and skip work unless `any()` does: unknown values take no shortcut.
        if name in ("any", "all") and ghost.dtype is torch.bool:
            engine.oracle.note(name, "mixed")
            return torch.tensor(name == "any")
        return NotImplemented
    if name in ("any", "all"):
        return torch.tensor(bool(uniform))
    if name == "count_nonzero":
        return torch.tensor(count if uniform else 0)
    dtype = kwargs.get("dtype") or (ghost.dtype if ghost.dtype in FLOAT_DTYPES or name != "sum" else torch.long)
    return torch.tensor(uniform * count if name == "sum" else uniform, dtype=dtype)


@value_rule("sum.dim_IntList")
def column_sums(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Rows of each expert, of a whole one-hot table that is too large to hold."""
    table, dims = args[0], list(argument(args, kwargs, 1, "dim", None) or ())
    counts = known_counts(table)
    if counts is None or table.ndim != 2 or dims not in ([0], [-2]) or argument(args, kwargs, 2, "keepdim", False):
        return NotImplemented
    return counts.to(kwargs.get("dtype") or torch.long, copy=True)  # a block of its own, as any sum has


@value_rule("bitwise_not.default", "logical_not.default")
def invert(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    output = engine.propagate_unrecorded(func, args, kwargs)
    uniform = args[0].memory.uniform
    if uniform is not None and output.dtype is torch.bool:
        output.memory.uniform = not uniform
    return output


@value_rule(
    "bitwise_or.Tensor",
    "logical_or.default",
    "__or__.Tensor",
    "bitwise_and.Tensor",
    "logical_and.default",
    "__and__.Tensor",
)
def combine(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The uniform verdict of two large masks, where one of them already decides it."""
    if not all(type(mask) is Ghost and mask.dtype is torch.bool for mask in args[:2]):
        return NotImplemented
    output = engine.propagate_unrecorded(func, args, kwargs)
    verdicts = [mask.memory.uniform for mask in args[:2]]
    decisive = "or" in func._overloadpacket.__name__
    if decisive in verdicts:
        output.memory.uniform = decisive
    elif verdicts == [not decisive, not decisive]:
        output.memory.uniform = not decisive
    return output
