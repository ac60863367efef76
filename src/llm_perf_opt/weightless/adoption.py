"""Ghosts for the weights of a module that was built elsewhere, on the meta device or with real tensors."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from llm_perf_opt.weightless.ghost import Ghost, new_ghost
from llm_perf_opt.weightless.spec import FLOAT_DTYPES, spec_of_tensor

T = TypeVar("T")


def adopt_module(module: T) -> T:
    """Replace float parameters and meta buffers by ghosts, in place; tied tensors stay tied.

    Real buffers keep their values. A meta *integer* buffer has lost its own: one that counts positions is rebuilt,
    any other becomes zeros, which is why building under the engine is better than building on meta.
    """
    adopted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # the original is kept, or its id could be reused
    for owner in module.modules():  # type: ignore[attr-defined]
        for table, is_parameter in ((owner._parameters, True), (owner._buffers, False)):
            for name, tensor in table.items():
                if tensor is None or type(tensor) is Ghost:
                    continue
                if id(tensor) not in adopted:
                    adopted[id(tensor)] = (tensor, _adopt(tensor, is_parameter))
                table[name] = adopted[id(tensor)][1]
    return module


def _adopt(tensor: torch.Tensor, is_parameter: bool) -> torch.Tensor:
    is_meta = tensor.is_meta
    replacement: Any = tensor
    if tensor.dtype in FLOAT_DTYPES:
        if is_meta or is_parameter:
            replacement = new_ghost(spec_of_tensor(tensor))
    elif is_meta:
        replacement = torch.zeros(tensor.shape, dtype=tensor.dtype)
        if tensor.dtype == torch.long and 1 <= tensor.ndim <= 2 and tensor.numel() > 1:
            replacement = torch.arange(tensor.shape[-1]).expand(tensor.shape)
    if replacement is tensor or not is_parameter:
        return replacement  # type: ignore[no-any-return]
    return torch.nn.Parameter(replacement, requires_grad=tensor.requires_grad and tensor.dtype in FLOAT_DTYPES)
