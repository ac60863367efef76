"""The key of an op: everything its output shapes can depend on, cheap enough to build for every dispatch.

A ghost contributes its interned spec, a real tensor its layout, a number its value. For element-wise ops the value of a
Python number cannot change a shape, so only its type counts: a loop that scales by a new number each step still hits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.weightless.ghost import Ghost

_Tensor = torch.Tensor
_PLAIN = frozenset({int, bool, type(None)})

Key = tuple[Any, ...]


def op_key(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> tuple[list[Any], list[torch.Tensor]]:
    """The key as a list, and every tensor argument in order. `id(func)`: hashing an OpOverload is a Python call."""
    key: list[Any] = [id(func)]
    tensors: list[torch.Tensor] = []
    for value in args:
        kind = type(value)
        if kind is Ghost:
            key.append(value.spec)
            tensors.append(value)
        elif kind in _PLAIN:
            key.append(value)
        else:
            _append(key, tensors, kind, value)
    if kwargs:
        for name, value in kwargs.items():
            key.append(name)
            _append(key, tensors, type(value), value)
    return key, tensors


def _append(key: list[Any], tensors: list[torch.Tensor], kind: type, value: Any) -> None:
    if kind is Ghost:
        key.append(value.spec)
        tensors.append(value)
    elif kind is list or kind is tuple:
        key.append(_sequence_key(tensors, value))
    elif isinstance(value, _Tensor):
        key.append((value.shape, value.stride(), value.dtype))
        tensors.append(value)
    else:
        key.append(value)
        key.append(kind)  # 1 and 1.0 are equal keys but not equal dtypes


def _sequence_key(tensors: list[torch.Tensor], values: Sequence[Any]) -> Key:
    if values and type(values[0]) is int:
        return tuple(values)
    key: list[Any] = []
    for value in values:
        _append(key, tensors, type(value), value)
    return tuple(key)


def shape_key(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> tuple[list[Any], list[torch.Tensor]]:
    """`op_key` of an element-wise op: numbers count by type alone."""
    key: list[Any] = [id(func)]
    tensors: list[torch.Tensor] = []
    for value in args:
        kind = type(value)
        if kind is Ghost:
            key.append(value.spec)
            tensors.append(value)
        elif kind is float or kind is int:
            key.append(kind)
        else:
            _append(key, tensors, kind, value)
    if kwargs:
        for name, value in kwargs.items():
            kind = type(value)
            key.append(name)
            if kind is float or kind is int:
                key.append(kind)
            else:
                _append(key, tensors, kind, value)
    return key, tensors
