"""Every collective that torch dispatches in a real run, with its bytes, its ranks and the module that asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FAMILIES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
NOT_TRAFFIC = ("wait_tensor", "_wrap_tensor_autograd", "barrier")
ROUTED = torch.ops.aten.topk.default


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCollective:
    """One collective as torch dispatched it. `payload_bytes` is the largest tensor among its arguments and results."""

    op: str
    payload_bytes: int
    ranks: tuple[int, ...]
    module: str


def bytes_held(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes on this rank; a tensor that two names share counts once."""
    local = {id(tensor): getattr(tensor, "_local_tensor", tensor) for tensor in tensors}
    return sum(map(_size, local.values()))


@contextmanager
def running_modules(model: torch.nn.Module) -> Iterator[list[str]]:
    """The modules that are running, outermost first. FSDP's own hooks run inside the module they serve."""
    names = {module: name for name, module in model.named_modules()}
    stack: list[str] = []

    def enter(module: torch.nn.Module, arguments: Any) -> None:
        stack.append(names.get(module, "?"))

    def leave(module: torch.nn.Module, arguments: Any, output: Any) -> None:
        stack.pop()

    hooks = torch.nn.modules.module
    entered = hooks.register_module_forward_pre_hook(enter)
    left = hooks.register_module_forward_hook(leave, always_call=True)
    try:
        yield stack
    finally:
        entered.remove()
        left.remove()


class Watch(TorchDispatchMode):
    """Writes down every collective, and every choice of experts, that torch dispatches."""

    def __init__(self, stack: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.collectives: list[SeenCollective] = []
        self.choices: list[torch.Tensor] = []
        self._stack = stack

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        from torch.distributed.tensor import DTensor

        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes back with local tensors
        result = func(*args, **(kwargs or {}))
        family, _, rest = str(func).partition(".")
        if family in FAMILIES and rest.split(".")[0] not in NOT_TRAFFIC:
            everything = tree_leaves((args, kwargs, result))
            self.collectives.append(
                SeenCollective(
                    op=str(func),
                    payload_bytes=max(_size(leaf) for leaf in everything if isinstance(leaf, torch.Tensor)),
                    ranks=_group_ranks(everything),
                    module=self._stack[-1] if self._stack else "",
                )
            )
        elif func is ROUTED:
            self.choices.append(result[1])
        return result


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _group_ranks(leaves: Sequence[Any]) -> tuple[int, ...]:
    from torch.distributed import ProcessGroup, get_process_group_ranks
    from torch.distributed.distributed_c10d import _resolve_process_group

    for leaf in leaves:
        if isinstance(leaf, torch.ScriptObject) and "ProcessGroup" in str(leaf._type()):
            return tuple(get_process_group_ranks(ProcessGroup.unbox(leaf)))
    (name,) = [leaf for leaf in leaves if isinstance(leaf, str) and leaf not in ("sum", "avg", "max", "min")]
    return tuple(get_process_group_ranks(_resolve_process_group(name)))
