"""Tensors inside whatever a module takes or returns, and what a tracer of real runs says of one."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from llm_perf_opt.core.callgraph import CallGraphBuilder, TensorMeta


class RealTensors:
    """Numbers every storage once, so that data flow can be followed from one module to the next.

    The weak reference keeps the address of a freed storage from being given to another one, and nothing else alive.
    """

    def __init__(self, builder: CallGraphBuilder) -> None:
        self._builder = builder
        self._metas: dict[Any, TensorMeta] = {}
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._next_token = itertools.count().__next__

    def pairs(self, tensors: Sequence[torch.Tensor]) -> list[tuple[TensorMeta, int]]:
        """Metas with storage tokens, as the builder takes them."""
        return [(self.meta(tensor), self.token(tensor)) for tensor in tensors]

    def described(self, tensor: torch.Tensor) -> tuple[TensorMeta, int, int]:
        """A weight or buffer: meta, storage token, bytes."""
        return self.meta(tensor), self.token(tensor), tensor.untyped_storage().nbytes()

    def meta(self, tensor: torch.Tensor) -> TensorMeta:
        """The one meta of this shape, dtype and device."""
        key = (tensor.shape, tensor.dtype, tensor.device)
        meta = self._metas.get(key)
        if meta is None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            meta = self._metas[key] = self._builder.meta(tuple(tensor.shape), dtype, tensor.device.type)
        return meta

    def token(self, tensor: torch.Tensor) -> int:
        """The number of the memory behind a tensor; views share it."""
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is not None and not known[0].expired():
            return known[1]
        token = self._next_token()
        self._storages[storage._cdata] = (StorageWeakRef(storage), token)
        return token


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
