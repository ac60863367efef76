"""Attention as one op: scores `Q.K^T` and the weighted sum `P.V`, over every pair of query and key.

`2 * queries * keys * (width of Q and K + width of V)` FLOPs for each head and sample. A causal or sparse mask never
reduces the count, which is the field's convention; grouped heads do not either, as each query head does its own work.
The scores of a fused kernel never reach memory, so they are not among the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.ops.cost import OpCost, bytes_in_and_out, elements, operand
from llm_perf_opt.ops.kernel_shape import AttentionShape
from llm_perf_opt.ops.op import (
    CalibratedWork,
    Kernel,
    KernelKind,
    Op,
    compute_dtype,
    launches_by_cost,
    registered,
)

SOFTMAX_STEPS = 5  # maximum, subtract, exponential, sum, divide
_SCORE_STEPS = SOFTMAX_STEPS + 1  # and the scale
_MEASURED_HEAD_DIM = 64  # of the attention that a calibration times
_LOG_SUM_EXP_BYTES = 4  # a flash kernel keeps one float32 per row of queries


def attention(kind: OpKind) -> OpCost:
    """Operands laid out as `[..., heads, tokens, width]`, batch dimensions broadcast."""
    query, key, value = _query_key_value(kind)
    rows = math.prod(kind.outputs[0].shape[:-1])
    return _priced(kind, rows * key.shape[-2], query.shape[-1] + value.shape[-1])


def attention_tokens_first(kind: OpKind) -> OpCost:
    """Operands laid out as `[batch, tokens, heads, width]`, or packed as `[tokens, heads, width]`."""
    query, key, value = _query_key_value(kind)
    pairs = math.prod(query.shape[:-1]) * _keys_tokens_first(kind, key)
    return _priced(kind, pairs, query.shape[-1] + value.shape[-1])


def attention_backward(kind: OpKind) -> OpCost:
    """Five matmuls: the scores once more, then the gradients of scores, values, queries and keys."""
    query, key, value = _query_key_value(kind, offset=1)
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return _priced(kind, pairs, 3 * query.shape[-1] + 2 * value.shape[-1])


def attention_tokens_first_backward(kind: OpKind) -> OpCost:
    """As `attention_backward`, in the layout of `attention_tokens_first`."""
    query, key, value = _query_key_value(kind, offset=1)
    pairs = math.prod(query.shape[:-1]) * _keys_tokens_first(kind, key)
    return _priced(kind, pairs, 3 * query.shape[-1] + 2 * value.shape[-1])


def multi_head_attention(kind: OpKind) -> OpCost:
    """Projections of `[batch, tokens, width]` operands, attention, and the output projection, in one op."""
    query, key, value = _query_key_value(kind)
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    width = query.shape[-1]
    projections = (2 * elements(query) + elements(key) + elements(value)) * width
    return _priced(kind, pairs * kind.arguments["num_head"], 2 * width // kind.arguments["num_head"], projections)


def encoder_layer(kind: OpKind) -> OpCost:
    """A whole transformer encoder layer: four square projections, attention, two feed-forward matmuls."""
    source, hidden = operand(kind, 0, "src"), operand(kind, 9, "ffn_weight_1")
    width = source.shape[-1]
    pairs = math.prod(source.shape[:-1]) * source.shape[-2]
    projections = elements(source) * (4 * width + 2 * hidden.shape[0])
    return _priced(kind, pairs * kind.arguments["num_heads"], 2 * width // kind.arguments["num_heads"], projections)


def _query_key_value(kind: OpKind, offset: int = 0) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    return (
        operand(kind, offset, "query", "q"),
        operand(kind, offset + 1, "key", "k"),
        operand(kind, offset + 2, "value", "v"),
    )


def _keys_tokens_first(kind: OpKind, key: TensorMeta) -> int:
    """How many keys each query meets.

    Packed sequences have their lengths in a tensor, hence unknown here: every query then meets as many keys as the
    longest sequence has, which is exact for equal lengths and otherwise an upper bound.
    """
    is_packed = any(name.startswith("cu") for name in kind.input_names)  # cum_seq_k, cu_seqlens_k
    longest = kind.arguments.get("max_k", kind.arguments.get("max_seqlen_k"))
    return longest if is_packed and isinstance(longest, int) else key.shape[-3]


def _priced(kind: OpKind, pairs: int, macs_per_pair: int, other_macs: int = 0) -> OpCost:
    return OpCost(
        flops=2 * (pairs * macs_per_pair + other_macs),
        vector_flops=pairs * _SCORE_STEPS,
        bytes_moved=bytes_in_and_out(kind),
    )


def attention_kernel(kind: OpKind, cost: OpCost) -> tuple[Kernel, ...]:
    """One fused kernel. A causal mask over `q` queries and `q` keys hides `q * (q - 1) / 2` of the pairs."""
    query = operand(kind, 0, "query", "q")
    return (_fused_kernel(kind, cost, query.shape[-2] if len(query.shape) > 1 else 1, heads_at=-3, tokens_at=-2),)


def attention_tokens_first_kernel(kind: OpKind, cost: OpCost) -> tuple[Kernel, ...]:
    """One fused kernel on operands laid out as `[batch, tokens, heads, width]`; packed sequences are one."""
    query = operand(kind, 0, "query", "q")
    return (_fused_kernel(kind, cost, query.shape[-3] if len(query.shape) > 2 else 1, heads_at=-2, tokens_at=-3),)


def _fused_kernel(kind: OpKind, cost: OpCost, queries: int, *, heads_at: int, tokens_at: int) -> Kernel:
    query = operand(kind, 0, "query", "q")
    is_causal = bool(kind.arguments.get("is_causal"))
    return Kernel(
        kind=KernelKind.ATTENTION,
        dtype=compute_dtype(kind),
        flops=cost.flops,
        skippable_flops=cost.flops * (queries - 1) // (2 * queries) if is_causal else 0,
        bytes_moved=cost.bytes_moved,
        sequences=query.shape[0] if len(query.shape) > 3 else 1,
        queries=queries,
        shape=_attention_shape(kind, heads_at=heads_at, tokens_at=tokens_at, is_causal=is_causal),
    )


def _attention_shape(kind: OpKind, *, heads_at: int, tokens_at: int, is_causal: bool) -> AttentionShape | None:
    """None for a backward op, and where the operands are not of four dimensions."""
    if "backward" in kind.name:
        return None
    query, key, value = _query_key_value(kind)
    if any(len(meta.shape) != 4 for meta in (query, key, value)):
        return None
    return AttentionShape(
        sequences=query.shape[0],
        queries=query.shape[tokens_at],
        keys=key.shape[tokens_at],
        heads=query.shape[heads_at],
        key_heads=key.shape[heads_at],
        width=query.shape[-1],
        value_width=value.shape[-1],
        is_causal=is_causal,
        cache_format=key.dtype,
    )


def attention_work(kind: OpKind) -> Iterator[CalibratedWork]:
    """By heads and tokens; a mask, and an odd number of keys such as a class token makes, have tables of their own."""
    query, key = kind.inputs[0], kind.inputs[1]
    masked = "attn_mask" in kind.input_names or len(kind.inputs) > 3
    tokens = math.sqrt(query.shape[-2] * key.shape[-2])
    sizes = {"heads": math.prod(query.shape[:-2]), "tokens": tokens}
    is_odd = key.shape[-2] % 2 == 1 and query.shape[-2] > 1
    family = "masked_attention" if masked else "odd_attention" if is_odd else "attention"
    times = query.shape[-1] / _MEASURED_HEAD_DIM
    yield CalibratedWork(family=family, dtype=query.dtype, sizes=sizes, times=times)


def flash_scratch_bytes(query_shape: Sequence[int]) -> int:
    """What a flash kernel holds next to its result: the logarithm of each row's sum."""
    return math.prod(query_shape[:-1]) * _LOG_SUM_EXP_BYTES


