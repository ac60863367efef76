"""Tensors inside whatever a module takes or returns: arguments, lists, dictionaries, dataclasses, caches."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

import torch

T = TypeVar("T")
_LEAVES = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device)
_DEPTH = 12  # a cache of two caches, each an object with a list of layers with two tensors; no argument is deeper


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in `value`, in the order of appearance; a tensor that appears twice is listed twice."""
    found: list[torch.Tensor] = []
    _collect(value, found, _DEPTH)
    return found


def distinct_tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in `value` once, in the order of appearance."""
    return list({id(tensor): tensor for tensor in tensors_in(value)}.values())


def with_tensors(arguments: T, others: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> T:
    """A copy of `arguments` with the second tensor of each pair in the places of the first; a cache in it is new."""
    return copy.deepcopy(arguments, {id(tensor): other for tensor, other in others})


def _collect(value: Any, found: list[torch.Tensor], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, _LEAVES) or depth == 0:
        return
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _collect(getattr(value, field.name), found, depth - 1)
    elif is_cache(value):
        _collect(vars(value), found, depth - 1)


def is_cache(value: Any) -> bool:
    """Caches are ordinary objects of many libraries; what they share is their name, or that of the base class."""
    return hasattr(value, "__dict__") and any("Cache" in base.__name__ for base in type(value).__mro__)
