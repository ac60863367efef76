"""Attention as one op: scores `Q.K^T` and the weighted sum `P.V`, over every pair of query and key.

`2 * queries * keys * (width of Q and K + width of V)` FLOPs for each head and sample. A causal or sparse mask never
reduces the count, which is the field's convention; grouped heads do not either, as each query head does its own work.
The scores of a fused kernel never reach memory, so they are not among the bytes.
"""

from __future__ import annotations

import math

from llm_perf_opt.analyses.pricing.op_cost import Formula, OpCost, bytes_in_and_out, elements, operand
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta

SOFTMAX_STEPS = 5  # maximum, subtract, exponential, sum, divide
_SCORE_STEPS = SOFTMAX_STEPS + 1  # and the scale


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
    """Five products: the scores once more, then the gradients of scores, values, queries and keys."""
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
    """A whole transformer encoder layer: four square projections, attention, two feed-forward products."""
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


FORMULAS: dict[str, Formula] = {
    "aten.scaled_dot_product_attention": attention,
    "aten._scaled_dot_product_flash_attention": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": attention,
    "aten._scaled_dot_product_efficient_attention": attention,
    "aten._scaled_dot_product_cudnn_attention": attention,
    "aten._scaled_dot_product_fused_attention_overrideable": attention,
    "aten._scaled_dot_product_attention_math": attention,
    "aten._scaled_dot_product_attention_math_for_mps": attention,
    "aten._triton_scaled_dot_attention": attention,
    "flex_attention": attention,
    "aten._flash_attention_forward": attention_tokens_first,
    "aten._flash_attention_forward_no_dropout_inplace": attention_tokens_first,
    "aten._efficient_attention_forward": attention_tokens_first,
    "aten._cudnn_attention_forward": attention,
    "aten._scaled_dot_product_flash_attention_backward": attention_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    "aten._scaled_dot_product_efficient_attention_backward": attention_backward,
    "aten._scaled_dot_product_cudnn_attention_backward": attention_backward,
    "aten._flash_attention_backward": attention_tokens_first_backward,
    "aten._efficient_attention_backward": attention_tokens_first_backward,
    "aten._native_multi_head_attention": multi_head_attention,
    "aten._triton_multi_head_attention": multi_head_attention,
    "aten._transformer_encoder_layer_fwd": encoder_layer,
}
