"""Shape propagation on a cache miss: run the op once on meta tensors and write down how to do it again.

Meta kernels in torch 2.13 are largely Python decompositions that take 0.1 to 4 ms; a hit in the cache above them takes
a few microseconds. That is the whole speed of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from llm_perf_opt.weightless.ghost import Ghost, new_ghost
from llm_perf_opt.weightless.oracle import Limits, Oracle
from llm_perf_opt.weightless.recipes import (
    Answered,
    ArgumentPath,
    Constant,
    Fresh,
    GhostView,
    RealView,
    Recipe,
    SameAs,
    Several,
    UniformMask,
)
from llm_perf_opt.weightless.spec import spec_of, spec_of_tensor

_META = torch.device("meta")


@dataclass(slots=True)
class MetaArguments:
    """The arguments of an op as meta tensors, and the way back from each meta tensor to its argument.

    Storages are told apart by address, so every meta tensor is kept alive until the outputs have been described.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    path_of: dict[int, ArgumentPath] = field(default_factory=dict)  # id(meta tensor) -> argument
    ghost_at: dict[int, ArgumentPath] = field(default_factory=dict)  # storage address -> ghost argument
    real_at: dict[int, ArgumentPath] = field(default_factory=dict)  # storage address -> real argument
    has_float_ghost: bool = False
    _twins: dict[int, torch.Tensor] = field(default_factory=dict)

    def convert(self, value: Any, path: ArgumentPath) -> Any:
        """`value` with every tensor replaced; a tensor passed twice stays one tensor."""
        if isinstance(value, torch.Tensor):
            twin = self._twins.get(id(value))
            return twin if twin is not None else self._twin(value, path)
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            return [self.convert(item, (*path, index)) for index, item in enumerate(value)]
        return value

    def _twin(self, value: torch.Tensor, path: ArgumentPath) -> torch.Tensor:
        twin = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)
        address = twin.untyped_storage()._cdata
        if type(value) is Ghost:
            self.ghost_at[address] = path
            self.has_float_ghost |= value.spec.is_float
        else:
            self.real_at[address] = path
        self._twins[id(value)] = twin
        self.path_of[id(twin)] = path
        return twin


def meta_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MetaArguments:
    """Meta twins of all tensor arguments; a `device` argument becomes meta."""
    twins = MetaArguments(args=[], kwargs={})
    twins.args = [twins.convert(value, (index,)) for index, value in enumerate(args)]
    twins.kwargs = {name: twins.convert(value, (name,)) for name, value in kwargs.items()}
    if twins.kwargs.get("device") is not None:
        twins.kwargs["device"] = _META
    return twins


def describe(func: Any, output: Any, twins: MetaArguments, limits: Limits) -> Recipe:
    """The recipe for an output that `func` gave on meta twins."""
    if isinstance(output, torch.Tensor):
        return _describe_tensor(func, output, twins, limits)
    if isinstance(output, (list, tuple)):
        parts = tuple(describe(func, item, twins, limits) for item in output)
        kind = type(output)
        return Several(parts, list if kind is list else tuple if kind is tuple else kind)
    return Constant(output)


def _describe_tensor(func: Any, output: torch.Tensor, twins: MetaArguments, limits: Limits) -> Recipe:
    same = twins.path_of.get(id(output))
    if same is not None:
        return SameAs(same)
    if output.layout is not torch.strided:
        raise NotImplementedError(f"{func} returns a tensor of layout {output.layout}")
    address = output.untyped_storage()._cdata
    real = twins.real_at.get(address)
    if real is not None:
        return RealView(real, tuple(output.shape), output.stride(), int(output.storage_offset()))
    spec = spec_of_tensor(output)
    base = twins.ghost_at.get(address)
    if base is not None:
        return GhostView(spec, base)
    if not spec.is_float and twins.has_float_ghost and spec.numel <= limits.real_integer and func not in KEEPS_GHOST:
        if spec.numel > limits.eager_mask:
            return UniformMask(spec, Oracle.uniform_verdict(func) if spec.dtype is torch.bool else None)
        return Answered(spec, func)
    return Fresh(spec)


def relabel(ghost: Ghost, twin: torch.Tensor) -> None:
    """Give a ghost the layout its meta twin has after an op that changes metadata in place (`t_`, `resize_`)."""
    ghost.data = new_ghost(spec_of(twin.shape, twin.stride(), twin.dtype), ghost.memory)


def overloads(*names: str) -> set[Any]:
    """Every non-out overload of the named aten ops; `"max.dim"` names a single one."""
    chosen_overloads: set[Any] = set()
    for name in names:
        packet_name, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, packet_name, None)
        if packet is None:
            continue
        chosen = [overload] if overload else [n for n in packet.overloads() if not n.endswith("out")]
        chosen_overloads.update(getattr(packet, n) for n in chosen if hasattr(packet, n))
    return chosen_overloads


# Integer outputs that only the op's own backward or unpooling reads: no need to invent values.
KEEPS_GHOST = overloads(
    "max_pool1d_with_indices",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "fractional_max_pool2d",
    "native_dropout",
    "_scaled_dot_product_flash_attention",  # its random state
    "_scaled_dot_product_efficient_attention",
)
CHANGES_LAYOUT = overloads(
    "t_",
    "squeeze_",
    "unsqueeze_",
    "transpose_",
    "resize_",
    "resize_as_",
    "as_strided_",
    "swapaxes_",
    "swapdims_",
    "set_",
)
