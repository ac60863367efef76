"""What a training step needs above the dispatcher: optimizers that take ghosts, and attention kernels as on CUDA.

With autograd on, torch takes attention apart before the engine sees it, by the device that the C++ tensor has. A ghost
has the CPU there. So the choice is made here, for the device that model code sees, and the kernel is called by name: it
has a derivative of its own, and what it saves for that is what a GPU saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from llm_perf_opt.core.thread_patches import ThreadPatches
from llm_perf_opt.weightless.ghost import Ghost, adopt_module
from llm_perf_opt.weightless.rules.attention import AttentionKernel, attention_kernel

_FLASH_WIDTH = 8  # heads are padded to a multiple of it
_MASK_ALIGNMENT = 16  # rows of a mask begin at a multiple of as many values


@contextmanager
def training_patches(*, is_cuda: bool) -> Iterator[None]:
    """Optimizers step over lists of ghosts as over lists of plain tensors; attention runs as the device runs it."""
    with ThreadPatches() as patches:
        # For all threads: what is added is the type, and no real tensor has it.
        optimizers._foreach_supported_types.append(Ghost)
        patches.finally_(lambda: optimizers._foreach_supported_types.remove(Ghost))
        patches.wrap(torch.nn.parallel.DistributedDataParallel, "__init__", _reduced_in_buckets)
        if is_cuda:
            patches.wrap(torch.nn.functional, "scaled_dot_product_attention", _as_on_cuda)
        yield


def _reduced_in_buckets(plain: Callable[..., None]) -> Callable[..., None]:
    """Buckets are reduced from Python: torch's own hook takes its tensors out of the work of a real process group."""

    def init(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        plain(self, adopt_module(module), *args, **kwargs)
        self.register_comm_hook(None, _all_reduce)

    return init


def _all_reduce(state: None, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    torch.distributed.all_reduce(bucket.buffer())
    reduced: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    reduced.set_result(bucket.buffer())
    return reduced


_all_reduce.__annotations__.clear()  # torch reads them, and refuses names of types in place of types


def _as_on_cuda(plain: Callable[..., Any]) -> Callable[..., Any]:
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        given = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        operands = (query, key, value)
        kernel = attention_kernel(operands, given, is_cuda=True)
        if kernel is AttentionKernel.FLASH:
            return _flash(operands, dropout_p, is_causal, scale)
        if kernel is AttentionKernel.MEMORY_EFFICIENT and not _has_fewer_key_heads(query, key):
            return _memory_efficient(operands, attn_mask, dropout_p, is_causal, scale)
        if query.ndim == 4:
            mask = None if attn_mask is None else _as_numbers(attn_mask, query.dtype)
            names = {"scale": scale, "enable_gqa": enable_gqa}
            math_kernel = torch.ops.aten._scaled_dot_product_attention_math.default
            return math_kernel(*operands, mask, dropout_p, is_causal, **names)[0]  # type: ignore[no-any-return]
        return plain(*operands, dropout_p=dropout_p, **given)  # type: ignore[no-any-return]

    return attention


def _has_fewer_key_heads(query: torch.Tensor, key: torch.Tensor) -> bool:
    """The memory-efficient kernel takes as many key heads as query heads."""
    return query.shape[1] != key.shape[1]


def _flash(
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor], dropout_p: float, is_causal: bool, scale: float | None
) -> torch.Tensor:
    width = operands[0].shape[-1]
    missing = -width % _FLASH_WIDTH
    padded = [torch.nn.functional.pad(operand, (0, missing)) if missing else operand for operand in operands]
    kernel = torch.ops.aten._scaled_dot_product_flash_attention.default
    scale = 1 / math.sqrt(width) if scale is None else scale
    output: torch.Tensor = kernel(*padded, dropout_p, is_causal, False, scale=scale)[0]
    return output[..., :width] if missing else output


def _memory_efficient(
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    query, key, _ = operands
    if mask is not None:
        mask = _aligned(_as_numbers(mask, query.dtype))
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    keeps_sums = torch.is_grad_enabled() and any(operand.requires_grad for operand in operands)
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention.default
    output: torch.Tensor = kernel(*operands, mask, keeps_sums, dropout_p, is_causal, scale=scale)[0]
    return output


def _as_numbers(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask of booleans as what is added to the scores."""
    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), -math.inf)


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    missing = -mask.shape[-1] % _MASK_ALIGNMENT
    return torch.nn.functional.pad(mask, (0, missing))[..., : mask.shape[-1]] if missing else mask
