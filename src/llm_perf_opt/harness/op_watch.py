"""Seeing every op that reaches the engine, and how many bytes of tensors a real run holds at once.

Weak references tell when a block of memory is gone, so nothing is kept alive by being watched. What is seen is what the
dispatcher sees: tensors that Python or a composite op holds. A kernel's own workspace is not among them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from llm_perf_opt.harness.twins import tensors_in


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


OnOp = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]  # op, arguments, keyword arguments, output
Signature = tuple[str, tuple[Any, ...]]


class OpWatch(TorchDispatchMode):
    """Tells of each op after it ran. A mode entered later, such as a FLOP counter, comes first and may split ops up."""

    supports_higher_order_operators = True

    def __init__(self, on_op: OnOp) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_op = on_op

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would load torch's compiler, which takes longer than most runs

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the op, then tell."""
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One op; a watch of another kind changes this alone."""
        output = func(*args, **kwargs)
        self.on_op(func, args, kwargs, output)
        return output


def signature(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> Signature:
    """The op and the shapes it ran on: what its cost depends on."""
    tensors = (*tensors_in(list(args)), *tensors_in(dict(kwargs)), *tensors_in(output))
    return str(func), tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
