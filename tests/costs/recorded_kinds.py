"""Op kinds from real torch runs: composite ops whole, or the primitive ops that autograd would see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta


def recorded_kinds(run: Callable[[], object], *, composites: bool = True) -> list[OpKind]:
    """Every op that `run` dispatches, in order, as the tracer would record it."""
    # Below autograd torch hands a composite op over whole; above, it arrives as its parts.
    below = torch._C._AutoDispatchBelowADInplaceOrView() if composites else nullcontext()
    with torch.no_grad(), below, _Recorder() as recorder:
        run()
    return recorder.kinds


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[OpKind] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        storages = [tensor.untyped_storage()._cdata for _, tensor in _tensors(_bound(func, args, kwargs))]
        result = func(*args, **kwargs)
        self.kinds.append(kind_of(func, args, kwargs, result, storages))
        return result


def kind_of(func: Any, args: Any, kwargs: Any, result: Any, storages: list[int]) -> OpKind:
    bound = _bound(func, args, kwargs)
    inputs = list(_tensors(bound))
    outputs = [tensor for _, tensor in _tensors([("", result)])]
    return OpKind(
        name=str(func),
        inputs=tuple(meta_of(tensor) for _, tensor in inputs),
        outputs=tuple(meta_of(tensor) for tensor in outputs),
        arguments={name: _json(value) for name, value in bound if not list(_tensors([(name, value)]))},
        input_names=tuple(name for name, _ in inputs),
        output_aliases=tuple(_position(tensor, storages) for tensor in outputs),
        mutates=any(argument.alias_info and argument.alias_info.is_write for argument in func._schema.arguments),
    )


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), str(tensor.device))


def _bound(func: Any, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    names = [argument.name for argument in func._schema.arguments]
    return [*zip(names, args, strict=False), *kwargs.items()]


def _tensors(bound: list[tuple[str, Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in bound:
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from _tensors([(name, item) for item in value])


def _position(tensor: torch.Tensor, storages: list[int]) -> int:
    storage = tensor.untyped_storage()._cdata
    return storages.index(storage) if storage in storages else -1


def _json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
