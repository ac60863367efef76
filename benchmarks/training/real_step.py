"""A real training step on this processor: FLOPs by torch's own counter, ops, and the bytes of every tensor alive.

Nothing here uses the package that it judges. What is counted is what torch's dispatcher sees.
"""

from __future__ import annotations

import gc
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode


@dataclass(slots=True)
class Witness:
    """What was seen of one step."""

    flops: int = 0
    flops_by_op: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    ops: Counter[str] = field(default_factory=Counter)
    live_bytes: array[int] = field(default_factory=lambda: array("q"))


class EveryTensor(TorchDispatchMode):
    """Follows the memory of every tensor, those that are there from the beginning too, by weak references."""

    def __init__(self, there_already: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.live_bytes = array("q")
        self._alive: dict[int, StorageWeakRef] = {}
        self._meet(_storages(list(there_already)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes back on the tensors that this rank holds
        output = func(*args, **(kwargs or {}))
        self._meet(_storages((args, kwargs or {}, output)))
        self.live_bytes.append(self._look())
        self.ops[str(func)] += 1
        return output

    def _meet(self, storages: Iterable[torch.UntypedStorage]) -> None:
        for storage in storages:
            self._alive.setdefault(storage._cdata, StorageWeakRef(storage))

    def _look(self) -> int:
        """Sizes are read anew: FSDP takes the memory of a tensor away and gives it back."""
        total = 0
        for address, reference in list(self._alive.items()):
            if reference.expired():
                del self._alive[address]
                continue
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            total += storage.nbytes()
        return total


def _storages(value: Any) -> Iterator[torch.UntypedStorage]:
    tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
    return (getattr(leaf, "_local_tensor", leaf).untyped_storage() for leaf in tensors)


def tensors_of(model: torch.nn.Module, optimizer: Any, inputs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """What is there when a step begins."""
    yield from model.parameters()
    yield from model.buffers()
    yield from (leaf for leaf in tree_leaves(dict(inputs)) if isinstance(leaf, torch.Tensor))
    for state in optimizer.state.values() if optimizer is not None else ():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def witness(step: Callable[[], None], there_already: Callable[[], Iterable[torch.Tensor]]) -> Witness:
    """Run a step twice, once under each counter: torch's counter of FLOPs takes some ops apart before they run."""
    counter = FlopCounterMode(display=False)
    with counter:
        step()
    gc.collect()
    tensors = EveryTensor(there_already())
    with tensors:
        step()
    return Witness(
        flops=counter.get_total_flops(),
        flops_by_op={str(op): count for op, count in counter.get_flop_counts()["Global"].items()},
        peak_bytes=max(tensors.live_bytes, default=0),
        ops=tensors.ops,
        live_bytes=tensors.live_bytes,
    )