_fused = partial(Op, family=WorkFamily.ATTENTION, kernels=attention_kernel)
_tokens_first = partial(Op, family=WorkFamily.ATTENTION, kernels=attention_tokens_first_kernel)
_with_projections = partial(Op, kernels=launches_by_cost)  # most of the work of such an op is in its matmuls

OPS = registered(
    {
        "scaled_dot_product_attention": _fused(price=attention, calibrated=attention_work, is_recorded_whole=True),
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu": _fused(price=attention),
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention": _fused(price=attention),
        "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math": _fused(price=attention),
        "_scaled_dot_product_attention_math_for_mps _triton_scaled_dot_attention": _fused(price=attention),
        "higher_order.flex_attention": _fused(price=attention),
        "_cudnn_attention_forward": Op(price=attention),
        "_flash_attention_forward _flash_attention_forward_no_dropout_inplace": _tokens_first(
            price=attention_tokens_first
        ),
        "_efficient_attention_forward": _tokens_first(price=attention_tokens_first),
        "_scaled_dot_product_flash_attention_backward": _fused(price=attention_backward),
        "_scaled_dot_product_flash_attention_for_cpu_backward": _fused(price=attention_backward),
        "_scaled_dot_product_efficient_attention_backward": _fused(price=attention_backward),
        "_scaled_dot_product_cudnn_attention_backward": _fused(price=attention_backward),
        "_flash_attention_backward _efficient_attention_backward": _fused(price=attention_tokens_first_backward),
        "_native_multi_head_attention _triton_multi_head_attention": _with_projections(price=multi_head_attention),
        "_transformer_encoder_layer_fwd": _with_projections(price=encoder_layer),
    }
)
