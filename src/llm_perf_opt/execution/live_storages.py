"""How many bytes of tensors a real run holds at once: the witness for the lifetimes in a weightless trace.

Weak references tell when a block of memory is gone, so nothing is kept alive by being watched. What is seen is what the
dispatcher sees: tensors that Python or a composite op holds. A kernel's own workspace is not among them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from llm_perf_opt.execution.nested_tensors import tensors_in


class LiveStorages(TorchDispatchMode):
    """While open, follows every block of memory that an op creates; weights and inputs existed before and do not count.

    `given` is what a phase was prepared with: it is followed too, from the beginning until it is gone. `live_bytes` has
    one entry per dispatched op: the bytes alive when its kernel returned, arguments and results both.
    """

    def __init__(self, given: object = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = array("q")
        self.op_names: list[str] = []
        self._counted: dict[int, tuple[StorageWeakRef, int]] = {}  # address -> who, bytes
        self._foreign: dict[int, StorageWeakRef] = {}  # the weak reference keeps the address from being used again
        for storage in (tensor.untyped_storage() for tensor in tensors_in(given)):
            self._counted[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were alive at once; 0 before any op ran."""
        return max(self.live_bytes, default=0)

    @property
    def peak_op(self) -> str | None:
        """The op that first reached the peak; None before any op ran."""
        return self.op_names[self.live_bytes.index(self.peak_bytes)] if self.live_bytes else None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for storage in _storages((args, dict(kwargs))):
            if storage._cdata not in self._counted:
                self._foreign.setdefault(storage._cdata, StorageWeakRef(storage))
        output = func(*args, **kwargs)
        for storage in _storages(output):
            if storage._cdata not in self._foreign:
                self._counted[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._forget_the_dead()
        self.live_bytes.append(sum(size_bytes for _, size_bytes in self._counted.values()))
        self.op_names.append(str(func))
        return output

    def _forget_the_dead(self) -> None:
        for address in [address for address, (reference, _) in self._counted.items() if reference.expired()]:
            del self._counted[address]


def _storages(value: Any) -> Iterator[torch.UntypedStorage]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            yield leaf.untyped_storage()
