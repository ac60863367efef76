"""Elementwise work, reductions, norms and resampling, by simple counts per element.

One arithmetic step on one element is one vector FLOP; a root, exponential or other elementary function counts as one
step too, and so does a comparison. These counts rank ops and feed no total: `OpCost.flops` is zero throughout.
"""

from __future__ import annotations

import math

from llm_perf_opt.analyses.pricing.attention import SOFTMAX_STEPS
from llm_perf_opt.analyses.pricing.op_cost import Formula, OpCost, bytes_in_and_out, elements, elements_of, operand
from llm_perf_opt.analyses.pricing.packet import packet_of
from llm_perf_opt.core.callgraph.records import OpKind

_STEPS_BY_NAMES = {
    "addcmul addcdiv lerp rsub glu leaky_relu hardtanh clamp relu6 dropout native_dropout mse_loss l1_loss": 2,
    "linalg_vector_norm linalg_norm norm sigmoid_backward tanh_backward threshold_backward": 2,
    "celu elu selu hardsigmoid hardshrink softshrink kl_div smooth_l1_loss huber_loss pairwise_distance dist": 3,
    "sigmoid softplus log_sigmoid log_sigmoid_forward hardswish logsumexp binary_cross_entropy": 4,
    "_softmax_backward_data _log_softmax_backward_data": 4,
    "var std var_mean std_mean": 4,  # mean; subtract, square, add
    "rms_norm _fused_rms_norm _weight_norm _weight_norm_interface": 4,  # square, add, scale, weight
    "batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm": 4,  # subtract, scale, weight, bias
    "_native_batch_norm_legit_no_training _batch_norm_no_update": 4,
    "silu silu_backward binary_cross_entropy_with_logits": 5,
    "softmax _softmax _safe_softmax _masked_softmax special_softmax": SOFTMAX_STEPS,
    "log_softmax _log_softmax special_log_softmax": SOFTMAX_STEPS,
    "mish cosine_similarity cross_entropy_loss": 6,
    "gelu gelu_backward": 8,
    "layer_norm native_layer_norm group_norm native_group_norm instance_norm": 8,  # as var, then as batch_norm
    "_native_batch_norm_legit _batch_norm_with_update _batch_norm_impl_index": 8,
    "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward _fused_rms_norm_backward": 16,
}
_STEPS_OF_NAME = {name: steps for names, steps in _STEPS_BY_NAMES.items() for name in names.split()}

_TAPS_BY_RESAMPLING = {
    "upsample_linear1d": 2,
    "upsample_bilinear2d": 4,
    "_upsample_bilinear2d_aa": 4,
    "upsample_trilinear3d": 8,
    "upsample_bicubic2d": 16,
    "_upsample_bicubic2d_aa": 16,
    "_upsample_lanczos2d_aa": 36,
    "grid_sampler": 4,
    "grid_sampler_2d": 4,
    "_grid_sampler_2d_cpu_fallback": 4,
    "cudnn_grid_sampler": 4,
    "grid_sampler_3d": 8,
}


def _steps(kind: OpKind) -> int:
    return _STEPS_OF_NAME.get(packet_of(kind.name).removeprefix("aten."), 1)


def pointwise(kind: OpKind) -> OpCost:
    """Work on every element of the first output, or of the first input where the op only writes into it."""
    worked = elements((kind.outputs or kind.inputs)[0])
    return OpCost(vector_flops=_steps(kind) * worked, bytes_moved=bytes_in_and_out(kind))


def pointwise_list(kind: OpKind) -> OpCost:
    """One elementwise op on each tensor of a list."""
    return OpCost(vector_flops=elements_of(kind.outputs or kind.inputs), bytes_moved=bytes_in_and_out(kind))


def reduction(kind: OpKind) -> OpCost:
    """Work on every element of the first input, or of the output where that is larger (`max` of two tensors)."""
    worked = max(elements(meta) for meta in (kind.inputs[0], *kind.outputs))
    return OpCost(vector_flops=_steps(kind) * worked, bytes_moved=bytes_in_and_out(kind))


def norm(kind: OpKind) -> OpCost | None:
    """A norm by elements; None for one by singular values, which depend on the values."""
    dimensions = kind.arguments.get("dim")
    is_matrix = len(dimensions) == 2 if isinstance(dimensions, list) else dimensions is None
    if is_matrix and kind.arguments.get("ord") in (2, -2, "nuc"):
        return None
    return reduction(kind)


def sort(kind: OpKind) -> OpCost:
    """`n * log2(n)` comparisons along the sorted dimension; selecting the top k is priced like sorting all."""
    source = kind.inputs[0]
    dimension = kind.arguments.get("dim", -1)
    length = source.shape[dimension] if source.shape and isinstance(dimension, int) else elements(source)
    return OpCost(vector_flops=elements(source) * max(length - 1, 0).bit_length(), bytes_moved=bytes_in_and_out(kind))


def binary_search(kind: OpKind) -> OpCost:
    """`log2` of the number of boundaries for every value placed."""
    boundaries = operand(kind, 0, "sorted_sequence", "boundaries").shape[-1]
    steps = elements(kind.outputs[0]) * max(boundaries - 1, 0).bit_length()
    return OpCost(vector_flops=steps, bytes_moved=bytes_in_and_out(kind))


def pool(rank: int) -> Formula:
    """The formula of pooling over `rank` dimensions: every output value looks at one window of `kernel_size`."""

    def price(kind: OpKind) -> OpCost:
        window = kind.arguments["kernel_size"]
        sides = [window] if isinstance(window, int) else list(window)
        values = sides[0] ** rank if len(sides) == 1 else math.prod(sides)
        return OpCost(vector_flops=elements(kind.outputs[0]) * values, bytes_moved=bytes_in_and_out(kind))

    return price


def resampling(kind: OpKind) -> OpCost:
    """Every output value is a weighted sum of a fixed neighbourhood, two steps for each neighbour."""
    taps = _TAPS_BY_RESAMPLING[packet_of(kind.name).removeprefix("aten.")]
    return OpCost(vector_flops=2 * taps * elements(kind.outputs[0]), bytes_moved=bytes_in_and_out(kind))


def alignment_loss(kind: OpKind) -> OpCost:
    """`ctc_loss`: four steps for each time step and each place in the blank-padded target."""
    log_probabilities, targets = kind.inputs[:2]
    places = 2 * targets.shape[-1] + 1
    steps = 4 * math.prod(log_probabilities.shape[:-1]) * places
    return OpCost(vector_flops=steps, bytes_moved=bytes_in_and_out(kind))


FORMULAS: dict[str, Formula] = {
    **{f"aten.{name}{rank}d": pool(rank) for name in ("max_pool", "avg_pool") for rank in (1, 2, 3)},
    **{f"aten.max_pool{rank}d_with_indices": pool(rank) for rank in (1, 2, 3)},
    **{f"aten.{name}": resampling for name in _TAPS_BY_RESAMPLING},
    "aten.linalg_norm": norm,
    "aten.linalg_matrix_norm": norm,
    "aten.searchsorted": binary_search,
    "aten.bucketize": binary_search,
    "aten.ctc_loss": alignment_loss,
    "aten._ctc_loss": alignment_loss,
}
