"""What a tracer of real runs says of a tensor: its meta, and a number for the memory behind it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from llm_perf_opt.callgraph import CallGraphBuilder, TensorMeta


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
