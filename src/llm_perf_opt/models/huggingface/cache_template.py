"""What a prefill leaves behind for the next step, kept without its tensors, so that a decode phase stands alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch


class ZerosLike:
    """Where a tensor was: rebuilt as zeros of the same shape and dtype."""

    __slots__ = ("dtype", "shape")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype

    def make(self) -> torch.Tensor:
        """The tensor, on the device of the moment."""
        return torch.zeros(self.shape, dtype=self.dtype)


def without_tensors(value: Any) -> Any:
    """A copy of a cache (tuples, lists, dicts, objects) in which every tensor is a `ZerosLike`."""
    return _copied(value, {}, lambda leaf: ZerosLike(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def with_zeros(template: Any) -> Any:
    """A fresh cache from the template; each call makes its own, since a decode step writes into it."""
    return _copied(template, {}, lambda leaf: leaf.make() if isinstance(leaf, ZerosLike) else leaf)


def _copied(value: Any, seen: dict[int, Any], leaf: Callable[[Any], Any]) -> Any:
    if id(value) in seen:
        return seen[id(value)]
    match value:
        case torch.Tensor() | ZerosLike():
            made = leaf(value)
        case dict():
            made = copy.copy(value)
            seen[id(value)] = made
            made.update({key: _copied(item, seen, leaf) for key, item in value.items()})
            _copy_attributes(value, made, seen, leaf)
        case list():
            made = [_copied(item, seen, leaf) for item in value]
        case tuple():
            items = [_copied(item, seen, leaf) for item in value]
            made = type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        case _ if _is_plain_object(value):
            made = copy.copy(value)
            seen[id(value)] = made
            _copy_attributes(value, made, seen, leaf)
        case _:
            made = value
    seen[id(value)] = made
    return made


def _copy_attributes(value: Any, made: Any, seen: dict[int, Any], leaf: Callable[[Any], Any]) -> None:
    for name, item in vars(value).items() if hasattr(value, "__dict__") else ():
        object.__setattr__(made, name, _copied(item, seen, leaf))


def _is_plain_object(value: Any) -> bool:
    """A cache or one of its layers: an instance with attributes, and neither a class, a module nor a configuration."""
    is_shared = isinstance(value, type | torch.nn.Module) or callable(value) or hasattr(value, "to_dict")
    return hasattr(value, "__dict__") and not is_shared
