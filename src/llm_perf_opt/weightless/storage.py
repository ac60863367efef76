"""The identity and the lifetime of memory that does not exist.

Every ghost holds a `Storage`; views share it. When the last tensor that holds it dies, Python frees the token at the
very moment a real allocator would free the block, and `__del__` tells the recorder: lifetimes cost one small object
per allocation and need no bookkeeping of references.

Real tensors get a token too, held through a weak reference, so that nothing is attached to the caller's tensors.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import ClassVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from llm_perf_opt.core.interrupts import puts_back
from llm_perf_opt.weightless.spec import Spec

Uniform = bool | int | float | None

next_number: Callable[[], int] = itertools.count().__next__


class Storage:
    """A block of memory in name only.

    `uniform` is the value every element is known to have (a large `zeros` keeps its meaning without its memory), or
    `None`. How often each expert is chosen is known by `chosen` of a choice too large to hold, and by `counts` of its
    one-hot table, for a tensor with that spec.
    """

    __slots__ = ("__weakref__", "chosen", "counts", "number", "uniform")

    on_free: ClassVar[Callable[[int], None] | None] = None

    def __init__(self, uniform: Uniform = None) -> None:
        self.number = next_number()
        self.uniform = uniform
        self.chosen: torch.Tensor | None = None
        self.counts: tuple[Spec, torch.Tensor] | None = None

    @puts_back  # an interrupt here would be dropped by Python, and with it the note that the block is free
    def __del__(self) -> None:
        listener = Storage.on_free
        if listener is not None:
            listener(self.number)


class RealStorages:
    """Tokens for real tensors: one per storage, alive as long as any tensor object seen on that storage."""

    def __init__(self) -> None:
        self._by_tensor: dict[int, tuple[weakref.ref[torch.Tensor], Storage]] = {}
        self._by_address: dict[int, weakref.ref[Storage]] = {}
        self._tainted: dict[int, StorageWeakRef] = {}

    def token(self, tensor: torch.Tensor) -> Storage:
        """The token of the memory behind `tensor`."""
        key = id(tensor)
        remembered = self._by_tensor.get(key)
        if remembered is not None and remembered[0]() is tensor:
            return remembered[1]
        # A live token means a live tensor on that storage, so its address cannot have been reused.
        address = tensor.untyped_storage()._cdata
        known = self._by_address.get(address)
        token = known() if known is not None else None
        if token is None:
            token = Storage()
            self._by_address[address] = weakref.ref(token)
        by_tensor = self._by_tensor
        # The callback owns nothing but the key: dropping the entry drops the token's reference.
        by_tensor[key] = (weakref.ref(tensor, lambda _, key=key: by_tensor.pop(key, None)), token)  # type: ignore[misc]
        return token

    def taint(self, tensor: torch.Tensor) -> None:
        """Mark the memory of a real float tensor as stale: it received ghost values."""
        storage = tensor.untyped_storage()
        self._tainted[storage._cdata] = StorageWeakRef(storage)

    def is_tainted(self, tensor: torch.Tensor) -> bool:
        """Whether what the tensor holds is stale. The weak reference keeps the address from being reused."""
        reference = self._tainted.get(tensor.untyped_storage()._cdata)
        return reference is not None and not reference.expired()

    @property
    def any_tainted(self) -> bool:
        """Whether any memory was ever marked as stale."""
        return bool(self._tainted)

    def forget_tensors(self) -> None:
        """Let go of every token, so that nothing outlives a recording; stale memory stays marked."""
        self._by_tensor.clear()
        self._by_address.clear()
