"""Bytes that one dispatched op reads and writes, from the tensors that it was given and that it returned.

Nothing here comes from the price list of the trace: what is a view is told by the memory behind the tensors, what is
written by torch's own schema, and which experts of a stack were read by the values of the offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from llm_perf_opt.core.source_figures import Family, family_of, operator_name
from llm_perf_opt.harness.tensors import tensors_in
from llm_perf_opt.weightless import Ghost

# Memory without content: nothing is written before somebody does.
_ALLOCATES = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize")
_ASKS = ("local_scalar_dense", "item", "is_nonzero", "assert_async", "assert_tensor_metadata")  # one value for the host
_RELABELS = ("detach", "requires_grad", "set_data")  # in place by its schema, and touches no data
# What they are given first is overwritten, or lends its shape, and is not read.
_OVERWRITES = ("copy", "fill", "zero", "normal", "uniform", "random", "exponential", "bernoulli")
_BORROWS_SHAPE = (
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones", "new_full",
)  # fmt: skip
_PICKS = ("embedding", "index", "index_select", "gather", "take", "take_along_dim", "masked_select", "unsafe_index")
_PUTS = ("index_put", "index_copy", "index_fill", "scatter", "masked_scatter", "put", "unsafe_index_put")
_ADDS_UP = ("index_add", "scatter_add", "scatter_reduce", "index_reduce")


def moved_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> int:
    """Inputs read plus outputs written; a view moves nothing, and an expanded tensor counts as if it were stored."""
    name = operator_name(str(func))
    inputs, outputs = [*tensors_in(list(args)), *tensors_in(dict(kwargs))], tensors_in(output)
    is_in_place = _is_mutating(func)
    if name in (*_ALLOCATES, *_ASKS, *_RELABELS) or _changes_view_only(func):
        return 0
    if not (is_in_place or _has_fresh(inputs, outputs)):
        return 0
    if name in _PICKS:
        return _sum(inputs[1:]) + 2 * _sum(outputs[:1])  # only the rows that are named, which are what is returned
    if name in (*_PUTS, *_ADDS_UP):
        adds_up = name in _ADDS_UP or _accumulates(func, args, kwargs)
        return _put_bytes(inputs, adds_up=adds_up, is_in_place=is_in_place)
    if family_of(str(func)) is Family.GROUPED and (used := _share_used(inputs)) is not None:
        return _sum(inputs) - _sum(stack for stack in inputs if stack.ndim == 3) + used + _sum(outputs)
    skipped = 1 if name in _BORROWS_SHAPE or (is_in_place and name in _OVERWRITES) else 0
    return _sum(inputs[skipped:]) + _sum(outputs or inputs[:1] if is_in_place else outputs)


def _accumulates(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """The argument of that name, wherever the schema has it."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    return bool(given.get("accumulate", False))


def _put_bytes(inputs: Sequence[torch.Tensor], *, adds_up: bool, is_in_place: bool) -> int:
    """Indices and values are read and as many values written; a copy of the target comes first if not in place."""
    target, *others = inputs
    values = others[-1]
    written = values.numel() * target.element_size()
    whole = 0 if is_in_place else 2 * _sum([target])
    return _sum(others) + written + whole + (written if adds_up else 0)


def _share_used(inputs: Sequence[torch.Tensor]) -> int | None:
    """Bytes of the matrices in a stack that get rows; None where the offsets between the groups have no values."""
    stacks = [tensor for tensor in inputs if tensor.ndim == 3]
    offsets = [tensor for tensor in inputs if tensor.ndim == 1 and not tensor.is_floating_point()]
    if len(stacks) != 1 or len(offsets) != 1 or type(offsets[0]) is Ghost:
        return None
    ends = plain_values(offsets[0])
    used = sum(end > start for start, end in zip([0, *ends], ends, strict=False))
    (stack,) = stacks
    return used * stack[0].numel() * stack.element_size() if used else 0


def plain_values(tensor: torch.Tensor) -> list[int]:
    """The values of a small real tensor, read without any mode noticing."""
    with _disable_current_modes():
        return [int(value) for value in tensor.tolist()]


def _is_mutating(func: Any) -> bool:
    schema = getattr(func, "_schema", None)  # a higher-order op has none
    return bool(schema is not None and schema.is_mutable)


def _changes_view_only(func: Any) -> bool:
    """`squeeze_`, `transpose_`: torch's own tag for in-place ops on the shape alone."""
    return torch.Tag.inplace_view in getattr(func, "tags", ())


def _has_fresh(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether some result has memory of its own."""
    given = set(map(_memory, inputs))
    return any(_memory(tensor) not in given for tensor in outputs)


def _memory(tensor: torch.Tensor) -> object:
    return tensor.memory if type(tensor) is Ghost else tensor.untyped_storage()._cdata


def _sum(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
