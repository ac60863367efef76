"""Which expert got how many rows in a real run: the counts that `ReplayRouting` gives back to a weightless one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
ONE_OF = (aten.argmax.default, aten.argmin.default, aten.max.dim)


class RoutingRecorder(TorchDispatchMode):
    """While active, every choice the engine would leave to its routing policy leaves one list of counts, in order.

    Those are `topk`, and `argmax`, `argmin` or `max` of floats along a dimension: a router that takes one expert.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: list[list[int]] = []

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        if func is aten.topk.default:
            self._count(value[1], args[0].shape[args[2] if len(args) > 2 else -1])
        elif func in ONE_OF and args[0].is_floating_point() and len(args) > 1:
            self._count(value[1] if func is aten.max.dim else value, args[0].shape[args[1]])
        return value

    def _count(self, chosen: torch.Tensor, candidates: int) -> None:
        self.counts.append(torch.bincount(chosen.flatten(), minlength=candidates).tolist())
