"""Attention and grouped matmuls, kept as the one op they are on the device that is modelled.

Left to torch, a CPU tensor's attention would decompose into a score matrix that no fused kernel stores, and the meta
kernel of `_grouped_mm` would refuse every dtype but bfloat16.

Likewise layers that are one op: recurrent ones, and the channel check that torch omits for transposed convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from llm_perf_opt.weightless.dispatcher import Dispatcher
from llm_perf_opt.weightless.fallbacks import Done
from llm_perf_opt.weightless.ghost import Ghost, new_ghost
from llm_perf_opt.weightless.recipes import Constant, Fresh, Several
from llm_perf_opt.weightless.rules.registry import argument, shape_rule, value_rule
from llm_perf_opt.weightless.spec import contiguous_spec, preserved_layout, spec_of, spec_of_tensor

_MEMORY_EFFICIENT, _MATH = 2, 0
_HALVES = (torch.float16, torch.bfloat16)


@shape_rule("_fused_sdp_choice")
def fused_choice(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """For code that asks which kernel would run: the memory-efficient one, unless dropout rules it out."""
    return Constant(_MATH if kwargs.get("dropout_p") else _MEMORY_EFFICIENT)


@shape_rule("scaled_dot_product_attention")
def scaled_dot_product_attention(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    query, key, value = args[:3]
    if query.ndim < 3:
        return NotImplemented
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (query, key, value))
        raise RuntimeError(f"scaled_dot_product_attention: shapes do not match: {shapes}")
    lead = tuple(query.shape[:-2])
    if not kwargs.get("enable_gqa", False):
        lead = tuple(torch.broadcast_shapes(lead, key.shape[:-2], value.shape[:-2]))
    mask = argument(args, kwargs, 3, "attn_mask", None)
    if mask is not None:
        torch.broadcast_shapes(mask.shape, (*lead, query.shape[-2], key.shape[-2]))
    shape = (*lead, query.shape[-2], value.shape[-1])
    kernel = attention_kernel(args, kwargs, is_cuda=engine.disguise.is_cuda)
    if kernel is AttentionKernel.FLASH and shape == tuple(query.shape):
        return Fresh(preserved_layout(spec_of_tensor(query), query.dtype))
    if kernel is AttentionKernel.MEMORY_EFFICIENT:
        # It writes [batch, tokens, heads, dim] and returns its transpose.
        _, heads, tokens, dim = shape
        return Fresh(spec_of(shape, (heads * tokens * dim, dim, heads * dim, 1), query.dtype))
    return Fresh(contiguous_spec(shape, query.dtype))


class AttentionKernel(Enum):
    """The kernels that torch has for fused attention; MATH writes the scores to memory."""

    FLASH = auto()
    MEMORY_EFFICIENT = auto()
    MATH = auto()


def attention_kernel(args: Sequence[Any], kwargs: Mapping[str, Any], *, is_cuda: bool) -> AttentionKernel:
    """Which kernel torch picks on the device that is modelled.

    All fused ones need four dimensions. The flash kernel needs heads of one size; on CUDA it also needs 16-bit floats
    and no mask, and the memory-efficient one takes what is left.
    """
    query, value = args[0], args[2]
    if query.ndim != 4 or argument(args, kwargs, 4, "dropout_p", 0.0):
        return AttentionKernel.MATH
    is_one_size = query.shape[-1] == value.shape[-1]
    if not is_cuda:
        return AttentionKernel.FLASH if is_one_size else AttentionKernel.MATH
    is_flash = is_one_size and query.dtype in _HALVES and argument(args, kwargs, 3, "attn_mask", None) is None
    return AttentionKernel.FLASH if is_flash else AttentionKernel.MEMORY_EFFICIENT


@value_rule("_grouped_mm")
def grouped_mm(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """[tokens, k] x [experts, k, n] -> [tokens, n]: each token meets the matrix of its own expert.

    [k, tokens] x [tokens, n] -> [experts, k, n] is the gradient of the weights: each expert sums over its own tokens.
    Which experts have tokens is in the offsets, which are integers and hence real; how many have any is recorded.
    """
    left, right, offsets = args[0], args[1], argument(args, kwargs, 2, "offs", None)
    if left.ndim != 2 or right.ndim not in (2, 3) or offsets is None:
        return NotImplemented
    groups = (offsets.shape[0],) if right.ndim == 2 else ()
    shape = (*groups, left.shape[0], right.shape[-1])
    output = new_ghost(contiguous_spec(shape, kwargs.get("out_dtype") or left.dtype))
    if engine.recorder is not None:
        engine.recorder.observe(func, args, kwargs, output, facts=_groups_used(offsets))
    return Done(output)


def _groups_used(offsets: Any) -> dict[str, int]:
    """How many groups have rows: offsets are where each group ends. Nothing where they have no values."""
    if not isinstance(offsets, torch.Tensor) or type(offsets) is Ghost:
        return {}
    with _disable_current_modes():
        return {"groups_used": int((offsets.diff(prepend=offsets.new_zeros(1)) > 0).sum())}


@shape_rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(engine: Dispatcher, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    source, grid = args[0], args[1]
    if source.shape[0] != grid.shape[0]:
        raise RuntimeError(f"grid_sampler: {source.shape[0]} images and {grid.shape[0]} grids do not match")
    dtype = source.dtype if isinstance(source, Ghost) else grid.dtype
    return Fresh(contiguous_spec((*source.shape[:2], *grid.shape[1:-1]), dtype))


@shape_rule("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def recurrent(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Output [tokens, batch, directions * hidden], and the last states; `batch_first` swaps the first two."""
    sequence, states, _, _, _, _, _, bidirectional, batch_first = args
    is_lstm = func._overloadpacket.__name__ == "lstm"
    hidden = states[0] if is_lstm else states
    tokens, batch = sequence.shape[:2][:: -1 if batch_first else 1]
    width = hidden.shape[-1] * (2 if bidirectional else 1)
    if is_lstm and _is_projected(states):
        width = states[0].shape[-1] * (2 if bidirectional else 1)
    shape = (batch, tokens, width) if batch_first else (tokens, batch, width)
    outputs = [Fresh(contiguous_spec(shape, sequence.dtype)), Fresh(contiguous_spec(hidden.shape, sequence.dtype))]
    if is_lstm:
        outputs.append(Fresh(contiguous_spec(states[1].shape, sequence.dtype)))
    return Several(tuple(outputs), tuple)


def _is_projected(states: Sequence[Any]) -> bool:
    return bool(states[0].shape[-1] != states[1].shape[-1])


@shape_rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Refuse what every real kernel refuses; the shapes themselves are left to torch."""
    source, weight = args[0], args[1]
    channels = source.shape[1 - weight.ndim]
    if channels != weight.shape[0]:
        raise RuntimeError(f"transposed convolution: the input has {channels} channels, the weight {weight.shape[0]}")
    return NotImplemented
